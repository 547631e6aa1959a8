"""The version of this package, and where its documentation is."""

__version__ = "0.2.0.dev0"

# The address of the documentation site, with a slash at its end; empty until the site has a home. Reports, the
# package's metadata (hatch_build.py) and the site itself (docs/hooks.py) read it here.
SITE = ""


def help_on(code: str) -> str:
    """Where a finding's page is: a command that shows it, and its address where the site has one.

    Returns:
        One line.

    Example:
        >>> help_on("dead-units")
        'theta0 help dead-units'
    """
    return f"theta0 help {code}" + (f" or {SITE}findings/{code}/" if SITE else "")
