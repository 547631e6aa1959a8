"""The appendix as data, and the comparison of starts at its smallest."""

import json

import pytest
import torch

from theta0.papers import yang2022nio
from theta0.papers.datasets import load
from theta0.papers.yang2022nio.appendix import recipe_for
from theta0.papers.yang2022nio.setting import NETWORKS, SCALES
from theta0.papers.yang2022nio.table import configurations, starts_table
from theta0.papers.yang2022nio.training import augmented

pytest.importorskip("sklearn")


def test_the_appendix():
    found = {(r.network, r.data, r.batch_norm): r for r in yang2022nio.RECIPES}
    assert len(found) == 14
    assert found["wrn28-10", "cifar10", True].overlap == 0.7
    for (name, data, batch_norm), recipe in found.items():
        if data == "cifar100":
            assert recipe.gamma == 2 * found[name, "cifar10", batch_norm].gamma
        if data != "imagenet":
            assert name in NETWORKS
            assert recipe.keywords(50_000)["steps"] == 390
            assert (recipe.clip == 1.0) == (not batch_norm)
        else:
            assert (recipe.keywords(1_281_167)["steps"], recipe.sub_batches, recipe.overlap) == (100, 4, 0.2)


def test_small_networks_take_the_recipe_of_their_kind():
    for name in NETWORKS:
        for batch_norm in (True, False):
            recipe = recipe_for(name, batch_norm, 10)
            assert recipe.batch_norm is batch_norm
            assert recipe.network[:3] == name[:3]
            assert recipe_for(name, batch_norm, 100).gamma == 2 * recipe.gamma


def test_every_network_of_a_scale_exists_and_the_source_trains_500_epochs():
    data = load("digits")
    for name, size in SCALES.items():
        wanted = configurations(data, size)
        assert {c["network"] for c in wanted} <= set(NETWORKS), name
        assert len(wanted) == len(size.networks) * 2 * len(size.starts) * size.seeds
    assert wanted[0]["train_steps"] == 500 * len(data.train_x) // 128


@pytest.mark.slow
def test_smoke_writes_a_table_and_goes_on_where_it_was_interrupted(tmp_path):
    text = starts_table(scale="smoke", out_dir=tmp_path)
    rows = json.loads((tmp_path / "starts.json").read_text())
    assert len(rows) == 10
    assert text.count("\n| resnet8") == 10
    for row in rows:
        result = row["result"]
        assert 0 <= result["test_accuracy"] <= 1
        untreated = row["configuration"]["start"] == "kaiming" or result["refused"]
        assert (result["before"] == result["after"]) == bool(untreated)
    lines = (tmp_path / "starts.jsonl").read_text().splitlines()
    (tmp_path / "starts.jsonl").write_text("\n".join(lines[:7]) + "\n" + lines[7][:40])
    done: list[tuple[int, int]] = []
    assert starts_table(scale="smoke", out_dir=tmp_path, progress=lambda n, of: done.append((n, of))) == text
    assert done == [(7, 10), (8, 10), (9, 10), (10, 10)]


def test_augmented_images_are_pieces_of_the_images_with_a_hole():
    x = torch.ones(20, 3, 16, 16)
    out = augmented(x, torch.Generator().manual_seed(0))
    assert out.shape == x.shape
    assert set(out.unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(out, augmented(x, torch.Generator().manual_seed(1)))
    assert torch.equal(out, augmented(x, torch.Generator().manual_seed(0)))


def test_an_unknown_scale():
    with pytest.raises(ValueError, match="scale 'huge' is not known"):
        starts_table(scale="huge")
