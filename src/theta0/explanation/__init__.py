"""Why a network does not train, by experiment: which single change makes it train."""

from theta0.explanation.explain import explain
from theta0.explanation.results import Explanation, Proof

__all__ = ["Explanation", "Proof", "explain"]
