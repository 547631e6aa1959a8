"""Positions that see what a mask should hide from them, and positions from which it hides everything."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import unprobed as diagnose

LENGTH, WORDS, WIDTH = 12, 20, 16
TOKENS = torch.randint(WORDS, (8, LENGTH + 1), generator=torch.Generator().manual_seed(0))
NEXT = [(TOKENS[:, :-1], TOKENS[:, 1:])]


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def mixed(model, data=NEXT, loss=cross_entropy):
    return [f for f in diagnose(model, data, loss).findings if f.code == "mixed-samples"]


def causal(length):
    return torch.ones(length, length).tril().bool()


class Decoder(nn.Module):
    """One block of attention, written by hand; `mask` makes from a length which positions each one sees."""

    def __init__(self, mask):
        super().__init__()
        torch.manual_seed(0)
        self.mask, self.embed, self.place = mask, nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        q, k, v = self.project(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / WIDTH**0.5
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask(ids.shape[1]), -1e9)
        seen = scores.softmax(-1) @ v
        return self.head(x + self.out(seen))


class Encoder(nn.Module):
    """PyTorch's own encoder, with a causal mask or without."""

    def __init__(self, masked, batch_first=True):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=batch_first)
        self.masked, self.axis, self.embed = masked, int(batch_first), nn.Embedding(WORDS, WIDTH)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[self.axis]) if self.masked else None
        return self.head(self.body(self.embed(ids), mask=mask))


class Recurrent(nn.Module):
    def __init__(self, bidirectional):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.body = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear((1 + bidirectional) * WIDTH, WORDS)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids))[0])


def test_a_decoder_without_a_mask_sees_what_it_is_to_predict():
    (finding,) = mixed(Decoder(None))
    assert finding.severity == "error"
    assert "seen = scores.softmax(-1) @ v" in finding.source_line
    assert mixed(Decoder(causal)) == []


def test_nothing_is_said_where_the_target_is_not_the_next_input():
    assert mixed(Decoder(None), [(TOKENS[:, :-1], TOKENS[:, :-1].flip(1))]) == []
    assert mixed(Decoder(None), [(TOKENS[:, :-1], TOKENS[:, :-1])]) == []


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_encoder(batch_first):
    data = NEXT if batch_first else [(TOKENS[:, :-1].T.contiguous(), TOKENS[:, 1:].T.contiguous())]
    assert mixed(Encoder(True, batch_first), data) == []
    (finding,) = mixed(Encoder(False, batch_first), data)  # positions first are not taken for samples
    assert (finding.severity, finding.layer) == ("error", "body.layers.0.self_attn")


SAME = [(TOKENS[:, :-1], TOKENS[:, :-1])]


class Shifting(Recurrent):
    """A decoder that puts a start token before its inputs itself."""

    def forward(self, ids):
        return super().forward(torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1))


class Bottleneck(Recurrent):
    """An autoencoder of sequences."""

    def forward(self, ids):
        states = self.body(self.embed(ids))[1][0][-1]
        return self.head(states[:, None] + self.embed(torch.arange(ids.shape[1])))


@pytest.mark.parametrize("model", [Decoder(causal), Encoder(True), Recurrent(False)], ids=lambda m: type(m).__name__)
def test_a_decoder_that_is_fed_its_targets_unshifted(model):
    (finding,) = mixed(model, SAME)
    assert finding.severity == "error"
    assert "given its own targets" in finding.message
    assert mixed(model, [(TOKENS[:, :-1], TOKENS[:, :-1].flip(1))]) == []


@pytest.mark.parametrize("model", [Shifting(False), Bottleneck(False), Recurrent(True)], ids=lambda m: type(m).__name__)
def test_inputs_that_are_the_targets_of_a_network_that_shifts_them_or_sees_all_are_no_finding(model):
    assert mixed(model, SAME) == []


@pytest.mark.parametrize("hidden", [0.15, 0.5])
def test_a_masked_language_model_that_is_scored_everywhere_is_no_finding(hidden):
    masked = TOKENS[:, :-1].masked_fill(torch.rand(TOKENS[:, :-1].shape) < hidden, 0)
    assert mixed(Encoder(False), [(masked, TOKENS[:, :-1])]) == []


def test_recurrent_networks():
    assert mixed(Recurrent(False)) == []
    (finding,) = mixed(Recurrent(True))
    assert finding.layer == "body"


def test_a_forecast_of_numbers():
    class Smoothed(nn.Module):
        def __init__(self, padding):
            super().__init__()
            torch.manual_seed(0)
            self.padding, self.filter = padding, nn.Conv1d(3, 3, 3)

        def forward(self, x):
            return self.filter(F.pad(x.transpose(1, 2), self.padding)).transpose(1, 2)

    series = torch.randn(8, LENGTH + 1, 3, generator=torch.Generator().manual_seed(0)).cumsum(1)
    data = [(series[:, :-1], series[:, 1:])]
    assert mixed(Smoothed((2, 0)), data, "mse") == []
    (finding,) = mixed(Smoothed((1, 1)), data, "mse")
    assert (finding.severity, finding.layer) == ("error", "filter")


def test_a_mask_that_hides_everything_from_a_position():
    inverted = mixed(Decoder(lambda length: ~causal(length)))
    assert [f.severity for f in inverted] == ["error", "warning"]
    (_, blind) = inverted
    assert blind.value == 1.0
    assert "scores.softmax(-1)" in blind.source_line


class Attends(nn.Module):
    """An embedding and attention of torch's."""

    def __init__(self, attend):
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.embed, self.head = attend, nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.attend(self, x, causal(ids.shape[1])))


ATTENDED = {
    "fused": lambda m, x, seen: F.scaled_dot_product_attention(x, x, x, attn_mask=seen),
    "fused, by amounts": lambda m, x, seen: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.zeros(seen.shape).masked_fill(~seen, -1e9)
    ),
    "heads": lambda m, x, seen: m.attention(x, x, x, attn_mask=~seen)[0],
}


@pytest.mark.parametrize("name", ATTENDED)
def test_torchs_attention_whose_mask_hides_everything_from_the_first_position(name):
    attend = ATTENDED[name]
    assert mixed(Attends(attend)) == []
    hidden = mixed(Attends(lambda m, x, seen: attend(m, x, seen & (seen.sum(1, keepdim=True) > 1)).nan_to_num()))
    assert (hidden[-1].severity, bool(hidden[-1].source_line)) == ("warning", True)


@pytest.mark.slow
def test_a_model_that_shifts_its_labels_itself():
    transformers = pytest.importorskip("transformers")
    try:
        kind = transformers.GPT2LMHeadModel
    except ImportError as error:  # a torchvision that does not fit torch
        pytest.skip(f"transformers cannot make GPT-2 here: {error}")
    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=LENGTH, **ends)
    model, ids = kind(config), TOKENS[:, :-1]
    data = [{"input_ids": ids, "labels": ids}]
    assert mixed(model, data, None) == []

    def see_all(self, input_ids, labels=None):
        everywhere = torch.zeros(len(input_ids), 1, LENGTH, LENGTH)
        return type(self).forward(self, input_ids=input_ids, labels=labels, attention_mask=everywhere)

    model.forward = see_all.__get__(model)
    (finding,) = mixed(model, data, None)
    assert finding.layer.startswith("transformer.h.0")


class Labelled(nn.Module):
    """A decoder that shifts its labels itself, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.decoder = Decoder(causal)

    def forward(self, input_ids, labels=None):
        logits = self.decoder(input_ids)
        loss = None if labels is None else cross_entropy(logits[:, :-1], labels[:, 1:])
        return {"loss": loss, "logits": logits}


def test_labels_that_are_shifted_by_the_caller_and_by_the_model():
    right = [{"input_ids": TOKENS[:, :-1], "labels": TOKENS[:, :-1]}]
    twice = [{"input_ids": TOKENS[:, :-1], "labels": TOKENS[:, 1:]}]
    assert mixed(Labelled(), right, None) == []
    (finding,) = mixed(Labelled(), twice, None)
    assert finding.severity == "error"
    assert "2 positions on" in finding.message


def test_targets_two_positions_on():
    (finding,) = mixed(Decoder(causal), [(TOKENS[:, :-2], TOKENS[:, 2:])])
    assert "shifted twice" in finding.message
    assert mixed(Encoder(False), [(TOKENS[:, :-2], TOKENS[:, 2:])]) == []  # that sees all of them
