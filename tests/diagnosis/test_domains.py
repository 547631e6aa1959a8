"""Why a number is not finite, in the user's terms: the operation's domain, what it runs over, or the largest number."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import unprobed as diagnose

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(16, 4, generator=GENERATOR)
Y = torch.randint(3, (16,), generator=GENERATOR)


class Net(nn.Module):
    """A linear layer and what is done with its outputs."""

    def __init__(self, then):
        super().__init__()
        self.layer, self.then = nn.Linear(4, 3), then

    def forward(self, x):
        return self.then(self.layer(x))


INFINITE, ATTENTION = torch.full((16, 3), torch.inf), nn.MultiheadAttention(3, 1, batch_first=True)
REASONS = {
    "logarithm": (lambda z: z.sigmoid().sub(0.5).log(), "it takes values"),
    "root": (lambda z: (z - 9).sqrt(), "it takes values"),
    "inverse sine": (lambda z: (z + 9).asin(), "it takes values"),
    "power": (lambda z: z**0.5, "has no power that is not whole"),
    "power of zero": (lambda z: (0 * z) ** -1.0, "0 has no negative power"),
    "quotient": (lambda z: z / (0 * z), "the divisor is 0 (48 of 48 entries)"),
    "quotient by a number": (lambda z: z / 0, "the divisor is 0 (1 of 1 entries)"),
    "reciprocal": (lambda z: (0 * z).reciprocal(), "the divisor is 0"),
    "masked softmax": (lambda z: (z.masked_fill(torch.ones(3).bool(), -torch.inf)).softmax(1), "nothing but -inf"),
    "masked attention": (
        lambda z: ATTENTION(z[:, None], z[:, None], z[:, None], key_padding_mask=torch.ones(16, 1).bool())[0][:, 0],
        "the mask hides every position from a query",
    ),
    "mean of nothing": (lambda z: z + z[:0].mean(), "it runs over nothing: the tensor is empty"),
    "spread of one value": (lambda z: z[:1].std(0) + z, "it is of a single value"),
    "exponential": (lambda z: (1e4 * z.abs() + 1e3).exp(), "past the largest number of float32"),
    "difference of infinities": (lambda z: z + (INFINITE - INFINITE.clone()), "it combines infinities"),
}


def message(model, loss="cross_entropy", targets=Y):
    found = [f for f in diagnose(model, [(X, targets)], loss).findings if f.code == "non-finite"]
    assert [f.severity for f in found] == ["error"]
    return found[0].message


@pytest.mark.parametrize("name", REASONS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of a spread without degrees of freedom
def test_an_operation_that_leaves_the_numbers_is_named_with_the_reason(name):
    then, said = REASONS[name]
    torch.manual_seed(0)
    assert said in message(Net(then))


LOSSES = {
    "ignored targets": (lambda o, t: F.cross_entropy(o, torch.full_like(t, -100)), "every target is ignored"),
    "a masked target": (
        lambda o, t: F.cross_entropy(o.masked_fill(F.one_hot(t, 3).bool(), -torch.inf), t),
        "mask the target too",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_leaves_the_numbers_is_named_with_the_reason(name):
    loss, said = LOSSES[name]
    torch.manual_seed(0)
    assert said in message(Net(lambda z: z), loss)
