"""Parts that never train: cut recurrences, parts behind a cut, summands that left torch, optimizers without a step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import theta0
from theta0.diagnosis import diagnose

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(32, 9, 4, generator=GENERATOR)
Y = (X[:, 0, 0] > 0).long()


class Loop(nn.Module):
    """A recurrence whose state passes through a function of it and of the number of the step."""

    def __init__(self, passed, cell=nn.GRUCell):
        super().__init__()
        self.passed, self.cell, self.head = passed, cell(4, 16), nn.Linear(16, 2)

    def forward(self, x):
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state if state is None else self.passed(state, step))
        return self.head(state[0] if isinstance(state, tuple) else state)


def again(state):
    return torch.zeros_like(state).copy_(state.detach())


CUT = {
    "detach": (lambda h, step: h.detach(), nn.GRUCell),
    "data": (lambda h, step: h.data, nn.RNNCell),
    "another tensor": (lambda h, step: again(h), nn.GRUCell),
    "both states": (lambda h, step: (h[0].detach(), h[1].detach()), nn.LSTMCell),
}
WHOLE = {
    "nothing": (lambda h, step: h, nn.GRUCell),
    "between chunks": (lambda h, step: h.detach() if step % 4 == 0 else h, nn.GRUCell),
    "one of two states": (lambda h, step: (h[0].detach(), h[1]), nn.LSTMCell),
}


def found(model, batches, loss="cross_entropy", **options):
    return [f for f in diagnose(model, batches, loss, **{"probe_steps": 0} | options).findings if f.severity != "note"]


@pytest.mark.parametrize("name", CUT)
def test_a_recurrence_that_is_cut_at_every_step_is_named(name):
    torch.manual_seed(0)
    (finding,) = [f for f in found(Loop(*CUT[name]), [(X, Y)]) if f.code == "gradient-cut"]
    assert (finding.severity, finding.value) == ("warning", 8.0)
    assert finding.source_line


@pytest.mark.parametrize("name", WHOLE)
def test_one_whose_gradient_passes_some_steps_is_not(name):
    torch.manual_seed(0)
    assert not [f for f in found(Loop(*WHOLE[name]), [(X, Y)]) if f.code == "gradient-cut"]


class Feedback(nn.Module):
    """Each output, as a number, is the next input; the state keeps its graph, or there is none."""

    def __init__(self, *, keeps):
        super().__init__()
        self.keeps = keeps
        self.embed, self.cell, self.head = nn.Embedding(3, 8), nn.GRUCell(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        token, state, outputs = x, None, []
        for _ in range(5):
            state = self.cell(self.embed(token), state)
            outputs.append(self.head(state))
            token = outputs[-1].argmax(1).detach()
        return torch.stack(outputs, 2)


def test_inputs_that_are_chosen_from_outputs_are_no_cut_where_a_state_passes():
    torch.manual_seed(0)
    tokens = torch.randint(0, 3, (32,))
    targets = (tokens[:, None] + torch.arange(5)) % 3
    assert not [f for f in found(Feedback(keeps=True), [(tokens, targets)]) if f.code == "gradient-cut"]


class Parts(nn.Module):
    """A large body and a small one, of which one passes through a function."""

    def __init__(self, passed):
        super().__init__()
        self.passed = passed
        self.large, self.small, self.head = nn.Linear(4, 200), nn.Linear(4, 8), nn.Linear(208, 2)

    def forward(self, x):
        return self.head(torch.cat([torch.tanh(self.large(x)), self.passed(torch.tanh(self.small(x)))], 1))


BATCHES = [(X[:, 0], Y), (X[:, 1], Y)]


@pytest.mark.parametrize("passed", [lambda h: h.detach(), lambda h: h.data, lambda h: (h > 0).float()])
def test_a_part_of_the_model_that_a_cut_keeps_from_training_is_an_error(passed):
    torch.manual_seed(0)
    (finding,) = [f for f in found(Parts(passed), BATCHES) if f.code == "gradient-cut"]
    assert finding.severity == "error"
    assert "all of small" in finding.message


def test_a_large_body_that_the_optimizer_does_not_hold_is_not_to_be_trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def step(model, batch):
        with torch.no_grad():
            features = model[:2](batch[0])
        return F.cross_entropy(model[2](features), batch[1])

    cuts = []
    for part in (model, model[2]):  # another optimizer that holds the body would train it
        optimizer = torch.optim.SGD(part.parameters(), 0.1)
        judged = found(model, BATCHES, None, step=step, optimizer=optimizer)
        cuts.append([f.severity for f in judged if f.code == "gradient-cut"])
        del optimizer, judged
    assert cuts == [["error"], []]


def test_not_where_it_is_frozen_or_the_optimizer_does_not_hold_it():
    torch.manual_seed(0)
    model = Parts(lambda h: h.detach())
    optimizer = torch.optim.SGD([*model.large.parameters(), *model.head.parameters()], 0.1)
    cut = [f.severity for f in found(model, BATCHES, optimizer=optimizer) if f.code == "gradient-cut"]
    assert cut == []
    model.small.requires_grad_(False)
    assert not [f for f in found(model, BATCHES) if f.code == "gradient-cut"]


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.place = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.classes(h), self.place(h)


def said(summand):
    def step(model, batch):
        classes, place = model(batch[0])
        return F.cross_entropy(classes, batch[1]) + summand(place, batch[0])

    torch.manual_seed(0)
    findings = diagnose(Heads(), BATCHES, step=step, probe_steps=0).findings
    return [(f.code, f.severity) for f in findings if f.code in ("unused-parameters", "gradient-cut")]


def test_a_head_whose_summand_left_torch_is_an_error_and_one_that_no_summand_has_a_note():
    assert said(lambda place, x: F.l1_loss(torch.tensor(place.tolist()), x[:, :1])) == [("gradient-cut", "error")]
    assert said(lambda place, x: (place - x[:, :1]).abs().mean().item()) == [("gradient-cut", "error")]
    assert said(lambda place, x: 0.0) == [("unused-parameters", "note")]
    assert said(lambda place, x: 1.0) == [("unused-parameters", "note")]
    assert said(lambda place, x: F.l1_loss(place, x[:, :1])) == []


HEADS = """
import torch
from torch import nn
torch.manual_seed(0)
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classes, self.place = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 1)
    def forward(self, x):
        h = torch.relu(self.body(x))
        return self.classes(h), self.place(h)
net = Heads()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(9):
    x = torch.randn(16, 4)
    classes, place = net(x)
    loss = nn.functional.cross_entropy(classes, (x[:, 0] > 0).long()) + {summand}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("summand", "severity"),
    [("nn.functional.l1_loss(torch.tensor(place.tolist()), x[:, :1])", "error"), ("1.0", "note")],
)
def test_in_a_script_a_number_that_no_parameter_changes_tells_such_a_head(summand, severity, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(HEADS.format(summand=summand))
    findings = theta0.diagnose(**theta0.capture(path).arguments, probe_steps=0).findings
    assert [f.severity for f in findings if f.code == "unused-parameters"] == [severity]


ADVERSARIES = """
import torch
from torch import nn
torch.manual_seed(0)
maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
made, judged = torch.optim.SGD(maker.parameters(), 0.01), torch.optim.SGD(judge.parameters(), 0.01)
for _ in range(12):
    real, fake = torch.randn(16, 8), maker(torch.randn(16, 4))
    judged.zero_grad()
    (nn.functional.softplus(-judge(real)) + nn.functional.softplus(judge(fake.detach()))).mean().backward()
    {step}
    made.zero_grad()
    nn.functional.softplus(-judge(fake)).mean().backward()
    made.step()
    {after}
"""


ONE = """
import torch
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(9):
    optimizer.zero_grad()
    net(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
"""


def adversaries(tmp_path, step="judged.step()", after="pass"):
    path = tmp_path / "train.py"
    path.write_text(ADVERSARIES.format(step=step, after=after))
    return theta0.capture(path).steps


FROZEN_MEANWHILE = """
import torch
from torch import nn

torch.manual_seed(0)
made, judged = nn.Linear(4, 2), nn.Linear(2, 1)
make, judge = (torch.optim.RMSprop(m.parameters(), lr=1e-3) for m in (made, judged))
for _ in range(40):
    real, noise = torch.randn(8, 2), torch.randn(8, 4)
    with torch.no_grad():
        fake = made(noise)
    loss = judged(fake).mean() - judged(real).mean()
    judge.zero_grad()
    loss.backward()
    judge.step()
    judged.requires_grad_(False)
    loss = -judged(made(noise)).mean()
    make.zero_grad()
    loss.backward()
    make.step()
    judged.requires_grad_(True)
"""


def frozen_meanwhile(tmp_path):
    """A critic without a gradient while the generator trains; it is not clipped, so only the game bounds its loss."""
    path = tmp_path / "frozen.py"
    path.write_text(FROZEN_MEANWHILE)
    return next(
        step for step in theta0.capture(path).steps if step.optimizer.param_groups[0]["params"][0].shape == (2, 4)
    )


@pytest.mark.slow
def test_an_optimizer_that_never_steps_is_judged_by_the_gradients_that_are_reset(tmp_path):
    assert sorted(step.observed.gradient_kept for step in adversaries(tmp_path, "pass")) == [0.0, pytest.approx(1.0)]
    assert [step.observed.gradient_kept for step in adversaries(tmp_path)] == pytest.approx([1.0, 1.0])


@pytest.mark.slow
def test_a_loss_is_opposed_where_another_optimizer_trains_what_it_depends_on(tmp_path):
    assert [step.observed.opposed for step in adversaries(tmp_path)] == [True, True]
    assert frozen_meanwhile(tmp_path).observed.opposed
    one = tmp_path / "one.py"

    one.write_text(ONE)
    assert not theta0.capture(one).steps[0].observed.opposed
    one.write_text(ONE + "    [p.data.clamp_(-0.01, 0.01) for p in net.parameters()]\n")
    assert theta0.capture(one).steps[0].observed.opposed
