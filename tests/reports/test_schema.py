"""The schema file of `diagnose --json`: it is what the results' types say, and documents are valid by it."""

import json
from importlib.resources import files

import pytest
from torch import nn

from cases import labels, normal
from theta0 import diagnose
from theta0.reports import diagnosis_document
from theta0.reports.schema import diagnosis_schema

SHIPPED = json.loads(files("theta0.reports").joinpath("diagnosis.schema.json").read_text())
BATCHES = [(normal(16, 8, seed=i), labels(16, seed=9 + i)) for i in range(2)]


def test_the_shipped_file_is_what_the_types_say():
    assert diagnosis_schema() == SHIPPED, "run make docs-findings"


def test_every_key_is_described():
    for name, definition in SHIPPED["$defs"].items():
        assert all(p["description"] for p in definition["properties"].values()), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["healthy", "ill", "without a loss", "poisoned"])
def test_documents_are_valid(kind):
    jsonschema = pytest.importorskip("jsonschema")
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    if kind == "ill":
        model = nn.Sequential(*(p for _ in range(12) for p in (nn.Linear(8, 8), nn.Sigmoid())), nn.Linear(8, 3))
    if kind == "poisoned":
        model[0].weight.data[0, 0] = float("nan")
    loss = None if kind == "without a loss" else "cross_entropy"
    batches = [x for x, _ in BATCHES] if loss is None else BATCHES
    options = {} if loss is None else {"optimizer": "adam", "learning_rate": 0.01}
    document = diagnosis_document(diagnose(model, batches, loss, **options), target="train.py")
    jsonschema.Draft202012Validator(SHIPPED).validate(json.loads(json.dumps(document, allow_nan=False)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SHIPPED).validate(document | {"healthy": "yes"})
