"""Batches sorted by class: what the number of a batch says of its labels."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from theta0 import diagnose
from theta0.diagnosis.rules import no_signal
from theta0.measurements.label_order import label_order


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(10, shape, generator=torch.Generator().manual_seed(seed))


def test_the_share_is_the_mutual_information_of_batch_and_label_less_its_bias():
    labels = [torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 1, 2]), torch.tensor([2, 2, 2, 2])]
    counts = [[3, 1, 0], [0, 3, 1], [0, 0, 4]]
    total = sum(map(sum, counts))
    rows, columns = [sum(r) for r in counts], [sum(c) for c in zip(*counts, strict=True)]
    shared = sum(
        n / total * math.log(n * total / (rows[i] * columns[j]))
        for i, r in enumerate(counts)
        for j, n in enumerate(r)
        if n
    )
    entropy = -sum(c / total * math.log(c / total) for c in columns)
    share, classes = label_order(labels)
    assert share == pytest.approx((shared - 2 * 2 / (2 * total)) / min(entropy, math.log(3)))
    assert classes == pytest.approx(5 / 3)


def test_shuffled_labels_have_no_order():
    shares = [label_order(list(drawn(4, 64, seed=seed)))[0] for seed in range(50)]
    assert max(shares) < 0.1
    assert sum(shares) / 50 < 0.02


def batches_of(labels):
    x = torch.randn(len(labels), 32, 8, generator=torch.Generator().manual_seed(0))
    x[..., 0] = labels.float()
    return list(zip(x, labels, strict=True))


SORTED = torch.arange(128).div(26, rounding_mode="floor").view(4, 32)  # five classes, read one after the other


@pytest.mark.parametrize(
    ("labels", "severity"),
    [
        (SORTED, "warning"),
        (torch.arange(4).repeat_interleave(32).view(4, 32), "error"),
        (drawn(4, 32), None),
        (SORTED.flatten()[torch.randperm(128, generator=torch.Generator().manual_seed(0))].view(4, 32), None),
        ((torch.arange(128) % 40 == 0).long().view(4, 32), None),  # rare positives
        (drawn(4, 8).repeat_interleave(4, 1), None),  # as samplers for metric learning draw: classes, four of each
        (SORTED[:2], None),  # of two batches nothing is said
    ],
)
def test_batches_sorted_by_class_are_a_finding(labels, severity):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 10))
    found = diagnose(model, batches_of(labels), "cross_entropy", probe_steps=0).findings
    assert [f.severity for f in found if f.code == "no-signal"] == ([] if severity is None else [severity])
    assert severity is None or "shuffle=True" in next(f for f in found if f.code == "no-signal").message


@pytest.mark.slow
def test_categories_that_hardly_come_twice_leave_the_labels_undecided():
    generator = torch.Generator().manual_seed(0)
    for classes, undecided in ((300, True), (8, False)):
        torch.manual_seed(0)
        ids = torch.randint(classes, (256, 2), generator=generator)
        labels = torch.randint(3, (256,), generator=generator)
        model = nn.Sequential(nn.Embedding(classes, 4), nn.Flatten(), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        data = list(zip(ids.split(64), labels.split(64), strict=True))
        found = diagnose(model, data, "cross_entropy", optimizer="adam", learning_rate=3e-3)
        assert ("no-signal" in {f.code for f in found.findings}) is not undecided
        assert any("depend on the inputs is undecided" in line for line in found.not_measured) is undecided


@pytest.mark.parametrize("answered", [True, False])
def test_a_question_that_a_finding_answers_is_not_left_open(monkeypatch, answered):
    """That the dependence of targets on inputs is undecided is no line beside the finding no-signal."""
    evidence = SimpleNamespace(hardly_learnt=True, not_measured=[])
    finding = object() if answered else None
    for name, result in {
        "_all_the_same": None,
        "_few_samples": None,
        "_sorted": None,
        "_turned": None,
        "_categories_are_rare": False,
        "_hidden": True,
        "_learnt_faster": True,
        "_by_heart": None,
        "_mismatched": finding,
    }.items():
        monkeypatch.setattr(no_signal, name, lambda _, result=result: result)
    assert no_signal.judge(evidence) is finding
    assert bool(evidence.not_measured) is not answered
