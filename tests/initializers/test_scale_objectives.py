"""Derivatives of every objective over the scales, against central differences in double precision."""

import copy
import dataclasses
from functools import partial

import pytest
import torch
from scale_cases import NETWORKS, central, flat, made, plain_gradient
from torch import Tensor
from torch.nn import functional as F

from theta0._batches import Batch
from theta0._state import functorch_safe
from theta0.initializers import gradinit, metainit, nio
from theta0.initializers.scaled_network import scaled_network
from theta0.initializers.sub_batch_gradients import pieces_suffice, sub_batch_gradients
from theta0.measurements.sub_batches import overlapping

each_network = pytest.mark.parametrize("name", NETWORKS)
PARTS = [slice(0, 7), slice(3, 10)]  # 10 samples, D = 2, r = 0.6
CUTS = partial(nio._equal_cuts, parts=2, overlap=0.6)


@each_network
def test_samples_are_differentiated_once_only_where_they_do_not_meet(name):
    model, x, y = made(name)
    with functorch_safe(model):
        batch = Batch(x, y, len(x))
        network = scaled_network(model, "cross_entropy", batch)
        assert CUTS(batch) == PARTS
        assert pieces_suffice(network, batch, PARTS)[0] == (name != "bn-cnn")
        assert not pieces_suffice(network, batch, [slice(0, 5), slice(5, 10)])[0]  # nothing to save
        summed = dataclasses.replace(network, loss=lambda f, t: F.cross_entropy(f, t, reduction="sum"))
        assert not pieces_suffice(summed, batch, PARTS)[0]


def padded(y: Tensor, *samples: int, label: int = -100) -> Tensor:
    return y.index_fill(0, torch.tensor(samples, dtype=torch.long), label)


LATER = {  # a loss, and the labels of a later batch for which the mean of a part is not that of its pieces
    "ignored labels": ("cross_entropy", lambda y: padded(y, 0, 4)),
    "a piece of ignored labels": ("cross_entropy", lambda y: padded(y, 0, 1, 2)),
    "another ignored label": (partial(F.cross_entropy, ignore_index=2), lambda y: padded(y, 0, 1, label=2)),
    "weighted classes": (
        torch.nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0]).double()),
        lambda y: torch.tensor([0, 0, 0, 1, 2, 1, 2, 1, 2, 0]),
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", LATER)
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_pieces_are_put_together_only_where_a_later_batch_allows_it(name, case):
    """The first batch has each label once in each piece; the slope of a later one is that of its parts alone."""
    loss, change = LATER[case]
    model, x, _ = made(name)
    cuts = [slice(0, 6), slice(3, 9)]
    first = Batch(x[:9], torch.arange(9) % 3, 9)
    later = Batch(x, change(torch.arange(10) % 3), 10, 1)
    with functorch_safe(model):
        network = scaled_network(model, loss, first)
        if case != "another ignored label":
            assert pieces_suffice(network, first, cuts)[0]
        taken = sub_batch_gradients(network, later, PARTS, joint=True)
        assert not taken.joint
        assert taken.lost == pytest.approx(10 / 3)
        for row, part in zip(taken.rows, PARTS, strict=True):
            alone = torch.autograd.grad(
                network.loss_of(Batch(x[part], later.targets[part], 7, 1)), list(model.parameters())
            )
            torch.testing.assert_close(row, list(alone))
        slope = partial(nio._slope, cuts=CUTS, statistic="max", research=False)
        one, other = (slope(network, later, 1e9, joint=joint) for joint in (True, False))
        torch.testing.assert_close(network.slopes(one.derivative), network.slopes(other.derivative))
        assert one.cost == pytest.approx(other.cost + 1 / 3)


def test_a_loss_is_checked_without_a_further_pass_and_the_models_own_is_not_taken_apart():
    model, x, y = made("mlp")
    calls = []
    with functorch_safe(model):
        batch = Batch(x, y, len(x))
        network = scaled_network(model, torch.nn.CrossEntropyLoss(), batch)
        handle = model.register_forward_hook(lambda *_: calls.append(1))
        assert sub_batch_gradients(network, batch, PARTS, joint=True).joint
        assert len(calls) == 3
        handle.remove()
        assert pieces_suffice(network, batch, PARTS) == (True, pytest.approx(2.4))
        assert pieces_suffice(dataclasses.replace(network, loss=None), batch, PARTS) == (False, 0.0)


def test_a_loss_of_several_outputs_is_taken_apart():
    model, x, y = made("mlp")
    whole = torch.nn.Sequential(model)
    whole.register_forward_hook(lambda _, __, out: {"scores": out, "double": 2 * out, "sign": out > 0})

    def loss(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs["scores"], targets) + outputs["double"].square().mean()

    with functorch_safe(whole):
        batch = Batch(x, y, len(x))
        network = scaled_network(whole, loss, batch)
        assert pieces_suffice(network, batch, PARTS)[0]


def slopes(name: str, slope, cap: float) -> tuple[Tensor, bool, list[str]]:
    model, x, y = made(name)
    with functorch_safe(model):
        batch = Batch(x, y, len(x))
        network = scaled_network(model, "cross_entropy", batch)
        found = slope(network, batch, cap)
        return network.slopes(found.derivative), found.constrained, list(network.start)


def rows(name: str, scales: dict[str, float], parts: list[slice]) -> Tensor:
    model, x, y = made(name)
    return torch.stack([flat(plain_gradient(model, scales, x[part], y[part])) for part in parts])


def cosine(name: str, scales: dict[str, float]) -> float:
    found = rows(name, scales, PARTS)
    return float(torch.cosine_similarity(found[:, None], found[None], dim=-1).mean())


def norms(name: str, scales: dict[str, float], parts: list[slice]) -> Tensor:
    return rows(name, scales, parts).norm(dim=1)


def agree(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "joint"), [(name, joint) for name in NETWORKS for joint in (False, True) if not (joint and "bn" in name)]
)
def test_gradcosine_is_ascended(name, joint):
    slope = partial(nio._slope, cuts=CUTS, statistic="max", research=False, joint=joint)
    found, constrained, names = slopes(name, slope, 1e9)
    assert not constrained
    agree(-found, central(partial(cosine, name), names))


@pytest.mark.sampled(3)
@each_network
@pytest.mark.parametrize("statistic", ["max", "mean"])
def test_the_norm_is_descended_above_the_cap(name, statistic):
    slope = partial(nio._slope, cuts=CUTS, statistic=statistic, research=False, joint="bn" not in name)
    found, constrained, names = slopes(name, slope, 1e-9)
    assert constrained
    agree(found, central(lambda s: float(getattr(norms(name, s, PARTS), statistic)()), names))


@pytest.mark.slow
@each_network
def test_the_research_codes_objective(name):
    """Minus the cosine of distinct pairs, minus all squared norms; D = 3 parts of 3, stretched by 0.4 inwards."""
    parts = [slice(0, 4), slice(1, 8), slice(3, 10)]
    cuts = partial(nio.research_cuts, parts=3, overlap=0.4)
    assert cuts(Batch(torch.arange(10), None, 10)) == parts

    def value(scales: dict[str, float]) -> float:
        found = rows(name, scales, parts)
        pairs = torch.cosine_similarity(found[:, None], found[None], dim=-1)
        return float(-(pairs.sum() - pairs.trace()) / 6 - found.square().sum())

    found, _, names = slopes(name, partial(nio._slope, cuts=cuts, statistic="mean", research=True, joint=False), 1e9)
    agree(found, central(value, names))


@pytest.mark.sampled(3)
@each_network
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_loss_after_a_step(name, optimizer):
    model, x, y = made(name)
    for module in (m for m in model.modules() if hasattr(m, "p")):
        module.p = 0.0

    def value(scales: dict[str, float]) -> float:
        gradient = plain_gradient(model, scales, x[:6], y[:6])
        stepped = copy.deepcopy(model)
        for n, p in stepped.named_parameters():
            step = gradient[n] if optimizer == "sgd" else gradient[n].sign()
            p.data = p.data * scales.get(n, 1.0) - 0.01 * step
        for layer in (m for m in stepped.modules() if isinstance(m, torch.nn.MultiheadAttention)):
            layer.dropout = 0.0
        return float(F.cross_entropy(stepped(x[4:]), y[4:]).detach())

    slope = partial(gradinit._slope, optimizer=optimizer, step_size=0.01)
    found, constrained, names = slopes(name, slope, 1e9)
    assert not constrained
    # A half of the samples is shared: 6 of 10, of which the last two begin the part that the step is judged on.
    assert [p.inputs.tolist() for p in overlapping(Batch(torch.arange(10), None, 10), 2, 0.5)] == [
        list(range(6)),
        list(range(4, 10)),
    ]
    agree(found, central(value, names, 1e-6))


@pytest.mark.sampled(3)
@each_network
@pytest.mark.parametrize(("optimizer", "order"), [("sgd", 2), ("adam", 1)])
def test_gradinits_norms(name, optimizer, order):
    slope = partial(gradinit._slope, optimizer=optimizer, step_size=0.01)
    found, constrained, names = slopes(name, slope, 1e-9)
    assert constrained
    agree(found, central(lambda s: float(rows(name, s, [slice(0, 6)])[0].norm(order)), names, 1e-7))


@each_network
def test_the_gradient_quotient(name):
    """Hg by a central difference of gradients; entries near zero, where the quotient is not smooth, decide nothing."""
    model, x, y = made(name)

    def gradient(scales: dict[str, float], shift: dict[str, Tensor], length: float) -> Tensor:
        moved = copy.deepcopy(model)
        for n, p in moved.named_parameters():
            p.data = p.data * scales.get(n, 1.0) + length * shift.get(n, torch.zeros(()))
        return flat(plain_gradient(moved, {}, x, y))

    with functorch_safe(model):
        batch = Batch(x, y, len(x))
        network = scaled_network(model, "cross_entropy", batch)
        found = float(metainit._quotient(network, batch, graph=False)[0].detach())
    along = plain_gradient(model, {}, x, y)
    g = flat(along)
    product = (gradient({}, along, 1e-5) - gradient({}, along, -1e-5)) / 2e-5
    expected = ((g - product) / (g + torch.where(g >= 0, 1e-5, -1e-5)) - 1).abs().mean()
    assert found == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("name", ["mlp", "cnn"])  # not where gradients are zero but for rounding: it has jumps there
def test_the_gradient_quotients_derivative(name):
    def value(scales: dict[str, float]) -> float:
        model, x, y = made(name)
        with functorch_safe(model):
            batch = Batch(x, y, len(x))
            network = scaled_network(model, "cross_entropy", batch)
            network.write(torch.tensor([scales.get(n, 1.0) for n in network.start], dtype=torch.float64))
            return float(metainit._quotient(network, batch, graph=False)[0].detach())

    found, _, names = slopes(name, metainit._slope, 1e9)
    expected = central(value, names, 1e-7)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
