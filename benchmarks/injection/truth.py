"""Ground truth by training: what an injection costs.

Progress of a run is the reference score (of the best predictor that ignores its input) minus the score on held-out
batches after the problem's steps, in which the targets are the true ones. An injection's share is its progress over
that of the healthy network of the same seed, at the same steps. Two seeds are trained, a third where they are not in
the same class. `ill`: the median share and that of seed 0, which is the start that is judged, are below 0.5.
`harmless`: both are at least 0.9. Everything between is left out.
"""

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

from .networks import healthy
from .plan import injected
from .registry import KINDS, Injected
from .training import trained

ILL, HARMLESS = 0.5, 0.9
CONTROLS = 3  # healthy starts of each network
FLOOR = -1.0  # shares below count as this; a run that diverges has it


def class_of(share: float) -> str:
    return "ill" if share < ILL else "harmless" if share >= HARMLESS else "between"


def verdict(shares: list[float]) -> str:
    """The class of an injection; the first share is of the start that is judged."""
    middle, first = class_of(statistics.median(shares)), class_of(shares[0])
    return middle if middle == first else "between"


def healthy_scores(network: str) -> dict:
    """Reference, scores and steps of the healthy network."""
    runs_ = [trained(healthy(network, seed), seed) for seed in range(CONTROLS)]
    return {
        "reference": healthy(network, 0).reference,
        "scores": [run.score for run in runs_],
        "milliseconds": 1e3 * min(run.seconds / run.steps for run in runs_),
    }


def share(found: Injected, seed: int, base: dict) -> float:
    """The share of the healthy progress that an injected network makes."""
    score = trained(found.problem, seed).score
    part = (base["reference"] - score) / (base["reference"] - base["scores"][seed])
    return round(max(FLOOR, min(part, 9.0)), 3) if math.isfinite(part) else FLOOR


def entry(name: str, base: dict) -> dict:
    """What is stored of an injection; of the class `absent` where its training raises."""
    try:
        found = _made(name, 0)
        shares = [share(found, 0, base), share(_made(name, 1), 1, base)]
        if class_of(shares[0]) != class_of(shares[1]):
            shares.append(share(_made(name, 2), 2, base))
    except Exception as error:  # what raises while it trains is no fault of the start, whatever it raises
        return {"class": "absent", "why": f"{type(error).__name__}: {error}"[:160]}
    told = {"size": found.size, "places": list(found.places), "single": found.single, "codes": list(found.codes)}
    structural = KINDS[name.split("/")[2]].structural
    return {"class": verdict(shares), "shares": shares, "structural": structural} | {k: v for k, v in told.items() if v}


def _made(name: str, seed: int) -> Injected:
    found = injected(name, seed)
    if found is None:
        raise ValueError(f"{name} does not fit")
    return found


def lines(network: str, names: list[str], known: dict[str, dict]) -> Iterator[dict]:
    """The entries of a network's injections that are not known yet, the healthy network first."""
    base = known.get(f"healthy/{network}")
    if base is None:
        base = healthy_scores(network)
        yield {"name": f"healthy/{network}", **base}
    for name in names:
        if name not in known:
            yield {"name": name, **entry(name, base)}


def read(path: Path) -> dict[str, dict]:
    """A store of one JSON object a line; a line cut off by an interruption is passed over."""
    found: dict[str, dict] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[row.pop("name")] = row
    return found
