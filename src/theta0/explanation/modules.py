"""Which single module, given the initialization of its type and nothing else changed, makes a network train?"""

import math
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from theta0._randomness import streams
from theta0._weights import tied_parameters, trained_tensors
from theta0.explanation.bench import Bench, Change, Setting, Trial
from theta0.explanation.unlikeness import unlikeness
from theta0.treatment.draws import draw_defaults, has_default

CLOSED = 0.5  # of the gap between the given start and all modules re-initialized
UNUSUAL = 1.0  # e times the size that a type draws, or as much of a mean
MOST_ALONE, CONTINUED = 8, 3  # modules that are tried alone, and of these for longer
RESERVED = 7  # times the steps of a run are left for other changes and for the proof
GAIN, LEAST_GAIN = 0.25, 0.1  # of what is left of the loss that a change takes away, and of what a constant leaves
NEAR = 0.3  # of the gap to the best: closer than that, what is least usual is the cause


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
    bench: Bench, found: Mapping[str, list[str]], given: Trial, named: Sequence[str], steps: int
) -> tuple[Trial, list[Trial]]:
    """Look for the one module that is at fault: suspects alone, then ever smaller halves of all.

    Suspects are those whose values are least like what their type draws, and those that findings name. Alone, since
    with all modules drawn anew a network may be worse than it was made: types draw without regard to depth. Where
    values are unusual, networks that learn slowly get more steps before it is said that no module helps.

    Returns:
        The run as given, as far as it was continued, and the trials that led to the module: the last one is of the
        guilty one, or of the smallest group that helps.
    """
    unlike = _unlikeness(bench, found)
    unusual = [path for path in sorted(found, key=lambda path: -unlike[path]) if unlike[path] >= UNUSUAL]
    order = list(dict.fromkeys([*unusual[: MOST_ALONE // 2], *named, *sorted(found, key=lambda path: -unlike[path])]))
    lengths = (steps, 2 * steps, 3 * steps) if unusual else (steps,)
    given, alone = _alone(bench, found, given, order[:MOST_ALONE], lengths)
    if alone is not None:
        return given, [alone]
    enough = len(found) > 1 and bench.left > RESERVED * steps
    return given, _bisected(bench, found, given, steps) if enough else []


def _unlikeness(bench: Bench, found: Mapping[str, list[str]]) -> dict[str, float]:
    bench.restore()
    try:
        return unlikeness(bench.model, found)
    finally:
        bench.restore()


def _alone(
    bench: Bench, found: Mapping[str, list[str]], given: Trial, order: Sequence[str], lengths: Sequence[int]
) -> tuple[Trial, Trial | None]:
    """The first of the modules in their order that comes near the best of them, and helps; else None."""
    reserve = RESERVED * lengths[0]
    brief = [bench.tried(reinitialized([path], found), lengths[0] // 2) for path in order if bench.left > reserve]
    tried = [trial for trial in brief if trial is not None]
    for length in lengths:
        given = bench.advanced(given, length) if bench.left > reserve else given
        best = sorted(tried, key=lambda trial: trial.share())[:CONTINUED]
        kept = [trial for trial in tried if trial in best or trial is tried[0]]
        tried = [bench.advanced(trial, length) for trial in kept if bench.left > reserve]
        helpful = [trial for trial in tried if helps(trial, given, length)]
        if helpful:
            before, least = given.share(length), min(trial.share(length) for trial in helpful)
            gap = (before if math.isfinite(before) else 1.0) - least
            return given, next(trial for trial in helpful if trial.share(length) <= least + NEAR * gap)
    return given, None


def _bisected(bench: Bench, found: Mapping[str, list[str]], given: Trial, steps: int) -> list[Trial]:
    """All modules, then the half that closes the gap, down to one.

    With one fault, the half that holds it trains, and the other does not; where the first half does not close half of
    the gap, the fault is taken to be in the second, which the last run shows.
    """
    paths, before = list(found), given.share(steps)
    every = bench.tried(reinitialized(paths, found), steps)
    if every is None or not helps(every, given, steps):
        return [] if every is None else [every]
    goal = before - CLOSED * (before - every.share(steps))
    trials = [every]
    while len(paths) > 1:
        half = paths[: len(paths) // 2]
        trial = bench.tried(reinitialized(half, found), steps)
        if trial is None:
            return trials
        if trial.share(steps) <= goal:
            paths, trials = half, [*trials, trial]
        else:
            paths = paths[len(paths) // 2 :]
            if len(paths) == 1:
                last = bench.tried(reinitialized(paths, found), steps)
                return [*trials, last] if last is not None and last.share(steps) <= goal else trials
    return trials


def helps(trial: Trial, given: Trial, steps: int) -> bool:
    """Whether so much less of the loss is left after some steps that a change may be the cause."""
    if len(trial.run.losses) < steps or not math.isfinite(trial.share(steps)):
        return False
    before = given.share(min(steps, len(given.run.losses))) if not given.run.diverged else math.inf
    return trial.share(steps) < before - max(LEAST_GAIN, GAIN * before if math.isfinite(before) else LEAST_GAIN)
