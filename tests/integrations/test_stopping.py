"""What the adapters read of a trainer's optimizer and loader."""

import pytest
import torch
from torch import nn

from theta0.integrations._stopping import scheduled_rate, unexhausted


def test_the_rate_of_a_warm_up_is_the_one_that_it_leads_to():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1, momentum=0.9)
    assert scheduled_rate(optimizer) == 0.1
    torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=10)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)
    assert scheduled_rate(optimizer) == 0.1
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10)
    assert scheduled_rate(optimizer) == 0.5


@pytest.mark.parametrize(
    ("loader", "most", "read"), [([1, 2], 4, 2), ([1] * 9, 4, 4), ([1] * 9, None, 9), (iter([1]), 4, 4)]
)
def test_no_more_batches_are_read_than_a_loader_has(loader, most, read):
    assert unexhausted(loader, most) == read
