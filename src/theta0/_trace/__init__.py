"""One interpreter of a training step, and the table of what torch's functions do."""
