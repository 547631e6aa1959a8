"""Which single module, given the initialization of its type and nothing else changed, makes a network train?"""

from collections.abc import Callable, Collection, Mapping, Sequence

from torch import nn

from theta0._randomness import streams
from theta0._weights import tied_parameters, trained_tensors
from theta0.explanation.bench import Bench, Change, Setting, Trial
from theta0.treatment.draws import draw_defaults, has_default

CLOSED = 0.5  # of the gap between the given start and all modules re-initialized


def units(model: nn.Module, keep: Collection[str] = ()) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Modules that can be re-initialized alone, with the names of their parameters, and those that cannot, with why.

    Args:
        model: the network.
        keep: paths of pretrained modules.

    Returns:
        Both by path, in order of registration.
    """
    tied, found, left = tied_parameters(model), dict[str, list[str]](), dict[str, str]()
    for path, module in model.named_modules():
        own = list(module.named_parameters(recurse=False))
        if own and not any(p.requires_grad for _, p in own):
            left[path] = "frozen"
    for name, (module, _, _) in trained_tensors(model).items():
        path = name.rpartition(".")[0]
        if any(path == kept or path.startswith(f"{kept}.") for kept in keep):
            left[path] = "kept, as pretrained"
        elif ".parametrizations." in f".{name}":
            left[path.partition(".parametrizations")[0]] = "parametrized"
        elif name in tied:
            left[path] = "tied"
        elif not has_default(module):
            left[path] = f"{type(module).__name__} has no initialization of its own"
        else:
            found.setdefault(path, []).append(name)
    return {path: names for path, names in found.items() if path not in left}, left


def reinitialized(paths: Sequence[str], found: Mapping[str, list[str]]) -> Change:
    """The change that draws some modules anew."""
    names = [name for path in paths for name in found[path]]
    single = paths[0] if len(paths) == 1 else ""
    words = f"`{single}` re-initialized" if single else f"{len(paths)} modules re-initialized"

    def apply(model: nn.Module, setting: Setting, seed: int) -> Setting:
        draw_defaults(model, streams(seed), only=names)
        return setting

    return Change(words, apply, single)


def guilty(
    bench: Bench, found: Mapping[str, list[str]], given: Trial, suspects: Sequence[str], steps: int
) -> list[Trial]:
    """Bisect the modules: all of them, then the half that closes the gap, down to one.

    Suspects are tried alone first. With one fault, the half that holds it trains, and the other does not; where the
    first half does not close half of the gap, the fault is taken to be in the second, which the last run shows.

    Returns:
        The trials of all modules and, where they help, of ever smaller groups; the last is the guilty one.
    """
    paths = list(found)
    every = bench.tried(reinitialized(paths, found), steps) if paths else None
    if every is None or not _helps(every, given, given.share(steps), steps):
        return [] if every is None else [every]
    goal = given.share(steps) - CLOSED * (given.share(steps) - every.share(steps))
    closes: Callable[[Trial | None], bool] = lambda trial: trial is not None and trial.share(steps) <= goal  # noqa: E731
    trials = [every]
    for path in [path for path in suspects if path in found]:
        alone = bench.tried(reinitialized([path], found), steps) if len(paths) > 1 else None
        if alone is not None and closes(alone):
            return [*trials, alone]
    while len(paths) > 1:
        half = paths[: len(paths) // 2]
        trial = bench.tried(reinitialized(half, found), steps)
        if trial is None:
            return trials
        if closes(trial):
            paths, trials = half, [*trials, trial]
        else:
            paths = paths[len(paths) // 2 :]
            if len(paths) == 1:
                last = bench.tried(reinitialized(paths, found), steps)
                return [*trials, last] if last is not None and closes(last) else trials
    return trials


def _helps(trial: Trial, given: Trial, before: float, steps: int) -> bool:
    """Whether so much less of the loss is left that it is worth looking for the module."""
    return trial.share(steps) < before - max(0.1, 0.2 * min(before, 1.0))
