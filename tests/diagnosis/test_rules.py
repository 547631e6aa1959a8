"""One finding, one file: rules, their documentation, and a rule of your own."""

import importlib
import pkgutil
import re
from io import StringIO
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch import nn

import theta0
from cases import normal
from cases import unprobed as diagnose
from states import state_of
from theta0._batches import load_batches
from theta0.diagnosis import PROBE_STEPS, RULES, Evidence, Finding, ObservedTraining, Place, Rule, RuleDoc, rules
from theta0.diagnosis import evidence as module
from theta0.diagnosis.documentation import PRELUDE, documentation, overview
from theta0.reports import diagnosis_document, diagnosis_report, write_page
from theta0.reports.finding_pages import finding_pages
from theta0.treatment import REMEDIES

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
PAGES = Path(__file__).parents[2] / "docs" / "findings"


# ── A rule of your own ───────────────────────────────────────────────────────────────────────────────────────────────
BIASED = 5.0


def judge(evidence: Evidence) -> Finding | None:
    weights = {name: n["value_rms"] for name, n in evidence.table.items() if name.endswith(".bias")}
    name = max(weights, key=weights.get, default=None)
    if name is None or weights[name] < BIASED:
        return None
    message = f"The bias {name!r} has root mean square {weights[name]:.2g}. Start it at zero."
    return Finding("large-bias", "warning", name, weights[name], BIASED, message, "", "judgement")


LARGE_BIAS = Rule(
    "large-bias",
    judge,
    Place.SYMMETRY,
    RuleDoc(meaning="A bias is far larger than what it is added to.", fix="nn.init.zeros_(model[0].bias)"),
    brings=frozenset({"saturated-units", "constant-output"}),
    remedies=("redraw",),
)


def biased():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    nn.init.constant_(model[0].bias, 50.0)
    return model


DATA = [(normal(32, 6), torch.arange(32) % 3)]


def test_a_rule_of_your_own_is_judged_with_the_others():
    model = biased()
    before = state_of(model)
    found = diagnose(model, DATA, "cross_entropy", rules=[LARGE_BIAS])
    assert state_of(model) == before
    own = next(f for f in found.findings if f.code == "large-bias")
    assert (own.layer, own.value, own.cause) == ("0.bias", 50.0, "")
    plain = diagnose(model, DATA, "cross_entropy")
    assert [f.code for f in found.findings if f.code != "large-bias"] == [f.code for f in plain.findings]
    assert found.cost == plain.cost


def test_what_follows_from_it_names_it():
    error = Rule("large-bias", lambda e: [f(e) for f in (errors,)], Place.SYMMETRY, LARGE_BIAS.doc, LARGE_BIAS.brings)
    found = diagnose(biased(), DATA, "cross_entropy", rules=[error]).findings
    assert found[0].code == "large-bias"
    assert {f.cause for f in found if f.code in LARGE_BIAS.brings} == {"large-bias"}


def errors(evidence):
    found = judge(evidence)
    return Finding("large-bias", "error", found.layer, found.value, BIASED, found.message, "", "judgement")


def test_every_face_shows_it(tmp_path):
    found = diagnose(biased(), DATA, "cross_entropy", rules=[LARGE_BIAS])
    console = Console(width=100, record=True, file=StringIO())
    console.print(diagnosis_report(found, target="own.py"))
    shown = (
        console.export_text(),
        write_page(tmp_path / "page.html", found, target="own.py").read_text(),
        str(diagnosis_document(found, target="own.py")),
    )
    for text in (*shown, overview([*RULES, LARGE_BIAS]), documentation("large-bias", [LARGE_BIAS])):
        assert "large-bias" in text
    assert "Start it at zero" in shown[1]
    assert "nn.init.zeros_(model[0].bias)" in documentation("large-bias", [LARGE_BIAS])


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (Rule("dead-units", judge, Place.DATA, RuleDoc("")), "got 'dead-units' twice"),
        (Rule("other", judge, Place.DATA, RuleDoc("")), "findings of the code 'other' from its rule, got 'large-bias'"),
    ],
)
def test_codes_are_a_rules_own(own, message):
    with pytest.raises(ValueError, match=message):
        diagnose(biased(), DATA, "cross_entropy", rules=[own])


# ── The rules ────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_each_file_is_a_rule_of_its_name_and_is_judged():
    names = [module.name for module in pkgutil.iter_modules(rules.__path__)]
    found = {name: importlib.import_module(f"{rules.__name__}.{name}").RULE for name in names}
    assert {name: rule.code for name, rule in found.items()} == {name: name.replace("_", "-") for name in names}
    assert sorted(rule.code for rule in RULES) == sorted(rule.code for rule in found.values())


@each_rule
def test_consequences_and_remedies_exist(rule):
    assert rule.brings <= {other.code for other in RULES} - {rule.code}
    assert set(rule.remedies) <= set(REMEDIES)
    assert (rule.fault == "the start") or not rule.remedies  # another start answers only what is the start's


@each_rule
def test_the_documentation_is_complete(rule):
    doc = rule.doc
    assert all((doc.meaning, doc.why, doc.numbers, doc.fix, doc.command, doc.ill, doc.healthy, doc.ignore))
    text = documentation(rule.code)
    assert text.startswith(f"# {rule.code}\n")
    assert all(name in text for name in (*rule.brings, *rule.remedies, rule.fault))


def test_an_unknown_code_lists_those_that_are_near_or_all():
    with pytest.raises(ValueError, match=r"got 'dead-unit'; did you mean dead-units"):
        documentation("dead-unit")
    with pytest.raises(ValueError, match="got 'zzz'; there are broadcast-loss, "):
        documentation("zzz")


def example(*parts):
    scope = {"learning_rate": None, "optimizer": None, "observed": ObservedTraining()}
    with torch.random.fork_rng():
        for part in (PRELUDE, *parts):
            exec(dedent(part), scope)
    return SimpleNamespace(**scope)


TRIED = {"does-not-train", "no-signal"}  # what only short runs show


def findings_of(start, steps):
    options = {name: getattr(start, name) for name in ("optimizer", "learning_rate", "observed")}
    return theta0.diagnose(start.model, start.batches, start.loss, probe_steps=steps, **options).findings


def codes_of(start, steps):
    return {f.code for f in findings_of(start, steps)}


def treat_by_command(finding, start):
    """Apply the remedy that a finding's command names; one that does not apply to the model raises."""
    named = re.search(r"theta0 treat TARGET --with ([a-z-]+)", finding.remedy)
    if named is not None:
        REMEDIES[named[1]](start.model, start.batches, start.loss, generator=torch.Generator().manual_seed(0))


@each_rule
def test_its_examples_run_and_its_fix_fixes(rule):
    steps = PROBE_STEPS if rule.code in TRIED else 0
    ill = example(rule.doc.ill)
    found = findings_of(ill, steps)
    assert rule.code in {f.code for f in found}
    treat_by_command(next(f for f in found if f.code == rule.code), ill)
    assert rule.code not in codes_of(example(rule.doc.healthy), steps)
    assert rule.code not in codes_of(example(rule.doc.ill, rule.doc.fix), steps)


@pytest.mark.parametrize(("make", "remedy"), [(nn.RNN, "recurrent"), (nn.LSTM, "long-memory"), (nn.GRU, "long-memory")])
def test_the_remedy_for_lost_time_steps_applies_to_the_layer(make, remedy):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = make(4, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    torch.manual_seed(0)
    model, batches = Last(), [(normal(16, 200, 4), torch.arange(16) % 3)]
    start = SimpleNamespace(model=model, batches=batches, loss="cross_entropy")
    found = diagnose(model, batches, "cross_entropy").findings
    finding = next(f for f in found if f.code == "vanishing-gradients" and f.layer == "rnn")
    assert f"--with {remedy} " in finding.remedy
    before = {name: value.clone() for name, value in model.rnn.state_dict().items()}
    treat_by_command(finding, start)
    assert any(not torch.equal(value, before[name]) for name, value in model.rnn.state_dict().items())


def test_the_pages_are_written_from_the_rules():
    assert {path.name: path.read_text() for path in PAGES.glob("*.md")} == finding_pages(), "run `make docs-findings`"


# ── The evidence ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_each_quantity_is_measured_once_and_its_cost_counted_then(monkeypatch):
    start = example("model = nn.Linear(8, 3)")
    calls = []
    evidence = Evidence(start.model, load_batches(start.batches, start.model), "cross_entropy")
    real = module.observed
    monkeypatch.setattr(module, "observed", lambda *arguments: calls.append(1) or real(*arguments))
    assert (calls, evidence.cost) == ([], 0)
    for quantity in ("inspection", "residual_stream", "table", "records"):
        assert getattr(evidence, quantity) is getattr(evidence, quantity)
        assert evidence.cost == len(start.batches)
    assert calls == [1]
