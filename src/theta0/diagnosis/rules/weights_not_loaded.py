"""Weights that a script loads, and that do not reach the module."""

from collections.abc import Iterator

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.measurements.unloaded_weights import NotLoaded


def judge(evidence: Evidence) -> Iterator[Finding]:
    """The call that leaves out most."""
    if evidence.observed.not_loaded:
        yield _finding(max(evidence.observed.not_loaded, key=lambda one: (one.given - one.loaded) / one.given))


def _finding(one: NotLoaded) -> Finding:
    left = one.given - one.loaded
    what = "none" if one.loaded == 0 else f"only {one.loaded}"
    cause = f"such as {one.example!r}, are no names of the module's"
    rename = "Print what load_state_dict returns, and rename what is missing"
    if one.prefix.startswith("-"):
        cause = f"such as {one.example!r}, lack {one.prefix[1:]!r} in front"
        rename = "Load them into the submodule that they belong to, or put it in front of each name"
    elif one.prefix:
        cause = f"such as {one.example!r}, have {one.prefix!r} too much in front"
        rename = f"Take it off: {{name.removeprefix({one.prefix!r}): value for name, value in state.items()}}"
    return Finding(
        code="weights-not-loaded",
        severity="warning" if one.loaded else "error",
        layer="",
        value=left / one.given,
        quantity="share of tensors",
        threshold=0.0,
        message=(
            f"Of {one.given} tensors given to load_state_dict(…, strict=False), {what} reached {one.module}: the names "
            f"of {left}, {cause}. What they should have replaced is still as initialized. {rename}. Load with "
            "strict=True where the networks are the same: it raises where a name is missing."
        ),
        remedy="",
        source="torch's documentation of Module.load_state_dict; exact",
        source_line=one.line,
    )


RULE = Rule(
    code="weights-not-loaded",
    judge=judge,
    place=Place.DATA,
    fault="the loading of the checkpoint",
    doc=RuleDoc(
        meaning="A checkpoint was loaded with `strict=False`, and its tensors did not reach the module: the network "
        "that was meant to be pretrained (a backbone, a teacher) still has its initial weights.",
        why="The checkpoint was saved from a network inside `DataParallel`, `DistributedDataParallel`, "
        "`torch.compile` or another module, so that each name has a prefix (`module.`, `_orig_mod.`, `model.`, "
        "`backbone.`); or the dictionary that holds the weights lies one level deeper in what was saved. "
        "`strict=False` passes over such names without an error. theta0 knows this from training scripts, which it "
        "watches.",
        numbers=(
            (
                "the share of the tensors given to `load_state_dict` that are not loaded, where none is, or where "
                "all that are missing would be loaded with one prefix removed",
                "error if none is loaded; warning if some are",
                "torch's documentation of `load_state_dict`",
            ),
        ),
        fix="""
            state = {name.removeprefix("module."): value for name, value in state.items()}
            model.load_state_dict(state)  # strict: it raises where a name is missing
            observed = ObservedTraining()
        """,
        command="rename the checkpoint's tensors, or load with `strict=True`.",
        ill="""
            from theta0.measurements.unloaded_weights import not_loaded as left_out

            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            state = {"module." + name: value for name, value in model.state_dict().items()}
            result = model.load_state_dict(state, strict=False)
            observed = ObservedTraining(not_loaded=[left_out(model, state, *result)])  # as a captured script has it
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            model.load_state_dict(dict(model.state_dict()))
        """,
        ignore="You can ignore it where the checkpoint is loaded into another network as well.",
    ),
)
