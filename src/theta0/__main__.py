"""`python -m theta0`: the command line."""

from theta0.cli import app

if __name__ == "__main__":
    app(prog_name="theta0")
