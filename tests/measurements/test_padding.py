"""Masks of padded sequences: what hides the data is found, what hides the padding is not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from theta0._trace.interpreter import trace
from theta0.diagnosis import diagnose
from theta0.measurements.padding import Padding, padding_handler, padding_of

GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = torch.randint(3, 11, (48,), generator=GENERATOR)
REAL = torch.arange(10)[None] < LENGTHS[:, None]
TOKENS = torch.randint(1, 12, (48, 10), generator=GENERATOR) * REAL
Y = TOKENS[:, 0] % 3


class Net(nn.Module):
    """Tokens, something with a mask, a mean over positions or what the mask leaves of it."""

    def __init__(self, use):
        super().__init__()
        self.use = use
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, tokens):
        return self.head(self.use(self, self.embed(tokens), tokens != 0))


def own_attention(self, h, shown):
    scores = (h @ h.transpose(1, 2)).masked_fill(~shown[:, None, :], -1e9)
    return (scores.softmax(-1) @ h).mean(1)


def added(self, h, shown):
    hidden = torch.zeros(shown.shape).masked_fill(~shown, -1e9)
    return ((h @ h.transpose(1, 2) + hidden[:, None]).softmax(-1) @ h).mean(1)


USES = {
    "product": lambda self, h, shown: (h * shown[..., None].float()).sum(1) / shown.sum(1, keepdim=True).clamp(min=1),
    "fill": lambda self, h, shown: h.masked_fill(~shown[..., None], 0.0).sum(1),
    "lowest": lambda self, h, shown: h.masked_fill(~shown[..., None], -1e9).amax(1).clamp(min=-3),
    "where": lambda self, h, shown: torch.where(shown[..., None], h, 0.0).sum(1),
    "own attention": own_attention,
    "added scores": added,
    "attention": lambda self, h, shown: self.attention(h, h, h, key_padding_mask=~shown)[0].mean(1),
    "encoder": lambda self, h, shown: self.encoder(h, src_key_padding_mask=~shown).mean(1),
    "fused": lambda self, h, shown: F.scaled_dot_product_attention(h, h, h, attn_mask=shown[:, None, :]).mean(1),
}


def found(use):
    torch.manual_seed(0)
    result = diagnose(Net(use), [(TOKENS, Y)], "cross_entropy", probe_steps=0)
    return [f for f in result.findings if f.code == "mixed-samples" and f.severity == "error"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", USES)
def test_a_mask_that_hides_the_data_is_an_error_and_one_that_hides_the_padding_is_not(name):
    use = USES[name]
    inverted = found(lambda self, h, shown: use(self, h, ~shown))
    assert [f.code for f in inverted] == ["mixed-samples"]
    assert "padding" in inverted[0].message
    assert inverted[0].source_line
    assert found(use) == []


def test_a_mask_of_padding_that_is_put_in_its_place_hides_nothing():
    blank = nn.Parameter(torch.randn(16))
    assert found(lambda self, h, shown: (h * shown[..., None] + blank * ~shown[..., None]).sum(1)) == []


def test_padding_is_ends_of_different_lengths_that_hold_one_value():
    assert torch.equal(padding_of(TOKENS), ~REAL)
    assert torch.equal(padding_of(TOKENS.flip(1)), ~REAL.flip(1))
    assert torch.equal(padding_of(torch.randn(48, 10, 4) * REAL[..., None]), ~REAL)
    assert padding_of(torch.randint(0, 12, (48, 10), generator=GENERATOR)) is None
    assert padding_of(torch.cat([torch.randint(1, 9, (48, 7)), torch.zeros(48, 3, dtype=torch.long)], 1)) is None


def written(self, h, shown):
    h = h.clone()
    h[~shown] = 0.0
    return h.sum(1)


def every_head(self, h, shown):
    scores = (h @ h.transpose(1, 2))[:, None].expand(-1, 2, -1, -1)
    hidden = torch.zeros(scores.shape).masked_fill(~shown[:, None, None, :], -1e9)
    return ((scores + hidden).softmax(-1) @ h[:, None]).mean((1, 2))


def amounts(shown):
    return torch.zeros(shown.shape).masked_fill(~shown, -1e9)


WRITTEN = USES | {
    "choice of what is hidden": lambda self, h, shown: torch.where(~shown[..., None], 0.0, h).sum(1),
    "fill by a tensor": lambda self, h, shown: h.masked_fill(~shown[..., None], torch.tensor(0.0)).sum(1),
    "fill in place": lambda self, h, shown: (1 * h).masked_fill_(~shown[..., None], 0.0).sum(1),
    "picked": lambda self, h, shown: h[shown].sum(0, keepdim=True).expand(len(h), -1),
    "assigned": written,
    "scores of every head": every_head,
    "fused, by amounts": lambda self, h, shown: F.scaled_dot_product_attention(
        h, h, h, attn_mask=amounts(shown)[:, None, :]
    ).mean(1),
    "attention, by amounts": lambda self, h, shown: self.attention(h, h, h, key_padding_mask=amounts(shown))[0].mean(1),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_mask_is_compared_with_the_padding_however_it_is_written(name):
    def masks(use):
        torch.manual_seed(0)
        model, found = Net(use), Padding()
        with torch.enable_grad(), trace(model, padding_handler(found)):
            model(TOKENS)
        return found.inverted

    inverted = masks(lambda self, h, shown: WRITTEN[name](self, h, ~shown))
    assert inverted
    assert inverted[0].agreement == 1.0
    assert inverted[0].padding == pytest.approx(float((~REAL).double().mean()))
    assert masks(WRITTEN[name]) == []


def test_sequences_too_short_or_few_to_see_padding_in_have_none():
    for given in (TOKENS[:3], TOKENS[:, :3], TOKENS[0], TOKENS.float(), TOKENS[..., None].expand(-1, -1, 2)):
        assert padding_of(given) is None
