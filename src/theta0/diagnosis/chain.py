"""The layers of a diagnosis as chains of numbers, and where along a chain something begins."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from theta0._records import Table

_ALIKE = 1e-3  # of a layer's size: samples whose outputs differ by less are alike
_REACHES = 1e-7  # of the gradient that a weight would get from inputs of its layer's usual size: less is none of it


@dataclass(frozen=True)
class Link:
    """What the judgements need of one layer call.

    `spread` is the standard deviation between samples of its preactivations, not a number where it had a single one,
    `rms` their root mean square, `backward` the norm of the loss's gradient with respect to them, None where it is not
    known or reaches no weight, as at padding, whose inputs are zero.
    """

    layer: str
    spread: float
    rms: float
    backward: float | None
    numbers: dict[str, float]

    @property
    def relative_spread(self) -> float:
        """The spread between samples over the root mean square: what is left of the signal; 0 for a silent layer."""
        return self.spread / self.rms if self.rms > 0 else 0.0

    @property
    def sensitivity(self) -> float | None:
        """Gradient norm times root mean square: what a relative change of the preactivations does to the loss.

        The gradient alone is small wherever the preactivations are large, also where a normalization undoes both.
        """
        return None if self.backward is None else self.backward * self.rms


def chain(table: Table) -> list[Link]:
    """The layer calls of a table that have preactivations, in execution order."""
    links = []
    for layer, numbers in table.items():
        if "preactivation_variance" not in numbers:
            continue
        variance, mean = numbers["preactivation_variance"], numbers["preactivation_mean"]
        single = variance > 0 or numbers.get("values_per_unit", 2.0) <= 1  # one sample, as an expert may get
        share = numbers.get("sample_share", math.nan if single else 0.0)
        spread = math.sqrt(max(0.0, share * variance)) if math.isfinite(share * variance) else math.nan
        rms = math.sqrt(max(0.0, variance + mean**2)) if math.isfinite(variance) else math.nan
        weight = table.get(f"{layer.partition('#')[0]}.weight", {})
        backward = numbers.get("backward_norm")
        links.append(Link(layer, spread, rms, None if _is_lost(backward, rms, weight) else backward, numbers))
    return links


def _is_lost(backward: float | None, rms: float, weight: Mapping[str, float]) -> bool:
    """Whether nothing of the gradient at a layer gets to its weight.

    From inputs of root mean square x the weight gets about backward · x · √fan-in, and rms is about x · √fan-in times
    the weight's own root mean square.
    """
    size, reached = weight.get("value_rms", 0.0), weight.get("gradient_norm", 0.0)
    return backward is not None and size > 0 and 0 < reached < _REACHES * backward * rms / size


def final_run(links: Sequence[Link], ill: Callable[[Link], bool]) -> list[Link]:
    """The links from the first of the unbroken run of ill ones that reaches the end of the chain.

    Layers that put out nothing at all, as zero-initialised ones do on purpose, do not break a run and do not start one.
    It is empty where the chain's last link is healthy.
    """
    run: list[Link] = []
    for link in reversed(links):
        if link.rms == 0:
            continue
        if not ill(link):
            break
        run.insert(0, link)
    return run


def falling_back(links: Sequence[Link], threshold: float) -> list[Link]:
    """The links before which, going backward, the gradient has fallen below a share of its largest norm.

    A gradient that only a branch loses, while an earlier layer still has it, has not vanished: every link from the
    start of the chain must be below. Gradients that are zero from the start up to a healthy one are another fault.
    """
    known = [(link, link.sensitivity) for link in links if link.sensitivity is not None and link.rms > 0]
    largest = max((norm for _, norm in known), default=0.0)
    fallen: list[Link] = []
    for link, norm in known:
        if not norm < threshold * largest:
            break
        fallen.append(link)
    return fallen if any(link.sensitivity for link in fallen) else []


def arriving(links: Sequence[Link], firsts: Collection[str]) -> float:
    """How much gradient arrives at the first layers: the most at one before any that reads another's output."""
    ends = list(takewhile(lambda link: link.layer in firsts, links)) or links[:1]
    return max(link.sensitivity or 0.0 for link in ends)


def part_beside(part: Sequence[Link], links: Sequence[Link], firsts: Collection[str], least: float) -> bool:
    """Whether beside the first links of a chain another part reads data of its own, and gets gradient there.

    As the decoder beside an encoder; learned queries, which are the same for all samples, are no data, and later steps
    of a loop that calls the same layers are no other part.
    """
    names = {link.layer for link in part}
    beyond = [link for link in links if link.layer not in names]
    inside, outside = (
        {link.layer.partition("#")[0] for link in some if link.layer not in firsts} for some in (part, beyond)
    )
    ends = [link for link in beyond if link.layer in firsts and link.relative_spread >= _ALIKE]
    return not inside & outside and any((link.sensitivity or 0.0) >= least for link in ends)


def without_zero_weights(links: Sequence[Link], table: Table) -> list[Link]:
    """The links that say something about the signal: of a layer whose weight is zero only the bias speaks."""
    return [link for link in links if not zero_weight(link, table)]


def zero_weight(link: Link, table: Table) -> bool:
    """Whether a layer's weight is zero, as where it starts at zero on purpose."""
    return table.get(f"{link.layer.partition('#')[0]}.weight", {}).get("value_rms") == 0
