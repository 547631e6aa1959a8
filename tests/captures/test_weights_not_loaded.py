"""Checkpoints that a script loads with strict=False, and that do not reach its network."""

import pytest
import torch
from torch import nn

import theta0
from theta0.measurements.unloaded_weights import not_loaded

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
saved = {name: value.clone() for name, value in teacher.state_dict().items()}
LOAD
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
x = torch.randn(128, 8)
for step in range(20):
    with torch.no_grad():
        target = teacher(x).softmax(1)
    loss = nn.functional.cross_entropy(student(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WRAPPED = 'teacher.load_state_dict({"module." + k: v for k, v in saved.items()}, strict=False)'
ILL = {
    "a prefix too much": (WRAPPED, "error", "removeprefix('module.')"),
    "a prefix too little": (
        "wrapped = nn.ModuleDict({'body': teacher}); wrapped.load_state_dict(saved, strict=False)",
        "error",
        "lack 'body.' in front",
    ),
    "one level too high": (
        'teacher.load_state_dict({"state": torch.ones(1), **{}}, strict=False)',
        "error",
        "no names",
    ),
    "half of it": (
        'teacher.load_state_dict({k if k[0] == "0" else "_orig_mod." + k: v for k, v in saved.items()}, strict=False)',
        "warning",
        "only 2",
    ),
}
HEALTHY = {
    "all of it": "teacher.load_state_dict(saved, strict=False)",
    "strict": "teacher.load_state_dict(saved)",
    "another head": 'saved["3.weight"] = torch.ones(5, 16); teacher.load_state_dict(saved, strict=False)',
    "nothing to load": "teacher.load_state_dict({}, strict=False)",
}


def found(tmp_path, load):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("LOAD", load))
    captured = theta0.capture(path)
    result = theta0.diagnose(**captured.arguments, probe_steps=0)
    return [finding for finding in result.findings if finding.code == "weights-not-loaded"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ILL)
def test_what_does_not_reach_the_module_is_found_with_its_line(name, tmp_path):
    load, severity, said = ILL[name]
    (finding,) = found(tmp_path, load)
    assert finding.severity == severity
    assert said in finding.message
    assert ".load_state_dict(" in finding.source_line
    assert finding.source_line.startswith("train.py:9")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HEALTHY)
def test_other_loads_are_no_finding(name, tmp_path):
    assert found(tmp_path, HEALTHY[name]) == []


def test_torchs_own_method_is_back_after_a_script(tmp_path):
    before = nn.Module.load_state_dict
    found(tmp_path, WRAPPED)
    assert nn.Module.load_state_dict is before


def test_tensors_of_another_shape_are_another_head():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    given = {"0.weight": torch.ones(4, 4), "module.1.weight": torch.ones(7, 4)}
    assert not_loaded(model, given, *model.load_state_dict(given, strict=False)) is None
    given["module.1.weight"] = torch.ones(2, 4)
    assert not_loaded(model, given, *model.load_state_dict(given, strict=False)).prefix == "module."


def test_names_that_a_module_changes_itself_as_it_loads_are_loaded():
    """As old checkpoints of a module that has been rewritten."""
    model = nn.Sequential(nn.Linear(4, 2))

    def renamed(module, state, prefix, *_):
        for name in ("weight", "bias"):
            state[prefix + name] = state.pop(f"{prefix}old_{name}")

    model[0].register_load_state_dict_pre_hook(renamed)
    given = {"0.old_weight": torch.ones(2, 4), "0.old_bias": torch.ones(2)}
    assert not_loaded(model, given, *model.load_state_dict(given, strict=False)) is None
