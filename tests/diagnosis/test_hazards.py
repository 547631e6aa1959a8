"""What breaks tools on today's torch: each is survived, and the model is left as it was."""

import copy
import warnings

import pytest
import torch
from held_out_ill import Net, mlp
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from cases import labels, normal
from cases import unprobed as diagnose
from states import state_of

X, Y = normal(16, 6), labels(16, classes=3)


class Cached(nn.Module):
    """Keeps an activation, which deepcopy refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(6, 8, 3)

    def forward(self, x):
        self.last = self.body[0](x)
        return self.body[2](torch.relu(self.last))


class Rectified(nn.Module):
    """Keeps an activation that an in-place ReLU then overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        self.kept = self.first(x)
        return self.head(F.relu_(self.kept))


class Fused(nn.Module):
    """Attention whose output projection's module is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        h = x[:, None].expand(-1, 4, -1)
        return self.head(self.attend(h, h, h)[0].mean(1))


def cached():
    model = Cached()
    model(X)
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)
    return model


def old_weight_norm():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))


def shared_twice():
    layer = nn.Linear(6, 6)
    return Net(lambda s, x: s.head(torch.tanh(s.layer(torch.tanh(s.layer(x))))), layer=layer, head=nn.Linear(6, 3))


def nested():
    return Net(
        lambda s, x: {"hidden": (h := F.relu(s.a(x))), "out": [s.b(h), None]}, a=nn.Linear(6, 8), b=nn.Linear(8, 3)
    )


def of_nested(outputs, targets):
    return F.cross_entropy(outputs["out"][0], targets)


def half():
    return mlp(6, 8, 3).half()


def frozen():
    model = mlp(6, 8, 3)
    model[0].requires_grad_(False)
    return model


def kinked():
    return nn.Sequential(nn.Linear(6, 8), nn.Hardsigmoid(), nn.Linear(8, 3))


def vectors_only():
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))


class Generated(nn.Module):
    """A weight that a linear layer makes of one vector, which has no axis of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.make, self.head = nn.Parameter(torch.randn(4)), nn.Linear(4, 48), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(F.linear(x, torch.tanh(self.make(self.code)).view(8, 6))))


MODELS = {
    "generated weight": Generated,
    "old weight norm": old_weight_norm,
    "cached activation": cached,
    "spectral norm": lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3)),
    "orthogonal": lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "half": half,
    "lazy": lambda: nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)),
    "compiled": lambda: torch.compile(mlp(6, 8, 3), backend="eager"),
    "attention": Fused,
    "no double backward": kinked,
    "in place": Rectified,
    "called twice": shared_twice,
    "frozen": frozen,
    "vectors": vectors_only,
    "parallel": lambda: nn.DataParallel(mlp(6, 8, 3)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
def test_a_hazard_is_survived(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    lazy = name == "lazy"
    before = None if lazy else state_of(model)
    data = [(X.half() if name == "half" else X, Y)]
    rates = {"sgd": 0.1} if name == "half" else {"adam": 1e-4}  # Adam's squares and epsilon underflow in float16
    options = dict(zip(("optimizer", "learning_rate"), *rates.items(), strict=True))
    found = diagnose(model, data, "cross_entropy", **options)
    assert [f for f in found.findings if f.severity != "note"] == []
    assert found.records
    assert not any(record.layer.startswith("module.") for record in found.records)
    assert lazy or state_of(model) == before


def test_nested_outputs():
    assert diagnose(nested(), [(X, Y)], of_nested).healthy


def test_a_channel_with_one_value_names_its_layer():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"layer '1': expected more than one value per channel"):
        diagnose(model, [(X[:1], Y[:1])], "cross_entropy")


def test_a_constant_channel_is_no_division_by_zero():
    silent = X.clone()
    silent[:, 2:] = 0
    assert diagnose(mlp(6, 8, 3), [(silent, Y)], "cross_entropy").healthy


def test_every_call_of_a_layer_has_numbers_of_its_own():
    found = diagnose(shared_twice(), [(X, Y)], "cross_entropy")
    assert {"layer", "layer#2"} <= {record.layer for record in found.records}


def test_a_nonlinearity_on_one_value_per_sample():
    squeezed = Net(lambda s, x: torch.relu(s.body(x).squeeze(-1)), body=mlp(6, 8, 1))
    with torch.no_grad():
        squeezed.body[-1].bias.fill_(-9.0)
    found = diagnose(squeezed, [(normal(40, 6), normal(40, 1)[:, 0])], "mse")
    assert "dead-units" in {f.code for f in found.findings if f.severity == "error"}


def test_a_hinge_between_rows_of_the_outputs():
    def hinge(outputs, _):
        anchor, near, far = outputs.unbind(1)
        return F.relu((anchor - near).square().sum(1) - (anchor - far).square().sum(1) + 1).mean()

    assert diagnose(mlp(6, 8, 3), [(normal(48, 6).view(16, 3, 6), Y)], hinge).healthy
