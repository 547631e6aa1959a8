"""The process in which a training script runs: results alone go to standard output, the script's to standard error."""

import os
import sys
import warnings

from theta0.cli import app, scripts


def main() -> None:
    """Run the command line of the parent process on one of its targets, whose number comes first."""
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the script's own subprocesses and libraries print
    sys.stdout = results
    warnings.filterwarnings("ignore", "Using a target size")  # torch's, at each call: broadcast-loss says it once
    scripts.chosen = int(sys.argv[1])
    app(sys.argv[2:], prog_name="theta0")


if __name__ == "__main__":
    main()
