import pytest
import torch
from torch import nn


@pytest.fixture
def reference_problem():
    """MLP 64-256-256-256-10, He start, 128 digits; its largest cross-entropy GGN eigenvalue is 9.282816."""
    datasets = pytest.importorskip("sklearn.datasets")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for fan_in, fan_out in [(64, 256), (256, 256), (256, 256), (256, 10)]:
            layer = nn.Linear(fan_in, fan_out)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu" if fan_out == 256 else "linear")
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.ReLU()]
    digits = datasets.load_digits()
    index = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(1))[:128]
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    return nn.Sequential(*layers[:-1]), x[index], torch.tensor(digits.target)[index]
