"""Positions that see what they are to predict, in a step of the user's own and in a captured script."""

import pytest
import torch
from test_causal_masks import LENGTH, TOKENS, WORDS, Decoder, Encoder, Recurrent, causal
from torch import nn
from torch.nn import functional as F

import theta0
from cases import unprobed as diagnose


def ahead(model, data, **options):
    found = diagnose(model, data, **options).findings
    return [f for f in found if f.code == "mixed-samples" and "next input" in f.message]


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def pair(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def mapping(model, batch):
    return {"loss": cross_entropy(model(batch["x"]), batch["y"].reshape(len(batch["x"]), LENGTH)) + 0.0}


def sliced(model, tokens):
    return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])


def shifted_outputs(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1])[:, :-1].transpose(1, 2), tokens[:, 1:-1])


def by_log_likelihood(model, tokens):
    return F.nll_loss(model(tokens[:, :-1]).log_softmax(-1).transpose(1, 2), tokens[:, 1:])


def with_a_second_loss(model, tokens):
    outputs = model(tokens[:, :-1])
    return 0.1 * F.mse_loss(outputs.mean((1, 2)), torch.zeros(len(tokens))) + cross_entropy(outputs, tokens[:, 1:])


STEPS = {
    pair: (TOKENS[:, :-1], TOKENS[:, 1:]),
    mapping: {"y": TOKENS[:, 1:].reshape(-1), "x": TOKENS[:, :-1]},
    sliced: TOKENS,
    shifted_outputs: TOKENS,
    by_log_likelihood: TOKENS,
    with_a_second_loss: TOKENS,
}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_decoder_without_a_mask_in_a_step(step):
    model, data = Decoder(None), [STEPS[step]]
    before = {name: t.clone() for name, t in model.state_dict().items()}
    (finding,) = ahead(model, data, step=step)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert model.training
    assert finding.severity == "error"
    assert "seen = scores.softmax(-1) @ v" in finding.source_line
    assert ahead(Decoder(causal), data, step=step) == []


def test_other_networks():
    for build, layer in ((Encoder, "body.layers.0.self_attn"), (lambda masked: Recurrent(not masked), "body")):
        (finding,) = ahead(build(False), [TOKENS], step=sliced)
        assert finding.layer == layer
        assert ahead(build(True), [TOKENS], step=sliced) == []


def test_a_mask_that_is_off_by_one_is_found():
    late = Decoder(lambda length: torch.ones(length, length).tril(1).bool())
    assert len(ahead(late, [TOKENS], step=sliced)) == 1


def test_a_forecast_of_numbers():
    series = torch.randn(8, LENGTH + 1, 3, generator=torch.Generator().manual_seed(0)).cumsum(1)
    torch.manual_seed(0)

    class Forecast(nn.Module):
        def __init__(self, both):
            super().__init__()
            self.body, self.head = nn.GRU(3, 8, batch_first=True, bidirectional=both), nn.Linear(8 * (1 + both), 3)

        def forward(self, x):
            return self.head(self.body(x)[0])

    def step(model, x):
        return F.mse_loss(model(x[:, :-1]), x[:, 1:])

    assert len(ahead(Forecast(True), [series], step=step)) == 1
    assert ahead(Forecast(False), [series], step=step) == []


def test_nothing_is_said_where_the_target_is_not_the_next_input():
    def same(model, tokens):
        return cross_entropy(model(tokens), tokens)

    def reverse(model, tokens):
        return cross_entropy(model(tokens), tokens.flip(1))

    assert ahead(Decoder(None), [TOKENS[:, :-1]], step=same) == []
    assert ahead(Decoder(None), [TOKENS[:, :-1]], step=reverse) == []


def test_nothing_is_said_of_a_step_that_is_not_the_same_twice_or_trains_batch_statistics():
    generator = torch.Generator().manual_seed(0)

    def random(model, tokens):
        outputs = model(tokens[:, :-1])
        return cross_entropy(outputs + torch.randn(outputs.shape, generator=generator), tokens[:, 1:])

    class Normalised(Decoder):
        def __init__(self):
            super().__init__(causal)
            self.norm = nn.BatchNorm1d(WORDS)

        def forward(self, ids):
            return self.norm(super().forward(ids).transpose(1, 2)).transpose(1, 2)

    def training(model, tokens):
        return sliced(model.train(), tokens)

    assert ahead(Decoder(causal), [TOKENS], step=random) == []
    assert ahead(Normalised(), [TOKENS], step=training) == []


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
V, T, D = 16, 12, 32
data = torch.randint(0, V, (64, T + 1))
embed, place = nn.Embedding(V, D), nn.Embedding(T, D)
layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.1, batch_first=True)
body, head = nn.TransformerEncoder(layer, 2), nn.Linear(D, V)
mask = nn.Transformer.generate_square_subsequent_mask(T)
parts = nn.ModuleList([embed, place, body, head])
optimizer = torch.optim.AdamW(parts.parameters(), lr=3e-3)
for epoch in range(3):
    for b in data.split(16):
        x, y = b[:, :-1], b[:, 1:]
        hidden = embed(x) + place(torch.arange(T))
        logits = head(body(hidden))
        loss = nn.functional.cross_entropy(logits.reshape(-1, V), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ill", [True, False])
def test_a_script(ill, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT if ill else SCRIPT.replace("body(hidden)", "body(hidden, mask=mask)"))
    captured = theta0.capture(path).arguments
    model, batches = captured.pop("model"), captured.pop("batches")
    assert captured["step"] is not None
    found = ahead(model, batches, **captured)
    assert [f.source_line for f in found] == (["script.py:17: logits = head(body(hidden))"] if ill else [])


class Translator(nn.Module):
    """A decoder with another input than its tokens."""

    def __init__(self):
        super().__init__()
        self.state, self.decoder = nn.Linear(4, 16), Recurrent(False)

    def forward(self, x, tokens):
        return self.decoder.head(self.decoder.body(self.decoder.embed(tokens))[0] + self.state(x)[:, None])


@pytest.mark.parametrize("shifted", [True, False])
def test_a_step_whose_decoder_is_fed_its_targets(shifted):
    def step(model, batch):
        given = torch.cat([torch.zeros_like(batch[1][:, :1]), batch[1][:, :-1]], 1) if shifted else batch[1]
        return cross_entropy(model(batch[0], given), batch[1])

    found = diagnose(Translator(), [(torch.randn(len(TOKENS), 4), TOKENS)], step=step).findings
    said = [f for f in found if "given its own targets" in f.message]
    assert [f.severity for f in said] == ([] if shifted else ["error"])
