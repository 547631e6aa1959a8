"""Train a problem for its steps and measure the share of the healthy progress that it makes."""

import math
import time
from dataclasses import dataclass

import torch

from .problem import Problem, called, value_of

MAKERS = {
    "sgd": lambda p, r, f: torch.optim.SGD(p, r, fused=f),
    "momentum": lambda p, r, f: torch.optim.SGD(p, r, momentum=0.9, fused=f),
    "adam": lambda p, r, f: torch.optim.Adam(p, r, fused=f),
    "adamw": lambda p, r, f: torch.optim.AdamW(p, r, fused=f),
    "rmsprop": lambda p, r, f: torch.optim.RMSprop(p, r),
}


@dataclass(frozen=True)
class Outcome:
    """A training run: the score after it (infinite where it diverged), its steps and process seconds."""

    score: float
    steps: int
    seconds: float


def trained(problem: Problem, seed: int, most_seconds: float = 30.0) -> Outcome:
    """Train in place, batches in turn, and score on the held-out batches in the mode in which it was trained."""
    torch.manual_seed(1000 + seed)
    parameters = [p for p in problem.model.parameters() if p.requires_grad]
    single = all(p.dtype == torch.float32 for p in parameters)  # fused steps on 16 bits are computed in more
    optimizer = MAKERS[problem.optimizer](parameters, problem.rate, single) if parameters else None
    start, step = time.process_time(), 0
    while step < problem.steps and optimizer is not None and time.process_time() - start < most_seconds:
        inputs, targets = problem.train[step % len(problem.train)]
        optimizer.zero_grad(set_to_none=True)
        value = value_of(problem.loss, called(problem.model, inputs), targets)
        if not math.isfinite(float(value.detach())):
            return Outcome(math.inf, step, time.process_time() - start)
        if value.requires_grad:
            value.backward()
        optimizer.step()
        step += 1
    return Outcome(held_out_score(problem), step, time.process_time() - start)


def held_out_score(problem: Problem) -> float:
    """Mean score; infinite where an output is not finite."""
    problem.heal(problem.model)
    scores = []
    with torch.no_grad():
        for inputs, targets in problem.held_out:
            outputs = problem.undo(called(problem.model, inputs))
            leaves = outputs if isinstance(outputs, tuple) else (outputs,)
            finite = all(bool(torch.isfinite(o).all()) for o in leaves)
            scores.append(problem.score(outputs, targets) if finite else math.inf)
    mean = sum(scores) / len(scores)
    return mean if math.isfinite(mean) else math.inf
