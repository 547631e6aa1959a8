"""What to do, in the words of where one is: a command on the command line, a call in Python."""

import re
import shlex

_COMMAND = re.compile(
    r"theta0 (?P<verb>diagnose|explain|treat|rate|compare) TARGET"
    r"(?P<options>( --(?:with|out) [\w-]+(?:\.\w+)?| --[\w-]+)*)"
)
_CALLS = {
    "diagnose": "theta0.diagnose(model, batches, loss{})",
    "explain": "theta0.explain(model, batches, loss{})",
    "treat": "theta0.treat(model, batches, loss{})",
    "rate": "theta0.suggest_learning_rate(model, batches, loss{})",
    "compare": "theta0.compare(model, batches, loss{})",
}
_ARGUMENTS = {
    "--no-probe": "probe_steps=0",
    "--warm-up": "warm_up=True",
}  # --verify has no like: it is what a call does; --out neither: a call changes the model itself


def worded(text: str, target: str) -> str:
    """Text in which results name commands as `theta0 treat TARGET --with lcw`, as one would write them here.

    Args:
        text: a remedy, a message or a reason.
        target: as on the command line; the empty string is Python. What follows a comma, as in "train.py, optimizer 2",
            is no part of the file's name.

    Returns:
        The text with commands for this target, or with calls.

    Example:
        >>> worded("theta0 treat TARGET --with lcw --out start.safetensors", "train.py")
        'theta0 treat train.py --with lcw --out start.safetensors'
        >>> worded("Lower it (theta0 rate TARGET --verify finds one).", "")
        'Lower it (theta0.suggest_learning_rate(model, batches, loss) finds one).'
        >>> worded("theta0 treat TARGET --with lcw --out start.safetensors", "")
        'theta0.treat(model, batches, loss, with_="lcw")'
    """
    return _COMMAND.sub(lambda found: _command(found, target) if target else _call(found), text)


def here(target: str, command: str, python: str) -> str:
    """The one of two wordings that suits where one is."""
    return command if target else python


def _command(found: re.Match[str], target: str) -> str:
    return f"theta0 {found['verb']} {shlex.quote(target.partition(', optimizer ')[0])}{found['options']}"


def _call(found: re.Match[str]) -> str:
    arguments = ""
    for option in re.findall(r"--(?:with|out) [\w-]+(?:\.\w+)?|--[\w-]+", found["options"]):
        name, _, value = option.partition(" ")
        argument = f'with_="{value}"' if name == "--with" else _ARGUMENTS.get(name, "")
        arguments += f", {argument}" if argument else ""
    return _CALLS[found["verb"]].format(arguments)
