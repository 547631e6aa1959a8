"""Two processes that share the samples find what one process finds with all of them."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn

from theta0._ranks import averaged, ranks, summed
from theta0.initializers import ScaleSearch, initialize, metainit_

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="torch was built without gloo")
METHODS = ("nio", "gradinit")


def start() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)).double()


def data() -> list[tuple[Tensor, Tensor]]:
    """Batches of 40: halved, sub-batches are of 14 samples where the whole has 28."""
    x = torch.randn(400, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = (x @ torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)).argmax(1)
    return list(zip(x.split(40), y.split(40), strict=True))


def shared(rank: int) -> list[tuple[Tensor, Tensor]]:
    """Every second sample, as torch's DistributedSampler deals them."""
    return [(x[rank::2], y[rank::2]) for x, y in data()]


def padded(rank: int) -> list[tuple[Tensor, Tensor]]:
    """From the second batch on, the second process has labels that are ignored."""
    return [(x, y.index_fill(0, torch.arange(rank * 3 * (k > 0)), -100)) for k, (x, y) in enumerate(shared(rank))]


def found(method: str, batches: list[tuple[Tensor, Tensor]]) -> tuple[nn.Module, ScaleSearch]:
    model = start()
    return model, initialize(method, model, batches, "cross_entropy", steps=4, max_batches=None)


def rank_main(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.set_num_threads(1)
    mixed = [torch.full((2, 2), float(rank)), torch.tensor(rank, dtype=torch.float64)]
    sums = {"ranks": ranks(), "summed": summed(mixed[0]), "averaged": averaged(mixed), "given": copy.deepcopy(mixed)}
    try:
        metainit_(start(), shared(rank), "cross_entropy")
    except ValueError as error:
        sums["refused"] = str(error)
    states = {name: (model.state_dict(), result) for name in METHODS for model, result in [found(name, shared(rank))]}
    sums["padded"] = found("nio", padded(rank))[1].scales
    torch.save({"sums": sums, "states": states}, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def together(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.start_processes(rank_main, (str(folder),), nprocs=2, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.slow
def test_sums_and_means_over_ranks(together):
    for rank, outcome in enumerate(together):
        sums = outcome["sums"]
        assert sums["ranks"] == 2
        assert sums["summed"].tolist() == [[1, 1], [1, 1]]
        assert [t.tolist() for t in sums["averaged"]] == [[[0.5, 0.5], [0.5, 0.5]], 0.5]
        assert [t.dtype for t in sums["averaged"]] == [torch.float32, torch.float64]
        assert float(sums["given"][1]) == rank  # the arguments stay


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_equal_one(together, method):
    model, result = found(method, data())
    assert result.kept
    for outcome in together:
        state, there = outcome["states"][method]
        assert there.scales == pytest.approx(result.scales, rel=1e-5)
        assert there.after.objective == pytest.approx(result.after.objective, rel=1e-5)
        assert there.after.gradient_norm == pytest.approx(result.after.gradient_norm, rel=1e-5)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-7)
    one, two = (outcome["states"][method][0] for outcome in together)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_processes_agree_on_how_to_differentiate_where_only_one_has_ignored_labels(together):
    one, two = (outcome["sums"]["padded"] for outcome in together)
    assert one == two
    assert any(scale != 1 for scale in one.values())


def test_metainit_says_that_it_works_in_one_process(together):
    assert all("broadcast the start" in outcome["sums"]["refused"] for outcome in together)


def test_without_a_group_nothing_is_exchanged():
    values = [torch.ones(2, requires_grad=True), torch.zeros(3)]
    assert ranks() == 1
    assert summed(values[1]) is values[1]
    assert [t.requires_grad for t in averaged(values)] == [False, False]
    assert averaged([]) == []
