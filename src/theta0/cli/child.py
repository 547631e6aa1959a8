"""The process in which a training script runs: results alone go to standard output, the script's to standard error."""

import os
import sys

from theta0.cli import app, scripts


def main() -> None:
    """Run the command line of the parent process."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the script's own subprocesses and libraries print
    sys.stdout = results
    scripts.in_child = True
    app(sys.argv[1:], prog_name="theta0")


if __name__ == "__main__":
    main()
