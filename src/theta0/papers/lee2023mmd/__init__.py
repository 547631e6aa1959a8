"""Tables and figures of lee2023mmd: a start from which nearby parameters solve many classification tasks."""
