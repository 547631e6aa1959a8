"""Samples that influence each other's outputs, positions that see what they are to predict, or see nothing."""

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.measurements.causality import LookAhead
from theta0.measurements.mixing import SEQUENTIAL, Mixing
from theta0.measurements.padding import AGREE

SHARE = 1e-3  # of the effect of a sample's own inputs
STRONG = 0.03
_WITHIN = frozenset(("softmax", "log_softmax")) | SEQUENTIAL


def judge(evidence: Evidence) -> list[Finding]:
    """Samples that see each other, positions that see what they are to predict, nothing, or padding alone."""
    inverted = _inverted(evidence)
    if inverted is not None:
        return [inverted]
    ahead = evidence.look_ahead
    positions_first = ahead is not None and ahead.axis == 0  # what is along the first axis are no samples
    found = (None if positions_first else _samples(evidence), _ahead(evidence), _blind(evidence))
    return [finding for finding in found if finding is not None]


def _ahead(evidence: Evidence) -> Finding | None:
    """Outputs that change with later inputs, where the next input is the target."""
    found = evidence.look_ahead
    if found is not None and found.own >= SHARE:
        return _given_its_targets(found)
    if found is not None and found.ahead > 1:
        return _beyond_the_next(found)
    if found is None or found.share < SHARE:
        return None
    where = f" It begins at {found.operation}." if found.operation is not None else ""
    return Finding(
        code="mixed-samples",
        severity="error",
        layer="" if found.operation is None else found.operation.path,
        value=found.share,
        threshold=SHARE,
        message=(
            "The target of each position is the next input, and outputs change when only later inputs do, by "
            f"{found.share:.1%} of what the later outputs change: positions see what they are to predict, and the "
            f"network learns to copy it.{where} Hide later positions there: a causal mask, padding on the left side "
            "only, one direction."
        ),
        remedy="",
        source="two forward passes, between which the later halves of samples are exchanged; exactly 0 with a mask",
        layers=() if found.operation is None else (found.operation.path,),
        source_line="" if found.operation is None else found.operation.line,
    )


def _given_its_targets(found: LookAhead) -> Finding:
    """A network that sees only earlier positions and is given, at each, the very token that it is to predict there."""
    return Finding(
        code="mixed-samples",
        severity="error",
        layer="",
        value=found.own,
        threshold=SHARE,
        message=(
            "The network is given its own targets: the target of each position is the input at that position, and the "
            "output there depends on it, while no output depends on later inputs. It learns to copy: the loss falls to "
            "almost nothing, and it cannot generate. Shift by one: inputs tokens[:, :-1] and targets tokens[:, 1:], "
            "or a start token before the decoder's inputs."
        ),
        remedy="logits = model(tokens[:, :-1]); loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])",
        source="two forward passes, between which the later halves of samples are exchanged; exactly 0 where shifted",
    )


def _beyond_the_next(found: LookAhead) -> Finding:
    """A network that sees only earlier positions and is never asked for the next token."""
    return Finding(
        code="mixed-samples",
        severity="error",
        layer="",
        value=float(found.ahead),
        threshold=1.0,
        quantity="positions",
        message=(
            f"The target of each position is the input {found.ahead} positions on, and no output depends on later "
            "inputs: the network is never asked for the next token, and cannot generate. The targets are shifted "
            "twice. A model that shifts its labels itself (those of transformers for causal language modelling) takes "
            "labels=tokens for inputs tokens; a loss outside of the model takes tokens[:, 1:] for inputs "
            "tokens[:, :-1]."
        ),
        remedy="loss = model(input_ids=tokens, labels=tokens).loss",
        source="the targets that the loss is given, against the inputs; exact",
    )


def _inverted(evidence: Evidence) -> Finding | None:
    """A mask that hides all positions but those that are padding."""
    if not evidence.inspection.padding.inverted:
        return None
    found = evidence.inspection.padding.inverted[0]
    operation = found.operation
    return Finding(
        code="mixed-samples",
        severity="error",
        layer=operation.path,
        value=found.agreement,
        threshold=AGREE,
        message=(
            f"The mask at {operation} hides the positions that hold data and shows those that are padding "
            f"({found.padding:.0%} of all), in {found.agreement:.0%} of the positions of padded samples: the "
            "network sees only what says nothing. Invert it. In attention of torch.nn, True in key_padding_mask hides "
            "a position; in scaled_dot_product_attention, True in attn_mask shows it; in masked_fill it is filled."
        ),
        remedy="",
        source="the ends of samples that hold one value, against the mask; threshold: judgement",
        layers=(operation.path,),
        source_line=operation.line,
    )


def _blind(evidence: Evidence) -> Finding | None:
    """Attention that hides everything from a position, in every sample."""
    if not evidence.inspection.blind:
        return None
    found = evidence.inspection.blind[0]
    operation = found.operation
    return Finding(
        code="mixed-samples",
        severity="warning",
        layer=operation.path,
        value=float(found.positions),
        threshold=0.0,
        message=(
            f"At {operation}, {found.positions} of {found.of} positions see nothing, in every sample: the mask hides "
            "all from them, and a softmax over nothing is NaN, or the mean of what was to be hidden. Check whether the "
            "mask is inverted, or leaves out the position itself."
        ),
        remedy="",
        source="the rows of the mask, exact",
        layers=(operation.path,),
        source_line=operation.line,
    )


def _samples(evidence: Evidence) -> Finding | None:
    """Outputs that change though their own inputs do not, in evaluation mode."""
    found = evidence.mixing if evidence.finite else None
    if found is None or found.share < SHARE or found.kind not in ("", "place"):
        return None
    operation = found.operation
    name = "" if operation is None else operation.name
    where = f" It begins at {operation}." if operation is not None else ""
    return Finding(
        code="mixed-samples",
        severity="error" if found.share >= STRONG or name in _WITHIN else "warning",
        layer="" if operation is None else operation.path,
        value=found.share,
        threshold=SHARE,
        message=f"{_influence(found)}{where} {_PLACE if found.kind == 'place' else _advice(name)}",
        remedy="",
        source="two forward passes on eight samples, half of which are exchanged; threshold: judgement",
        layers=() if operation is None else (operation.path,),
        source_line="" if operation is None else operation.line,
    )


_PLACE = (
    "What it adds or multiplies lies along the batch instead of along positions or features, so the network does not "
    "get what was meant, as with position encodings of shape (length, 1, width) where the batch is the first axis."
)


def _influence(found: Mixing) -> str:
    if found.kind == "place":
        return (
            "In evaluation mode, samples with the same inputs have different outputs, by "
            f"{found.share:.1%} of what different inputs change: they depend on the sample's place in the batch."
        )
    if found.hidden:
        return (
            "Inside the network samples influence each other, in evaluation mode: with the inputs of half of them "
            f"exchanged, {found.share:.0%} of an operation's result changes."
        )
    return (
        "In evaluation mode, the outputs of samples change when only the inputs of other samples do, by "
        f"{found.share:.1%} of what their own inputs change."
    )


def _advice(name: str) -> str:
    if name in SEQUENTIAL:
        return "The batch lies along the axis that it runs over: give (length, batch, width), or say batch_first=True."
    if name in ("softmax", "log_softmax", "normalize", "cumsum"):
        return "It runs along the axis of the samples: pass another dim."
    if not name:
        return "Samples change places: look for a reshape or view where a transpose or permute is meant."
    return (
        "It combines entries of different samples: look at the axis that it runs over, and for a reshape or view "
        "before it where a transpose or permute is meant."
    )


RULE = Rule(
    code="mixed-samples",
    judge=judge,
    place=Place.LOSS,
    brings=frozenset({"vanishing-activations", "constant-output", "activation-shift", "initial-loss"}),
    fault="the forward pass",
    doc=RuleDoc(
        meaning="Each sample of a batch should be processed by itself: if you change other samples, the output for "
        "this one must stay the same. Here it changes. The network learns from whatever happens to be next to a "
        "sample, and answers differently for another batch size. The same code reports sequence models that see "
        "what they are to predict: their training loss falls to nearly nothing, and they cannot generate or "
        "forecast.",
        why="Most often the batch and the sequence axis are exchanged: `nn.LSTM`, `nn.GRU`, `nn.MultiheadAttention` "
        "and `nn.TransformerEncoderLayer` expect (length, batch, width) unless you pass `batch_first=True`. Or a "
        "softmax, a norm or a cumulative sum runs over dimension 0. Or `view` or `reshape` is used to swap two "
        "axes: it keeps the order of the numbers, so that parts of different samples end up in one row; use "
        "`transpose` or `permute`. In language models: no causal mask, one that is inverted or off by one, a "
        "padding mask with True and False exchanged, or a decoder that is fed its targets without the shift by "
        "one.",
        numbers=(
            (
                "half of the samples of a batch are exchanged, in evaluation mode: the change of the outputs of the "
                "other half, divided by the change of the outputs of this half. Where samples have equal inputs: the"
                " difference of their outputs, divided by that of samples with different ones",
                f"warning at {SHARE:g}; error at {STRONG:g}, or where a softmax, attention or a recurrent layer "
                "causes it",
                "independent samples give exactly 0; judgement",
            ),
            (
                "where each target is the next input: the second half of each sequence is exchanged, in evaluation "
                "mode; the change of the outputs of the first half, divided by that of the second half",
                f"error at {SHARE:g}",
                "a causal network gives exactly 0; judgement",
            ),
            (
                "where each target is the input at the same position, and no output depends on later inputs: the "
                "input at one position is exchanged; the change of the output there, divided by the change of this "
                "and all later outputs",
                f"error at {SHARE:g}",
                "exactly 0 where inputs are shifted by one; the outputs of an autoencoder depend on all inputs; "
                "judgement",
            ),
            (
                "tokens that are the targets of positions two or three before them, and not of the position just "
                "before them, in a network whose outputs do not depend on later inputs",
                "error for any",
                "exact",
            ),
            (
                "the number of positions from which attention hides everything, in every sample",
                "warning above 0",
                "exact",
            ),
            (
                "samples that are padded (they end in one value, at different lengths): the share of positions at "
                "which a mask hides the data and shows the padding",
                f"error at {AGREE:.0%}",
                "1 for a mask that is inverted, 0 for one that is not",
            ),
        ),
        fix="model.rnn.batch_first = True",
        command="look at the operation and the line that the report names.",
        ill="""
            # Sequences of (samples, length, width) for a layer that expects (length, samples, width).
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.rnn, self.head = nn.GRU(8, 16), nn.Linear(16, 3)

                def forward(self, x):
                    return self.head(self.rnn(x)[0][:, -1])

            model, sequences = Net(), torch.randn(64, 10, 8)
            batches = [(sequences, sequences[:, -1, :3].argmax(1))]
        """,
        healthy="""
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.rnn, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

                def forward(self, x):
                    return self.head(self.rnn(x)[0][:, -1])

            model, sequences = Net(), torch.randn(64, 10, 8)
            batches = [(sequences, sequences[:, -1, :3].argmax(1))]
        """,
        ignore="You can ignore it where samples are meant to interact, as in attention between the rows of a "
        "table. Batch normalization and other means and variances over the batch, graph networks whose "
        "neighbors are the same in every batch, and outputs for pairs of samples are not reported.",
    ),
)
