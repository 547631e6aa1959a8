"""A start in a few kilobytes: written, read and applied again, and refused where it does not belong."""

import json
import math

import pytest
import torch
from torch import nn

from theta0.initializers.scale_recipes import apply_recipe_, load_recipe, recipe_of, save_recipe
from theta0.initializers.scale_search import ScaleSearch, scale_parameters
from theta0.initializers.scaled_network import Quality

SCALES = {"0.weight": 0.5, "2.weight": 3.0}


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def search(*, kept: bool) -> ScaleSearch:
    quality = Quality(0.0, 1.0)
    moved = (0.0, 0, 1.0, (), (), (1.0, 1.0), 0, 8.0)
    return ScaleSearch("nio", "gradcosine", SCALES, quality, quality, 1.0, kept, "nothing better", 5, *moved)


def test_a_recipe_leads_from_the_seed_to_the_start(tmp_path):
    found = network()
    scale_parameters(found, SCALES)
    recipe = recipe_of(found, search(kept=True), notes={"seed": "0"})
    read = load_recipe(save_recipe(recipe, tmp_path / "folder" / "start.json"))
    assert read == recipe
    again = apply_recipe_(network(), read)
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, network().state_dict()[name] * SCALES.get(name, 1.0))


def test_it_is_refused_at_another_start_and_by_another_model(tmp_path):
    scaled = network()
    scale_parameters(scaled, SCALES)
    recipe = recipe_of(scaled, search(kept=True))
    other, before = network(1), network(1).state_dict()
    with pytest.raises(ValueError, match="at the start that was scaled"):
        apply_recipe_(other, recipe)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    with pytest.raises(ValueError, match="with the tensors"):
        apply_recipe_(nn.Linear(4, 5), recipe)
    with pytest.raises(ValueError, match="changed the start"):
        recipe_of(network(), search(kept=False))


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document | {"format": "another"},
        lambda document: document | {"tensors": {"0.weight": {"scale": -1.0, "mark": [1.0, 1.0]}}},
        lambda document: document | {"tensors": {"0.weight": {"scale": 1.0}}},
        lambda document: {"format": document["format"]},
        lambda document: [],
    ],
)
def test_a_file_that_is_no_recipe_is_named(change, tmp_path):
    scaled = network()
    scale_parameters(scaled, SCALES)
    path = save_recipe(recipe_of(scaled, search(kept=True)), tmp_path / "start.json")
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=r"start\.json: expected a recipe"):
        load_recipe(path)
    with pytest.raises(ValueError, match=r"missing\.json: expected a recipe"):
        load_recipe(tmp_path / "missing.json")
    assert math.isfinite(recipe_of(scaled, search(kept=True)).marks["0.weight"][0])
