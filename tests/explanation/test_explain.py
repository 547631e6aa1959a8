"""`explain`: the one change that makes a network train, proven by runs with and without it."""

import json
from io import StringIO

import pytest
import torch
from rich.console import Console
from torch import nn

import theta0
from cases import normal
from states import randomness, state_of
from theta0.reports import explanation_document, explanation_report, write_page

X = normal(128, 8)
Y = X[:, :3].argmax(1)
BATCHES = list(zip(X.split(64), Y.split(64), strict=True))
OPTIONS = {"optimizer": "adam", "learning_rate": 1e-2}


def mlp() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [part for size in (8, 16, 16) for part in (nn.Linear(size, 16), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(16, 3))


def ill() -> nn.Sequential:
    """One layer in the middle is saturated for good."""
    model = mlp()
    with torch.no_grad():
        model[2].weight.fill_(1.0)
        model[2].bias.fill_(1e3)
    return model


def explained(model, **options):
    return theta0.explain(model, BATCHES, "cross_entropy", **{**OPTIONS, "budget": 250, **options})


@pytest.fixture(scope="module")
def found():
    return explained(ill())


def test_the_guilty_module_is_named_and_proven_on_two_seeds(found):
    assert found.module == "2"
    assert found.verdict.startswith("Proven: with `2` re-initialized and nothing else changed, the loss after")
    assert len(found.proof.given) == len(found.proof.changed) == 2
    for given, changed in zip(found.proof.given, found.proof.changed, strict=True):
        assert len(given.losses) == len(changed.losses)
        assert changed.final < 0.75 * given.final
    assert not found.trains


def test_it_stays_within_its_budget_and_says_what_was_excluded(found):
    assert found.cost <= 250
    assert any(line.startswith("the learning rate times 10: the loss after") for line in found.excluded)
    assert found.cost == pytest.approx(
        sum(len(run.losses) for run in found.runs) + found.diagnosis.cost + len(BATCHES) / 3
    )


def test_every_face_shows_it(found, tmp_path):
    console = Console(width=80, record=True, file=StringIO())
    console.print(explanation_report(found, target="own.py"))
    page = write_page(tmp_path / "page.html", found, target="own.py").read_text()
    document = json.loads(json.dumps(explanation_document(found, target="own.py"), allow_nan=False))
    assert "Proven" in console.export_text()
    assert "Proven" in page
    assert (document["module"], document["proof"]["changed"][0]["optimizer"]) == ("2", "adam")


def test_a_network_that_trains_is_said_to(tmp_path):
    found = explained(mlp())
    assert (found.trains, found.module) == (True, "")
    assert found.verdict.startswith("It trains: ")


def test_frozen_and_pretrained_modules_are_left_alone_and_listed():
    model = ill()
    model[0].requires_grad_(False)
    found = explained(model, keep=["2"], budget=120)
    assert found.left_out == {"0": "frozen", "2": "kept, as pretrained"}
    assert found.module != "2"


class Stop(BaseException):
    pass


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", [3, 20, 60, 100])
@pytest.mark.parametrize("error", [KeyboardInterrupt, Stop])
def test_the_model_is_as_it_was_also_when_it_is_interrupted(error, call):
    model, calls = ill(), []
    model.register_forward_hook(lambda *_: None)
    model[0].weight.grad = torch.ones_like(model[0].weight)

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == call:
            raise error
        return nn.functional.cross_entropy(outputs, targets)

    before, drawn = state_of(model), randomness()
    with pytest.raises(error):
        theta0.explain(model, BATCHES, loss, **OPTIONS, budget=150)
    assert (state_of(model), randomness()) == (before, drawn)


def test_the_model_is_as_it_was_afterwards_with_divergence_and_evaluation_mode():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)).eval()
    before, drawn = state_of(model), randomness()
    theta0.explain(model, BATCHES, "cross_entropy", optimizer="sgd", learning_rate=1e20, budget=80)
    assert (state_of(model), randomness()) == (before, drawn)


@pytest.mark.parametrize("options", [{"budget": 0}, {"seconds": -1.0}])
def test_a_budget_is_positive(options):
    with pytest.raises(ValueError, match="expected positive numbers"):
        theta0.explain(mlp(), BATCHES, "cross_entropy", **options)


def test_where_nothing_can_be_tried_that_is_the_verdict():
    found = explained(mlp(), budget=1)
    assert found.verdict.startswith("Nothing could be tried")
    assert (found.trains, found.module, found.proof) == (False, "", None)


def test_weight_decay_is_left_out():
    model = mlp()
    found = explained(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=2.0), budget=400)
    assert found.verdict.startswith("Proven: with no weight decay")
