"""What rules judge: everything that can be measured at a starting point, each quantity when it is first asked for."""

import math
import time
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import nn

from theta0._batches import Batch, checked_forward, with_shapes
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._models import StepInputs, main_output
from theta0._progress import Progress, silent
from theta0._ranks import from_first
from theta0._records import Record, Table, by_layer
from theta0._state import preserve_state
from theta0._trace.operations import Operation
from theta0._training import count_gradients
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.allowed_rate import LIMIT, allowed_rate
from theta0.diagnosis.chain import Link, chain
from theta0.experiments.endless_fall import MOST as ENDLESS_COST
from theta0.experiments.endless_fall import EndlessFall, endless_fall, endless_fall_later
from theta0.experiments.estimates import VECTORS, announce_memory, announce_time, lacking
from theta0.experiments.free_outputs import FreeOutputs, free_outputs
from theta0.experiments.held_out import outputs_after_training
from theta0.experiments.longer_run import longer_run
from theta0.experiments.mismatched_pairs import Pairing, pairing
from theta0.experiments.opposed_terms import DWARFED, SHARES, OpposedTerms, opposed_terms
from theta0.experiments.optimizers import OptimizerKind, optimizer_kind
from theta0.experiments.probe import FACTORS, PATIENT, RUNGS, ExperimentRun, Probe, probe
from theta0.experiments.shuffled_labels import LEAST_SAMPLES, ShuffledLabels, permutable, shuffled_labels
from theta0.experiments.weight_decay import PULL, SHRINKING, DecayRuns, decay_runs
from theta0.measurements.alike_outputs import MOST as MOST_ALIKE
from theta0.measurements.alike_outputs import AlikeOutputs, alike_outputs
from theta0.measurements.cancelled_gradient import GRADIENTS as TWICE
from theta0.measurements.cancelled_gradient import CancelledGradient, cancelled_gradient
from theta0.measurements.causality import SAMPLES as AHEAD
from theta0.measurements.causality import LookAhead, candidate, look_ahead
from theta0.measurements.dependence import CLEAR, dependence
from theta0.measurements.frozen_draws import feeds_trained, is_drawn
from theta0.measurements.gradient_paths import GradientPaths, gradient_paths
from theta0.measurements.inspection import Inspection
from theta0.measurements.loss_terms import loose_summand
from theta0.measurements.mixing import SAMPLES, Mixing, mixing
from theta0.measurements.non_finite import NonFiniteOrigin, non_finite_origin
from theta0.measurements.observed_training import NOTHING_OBSERVED, ObservedTraining
from theta0.measurements.recurrences import CutRecurrence, cut_recurrence
from theta0.measurements.residual_stream import ResidualStream
from theta0.measurements.signals import Observation, observed
from theta0.measurements.single_axis import single_axis
from theta0.measurements.zero_gradients import STEPS, still_zero

_FALLEN = 0.4  # of the first loss, where no constant is known
LONGEST = 40
_PROBED = 30  # gradients that are kept for a probe that comes later
_HELD_OUT_STEPS = 40  # of training, before targets are held against outputs on samples not trained on
_BESIDE, _LATER = 20, 8  # gradients that all else may take beside a probe, and of these what is measured after it
_SMALL = 1e-4  # of a gradient's norm: above, it is not asked whether it is rounding
BY_HEART = 0.25  # of what there is to learn: a short run that gains more has not learnt samples by heart


class Evidence:  # a class, because it keeps what was measured and counts what that cost
    """A starting point and what was measured of it.

    Each quantity is measured when a rule first asks for it, and once. The model is left bit-identical by all of them.

    Attributes:
        model: the model, its lazy parameters made.
        batches: the batches, as `(inputs, targets)`.
        loss: a name, a callable, or None.
        optimizer: the name of the known kind that it is, or comes nearest to.
        kind: the one that will train it, as it can be made again; SGD where its step evaluates the loss itself.
        rate: the learning rate that it will be given; None where the user names none.
        observed: what a captured script shows of its training beyond these.
        probe_steps: gradients that short training runs may take; 0 leaves them out.
        not_measured: what could not be looked at, in sentences; rules add to it.
        cost: what has been measured so far, in gradients.
        unprobed: why there are no short runs, where there are none.
        deadline: by `time.monotonic`, after which no short run begins.
        progress: called with what is being done and the share of the most that it may cost.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        loss: Loss = None,
        *,
        optimizer: str | OptimizerKind | None = None,
        rate: float | None = None,
        observed: ObservedTraining = NOTHING_OBSERVED,
        probe_steps: int = 0,
    ) -> None:
        self.observed, self.probe_steps, self.not_measured = observed, probe_steps, list[str]()
        if observed.later:
            self.not_measured.append(f"The script trains again at {observed.later}.")
        self.model = with_shapes(model, batches[0])
        self.kind = optimizer if isinstance(optimizer, OptimizerKind) else optimizer_kind(optimizer, self.model)
        if self.kind.closure:
            self.not_measured.append(f"The learning rate: a step of {self.kind.name} evaluates the loss several times.")
            self.kind, optimizer, rate = optimizer_kind(None, self.model), None, None
        # Where nothing is said of how it will be trained, the probe takes what trains most networks.
        self.probed = self.kind if optimizer or rate is not None else optimizer_kind("adam", self.model)
        self.optimizer = self.kind.nearest
        self.batches, self.loss, self.rate = list(batches), loss, rate
        self.cost, self.pace, self.deadline = 0.0, 0.0, math.inf
        self.unprobed = "the probe was turned off"
        self.progress: Progress = silent

    def spend(self, gradients: float) -> None:
        """Count the cost of a measurement; every property of this class does, and so does a rule that measures."""
        self.cost += gradients
        self.tell("measuring the starting point")

    def tell(self, text: str, more: float = 0.0) -> None:
        """Report what is being done, and what it has cost beyond what is counted."""
        most = len(self.batches) + _BESIDE + self.probe_steps
        self.progress(text, (self.cost + more) / most)

    def announce(self) -> None:
        """Say beforehand what passes, short runs and the curvature will hold, where that is much.

        Short runs that do not fit into what is free are left out.
        """
        waiting = len(FACTORS) if self.probe_steps else 0
        judged = self.rate is not None and self.kind.settings is not None
        announce_memory(
            self.progress,
            self.model,
            snapshots=1 + (waiting and waiting + 1),
            kind=self.probed if self.probe_steps else None,
            waiting=waiting,
            vectors=VECTORS if judged else 0,
            instead="what does not fit is left out",
        )
        short = lacking(self.model, snapshots=waiting + 2, kind=self.probed, waiting=waiting) if waiting else ""
        if short:
            self.probe_steps, self.unprobed = 0, short

    @cached_property
    def observation(self) -> Observation:
        """What one forward and backward pass per batch shows."""
        began = time.monotonic()
        found = observed(self.model, self.batches, self.loss)
        self.pace = (time.monotonic() - began) / len(self.batches)
        self.spend(float(len(self.batches)))
        announce_time(self.progress, self.probe_steps, self.pace, self.deadline - time.monotonic())
        complex_ones = [name for name, p in self.parameters.items() if p.is_complex()]
        if complex_ones:
            more = " and others" if len(complex_ones) > 3 else ""
            self.not_measured.append(
                f"Signals where complex weights are applied ({', '.join(complex_ones[:3])}{more})."
            )
        return found

    @property
    def records(self) -> list[Record]:
        """Every number that these passes give: of layers, parameters and the network."""
        return self.observation.records

    @cached_property
    def table(self) -> Table:
        """The records as `{layer: {quantity: value}}`; the layer "" is the whole network."""
        return by_layer(self.records)

    @property
    def network(self) -> dict[str, float]:
        """The records of the whole network."""
        return self.table.get("", {})

    @cached_property
    def calls(self) -> list[Link]:
        """The layer calls with preactivations, in execution order."""
        return chain(self.table)

    @cached_property
    def links(self) -> list[Link]:
        """Those whose preactivations are finite."""
        return [link for link in self.calls if math.isfinite(link.rms)]

    @property
    def inspection(self) -> Inspection:
        """What the first pass meets from the data to the loss: inputs, batch statistics, what the loss is given."""
        return self.observation.inspection

    @property
    def residual_stream(self) -> ResidualStream:
        """The residual branches of the first pass, and the sums that they make."""
        return self.observation.stream

    @property
    def has_loss(self) -> bool:
        """Whether there was a loss to measure."""
        return "loss" in self.network

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by name; a walk over a model's modules for each rule would add up."""
        return dict(self.model.named_parameters())

    @cached_property
    def trained(self) -> list[str]:
        """The parameters that are trained."""
        return [name for name, p in self.parameters.items() if p.requires_grad]

    @property
    def left(self) -> int:
        """Gradients that further short runs may take, so that all stays within the probe's steps and 20 more."""
        most = min(self.probe_steps, self.probe_steps + _BESIDE - _LATER - self.cost, self.affordable)
        return max(1, int(most))

    @property
    def affordable(self) -> float:
        """Gradients that fit into the time left, at the pace of the first passes."""
        if self.deadline == math.inf:
            return math.inf
        return from_first((self.deadline - time.monotonic()) / max(self.pace, 1e-9))

    @cached_property
    def waking(self) -> list[str]:
        """Trained weights and gains that are all zero and get a gradient: what they silence is heard after a step."""
        silent = [name for name in self.trained if self.table.get(name, {}).get("value_rms") == 0.0]
        return [
            name
            for name in silent
            if not name.endswith("bias") and self.table[name].get("gradient_norm", 0.0) > 0 and name not in self.stuck
        ]

    @cached_property
    def stuck(self) -> list[str]:
        """The trained parameters whose gradient is exactly zero, and still is after probe steps on a copy."""
        zero = [name for name in self.trained if self.table[name].get("gradient_norm") == 0.0]
        if not zero or not math.isfinite(self.network["loss"]):
            return []
        model, batch, rate = self.model, self.batches[0], self.rate or 0.01
        found = still_zero(model, batch, self.loss, zero, optimizer=self.optimizer, rate=rate)
        self.spend(STEPS + 1.0)
        return found

    @cached_property
    def cancelled_gradient(self) -> CancelledGradient | None:
        """Whether a gradient is nothing but rounding; asked where it is small."""
        norms = [self.table.get(name, {}).get("gradient_norm", 0.0) for name in self.trained]
        if not self.has_loss or not self.finite or not 0 < math.hypot(*norms) < _SMALL:
            return None
        self.spend(TWICE)
        return cancelled_gradient(self.model, self.batches[0], self.loss)

    @cached_property
    def drawn_features(self) -> bool:
        """Whether the layers in front of all trained ones are frozen as they were drawn, and these learn from them."""
        weights = [f"{link.layer.partition('#')[0]}.weight" for link in self.links]
        known = list(dict.fromkeys(name for name in weights if name in self.parameters))
        frozen = [name for name in known if not self.parameters[name].requires_grad]
        in_front = bool(frozen) and known[: len(frozen)] == frozen and len(known) > len(frozen)
        if not in_front or not all(is_drawn(self.parameters[name].detach()) for name in frozen):
            return False
        self.spend(count_gradients(forward=1))
        first = {name: self.parameters[name] for name in frozen}
        return feeds_trained(self.model, self.batches[0], self.loss, first)

    @cached_property
    def single_axis(self) -> Operation | None:
        """A function that runs along an axis of length one; asked where the whole gradient is nothing."""
        self.spend(count_gradients(forward=1))
        return single_axis(self.model, self.batches[0], self.loss)

    @cached_property
    def finite(self) -> bool:
        """Whether the layers' outputs, the loss and the gradients are."""
        layers = [numbers for numbers in self.table.values() if "preactivation_variance" in numbers]
        return (
            not any(numbers.get("nonfinite_share") for numbers in layers)
            and math.isfinite(self.network.get("loss", 0.0))
            and all(
                math.isfinite(numbers.get(quantity, 0.0))
                for numbers in self.table.values()
                for quantity in ("backward_norm", "gradient_norm")
            )
        )

    @cached_property
    def free_outputs(self) -> FreeOutputs | None:
        """What the loss can reach with outputs chosen freely; None without a probe, or where it cannot be found."""
        if not self.probe_steps or self.loss is None or not self.has_loss or not self.finite:
            return None
        self.spend(count_gradients(forward=len(self.batches)))
        try:
            return free_outputs(self.model, self.batches, self.loss)
        except (UserCodeError, RuntimeError):
            return None

    @cached_property
    def endless_fall(self) -> EndlessFall | None:
        """A direction in which the loss falls without end; None without a probe, or where something else bounds it."""
        if not self._may_be_endless or self.affordable < ENDLESS_COST:
            return None
        found, cost = endless_fall(self.model, self.batches[0], self.loss)
        self.spend(cost)
        return found

    @cached_property
    def endless_fall_later(self) -> EndlessFall | None:
        """The same after a short run that brought the loss below zero."""
        found = self.probe if self._may_be_endless and self.endless_fall is None else None
        run = None if found is None or found.best is None else found.at(found.best)
        if found is None or run is None or not run.final < 0 <= found.first:
            return None
        steps = len(run.losses)
        if self.left < steps + ENDLESS_COST:
            return None
        later, cost = endless_fall_later(self.model, self.batches, self.loss, self.probed, run.rate, steps=steps)
        self.spend(cost)
        return later

    @property
    def _may_be_endless(self) -> bool:
        judged = bool(self.probe_steps) and self.has_loss and bool(self.trained) and self.finite
        bounded = self.observed.opposed or self.inspection.bounded
        return judged and not bounded and not self.inspection.breaches

    @cached_property
    def probe(self) -> Probe | None:
        """Whether short runs from this start train; None where they were not asked for, or nothing can be trained."""
        if not self.probe_steps or not self.has_loss or not self.trained or not self.finite:
            return None
        if self.affordable < RUNGS[0]:
            reason = f"{RUNGS[0]} steps do not fit into the time given"
            return Probe("undecided", self.rate, (), None, math.nan, None, math.nan, math.nan, 0.0, reason=reason)
        if self.rate is not None:
            self.opposed_terms, self.pairing, self.decay_runs  # noqa: B018 - first, while there are gradients left
        allowed = None if self.rate is None else self.allowed_rate
        found = probe(
            self.model,
            self.batches,
            self.loss,
            self.probed,
            self.rate,
            free=self.free_outputs,
            other_rates=[] if allowed is None or allowed.value is None else [allowed.value],
            steps=max(self.left, min(self.probe_steps, RUNGS[0] + 2)),  # one short run at least
            patient=self.affordable > 3 * PATIENT,
            stepped=lambda steps: self.tell("training briefly", steps),
        )
        self.spend(found.cost)
        return found

    @property
    def nothing_trains(self) -> bool:
        """Whether short runs were made and none of them trains; False without a probe."""
        found = self.probe
        return found is not None and bool(found.runs) and not any(run.outcome == "trains" for run in found.runs)

    @cached_property
    def training(self) -> ExperimentRun | None:
        """A run at the given rate that gains a quarter of what there is to learn; None where none is seen to."""
        found = self.probe
        run = None if found is None else found.at(self.rate)
        if found is None or run is None or run.outcome != "trains":
            return None
        reference = found.first if found.constant is None else min(found.first, found.constant)
        share = BY_HEART if found.constant is not None else _FALLEN
        goal = reference - share * abs(reference - found.floor)
        if run.final < goal:
            return run
        if len(run.losses) >= LONGEST:
            return None
        longer = longer_run(
            self.model, self.batches, self.loss, self.probed, run.rate, goal=goal, most=min(LONGEST, self.left)
        )
        self.spend(0.0 if longer is None else len(longer.losses))
        return longer if longer is not None and longer.outcome == "trains" else None

    @cached_property
    def hardly_learnt(self) -> bool:
        """Whether no short run gained more than can be learnt by heart; False where that is not known.

        Where a rate is given, the run at that rate: a faster one may have learnt the samples by heart.
        """
        found = self.probe
        if found is None or found.constant is None or not found.runs or found.trains_much(BY_HEART, self.rate):
            return False
        return sum(batch.size for batch in self.batches) >= LEAST_SAMPLES

    @cached_property
    def dependence(self) -> float | None:
        """How clearly the targets depend on the inputs, in standard deviations; asked where little is learnt."""
        of_inputs = dependence(self.batches, [None] * len(self.batches))
        if of_inputs is None or of_inputs >= CLEAR:
            return of_inputs
        with preserve_state(self.model), torch.no_grad():
            try:
                outputs = [main_output(checked_forward(self.model, batch)) for batch in self.batches]
            except (UserCodeError, ValueError, RuntimeError):
                return of_inputs
        self.spend(count_gradients(forward=len(self.batches)))
        return dependence(self.batches, outputs)

    @cached_property
    def learnt_dependence(self) -> float | None:
        """As `dependence`, of targets on what a network trained on half of the batches puts out on the other half."""
        found = self.probe
        run = None if found is None or found.best is None else found.at(found.best)
        if found is None or run is None or len(self.batches) < 2:
            return None
        half, steps = len(self.batches) // 2, min(_HELD_OUT_STEPS, self.left)
        kept, held = self.batches[:half], self.batches[half:]
        outputs = outputs_after_training(self.model, kept, held, self.loss, self.probed, run.rate, steps=steps)
        self.spend(steps + count_gradients(forward=len(held)))
        return None if outputs is None else dependence(held, outputs, of_inputs=False)

    @cached_property
    def shuffled_labels(self) -> ShuffledLabels | None:
        """Training on permuted labels, where the real ones are learnt so slowly that it may be by heart."""
        found = self.probe
        run = None if found is None else next((run for run in found.runs if run.outcome == "trains"), None)
        if found is None or run is None or found.constant is None or not permutable(self.batches):
            return None
        if found.trains_much(BY_HEART):
            return None
        kind, left = self.probed, self.left
        shuffled = shuffled_labels(
            self.model, self.batches, self.loss, kind, run.rate, real=run.losses, constant=found.constant, most=left
        )
        self.spend(0.0 if shuffled is None else shuffled.cost)
        return shuffled

    @cached_property
    def pairing(self) -> Pairing | None:
        """Whether pairs of a contrastive loss belong together; None without such a loss, or without a run."""
        if not self.inspection.pairs or not self.probe_steps or not self.trained or not self.finite:
            return None
        rate = self.rate if self.rate is not None or self.probe is None else self.probe.best
        most = self.left - (RUNGS[0] if "probe" not in vars(self) else 0)
        if rate is None or most <= 0:
            return None
        paired = pairing(self.model, self.batches, self.loss, self.probed, rate, most=most)
        self.spend(0.0 if paired is None else paired.cost)
        return paired

    @cached_property
    def without_gradient(self) -> list[str]:
        """The trained parameters on which the loss does not depend differentiably."""
        if not self.has_loss:
            return []
        return [name for name in self.trained if "gradient_norm" not in self.table.get(name, {})]

    @cached_property
    def origin(self) -> NonFiniteOrigin | None:
        """The first operation that makes a number that is not finite; None where all are finite."""
        if self.finite or not self.has_loss:
            return None
        found = non_finite_origin(self.model, self.batches, self.loss)
        backward = found is None or found.backward
        passes = len(self.batches) if found is None else found.batch + 1
        self.spend(count_gradients(forward=passes, backward=passes if backward else 0))
        return found

    @cached_property
    def paths(self) -> GradientPaths | None:
        """How the loss depends on the parameters; None where every gradient arrives and the loss is no sum."""
        seen = self.inspection
        suspicious = self.without_gradient or self.stuck or seen.summands > 1 or seen.constant_derivatives
        if not self.has_loss or not suspicious or not math.isfinite(self.network["loss"]):
            return None
        found = gradient_paths(self.model, self.batches[0], self.loss, self.stuck)
        differentiated = sum(norm is not None for norm in found.norms) + bool(self.stuck)
        self.spend(count_gradients(forward=found.passes, backward=found.passes * differentiated))
        return found

    @cached_property
    def cut_recurrence(self) -> CutRecurrence | None:
        """A recurrence whose state is taken out of the graph at every step; asked where gradients end several times."""
        if not self.has_loss or not self.finite or self.inspection.cuts < 2:
            return None
        self.spend(count_gradients(forward=1))
        return cut_recurrence(self.model, self.batches[0], self.loss)

    @cached_property
    def loose_summand(self) -> Operation | None:
        """Where a number that no parameter changes is added to the loss, another one for each batch."""
        if not self.has_loss or not self.finite or len(self.batches) < 2:
            return None
        self.spend(count_gradients(forward=2))
        return loose_summand(self.model, self.batches, self.loss)

    @cached_property
    def opposed_terms(self) -> OpposedTerms | None:
        """What comparisons with data gain where other summands, whose gradient is larger, are left out of training."""
        paths = self.paths if self.probe_steps and self.trained and self.finite else None
        norms = [] if paths is None else [norm for norm in paths.norms if norm]
        if len(norms) < 2 or max(norms) < DWARFED * min(norms):
            return None
        rate = self.rate if self.rate is not None or self.probe is None else self.probe.best
        if rate is None:
            return None
        most = self.left - (0 if "probe" in vars(self) else _PROBED)
        if most <= 0:
            return None
        found = opposed_terms(self.model, self.batches, self.loss, self.probed, rate, most=most)
        self.spend(SHARES if found is None else found.cost)
        return found

    @cached_property
    def decay_pull(self) -> float:
        """How strongly weight decay pulls on the trained weights, over the norm of the loss's gradient."""
        norms = (self.table.get(name, {}).get("gradient_norm", 0.0) for name in self.trained)
        sizes = (self.table.get(n, {}).get("value_rms", 0.0) ** 2 * self.parameters[n].numel() for n in self.trained)
        gradient = math.hypot(*norms)
        return self.probed.decay * math.sqrt(sum(sizes)) / gradient if gradient > 0 else math.inf

    @cached_property
    def decay_runs(self) -> DecayRuns | None:
        """What training without weight decay gains over training with it; asked where the decay is strong."""
        kind, rate = self.probed, self.rate
        if not (kind.decay and rate and self.probe_steps and self.has_loss and self.trained and self.finite):
            return None
        if not (kind.decay * rate > SHRINKING if kind.decoupled else self.decay_pull > PULL):
            return None
        most = self.left - (0 if "probe" in vars(self) else RUNGS[0])
        found = decay_runs(self.model, self.batches, self.loss, kind, rate, most=most)
        self.spend(0.0 if found is None else found.cost)
        return found

    @cached_property
    def mixing(self) -> Mixing | None:
        """Whether samples influence each other; None where that cannot be asked."""
        whole = isinstance(self.batches[0].inputs, StepInputs)
        self.spend(count_gradients(forward=2 * (1.0 if whole else min(1.0, SAMPLES / self.batches[0].size))))
        return mixing(self.model, self.batches[0])

    @cached_property
    def alike_outputs(self) -> AlikeOutputs | None:
        """Samples that have exactly the same output; None where that cannot be asked, or no short run fails."""
        batch = self.batches[0]
        whole = isinstance(batch.inputs, StepInputs)
        if not self.finite or whole or batch.size < 4 or self.probe is None or self.training is not None:
            return None
        self.spend(count_gradients(forward=min(1.0, MOST_ALIKE / batch.size)))
        return alike_outputs(self.model, batch)

    @cached_property
    def look_ahead(self) -> LookAhead | None:
        """Whether outputs see the inputs that they are compared with; None where targets are not the next inputs."""
        batch = self.batches[0]
        if not self.has_loss or not self.finite or not candidate(batch):
            return None
        found = look_ahead(self.model, batch, self.loss)
        whole = isinstance(batch.inputs, StepInputs)
        passes = 4 if whole and found is not None and found.share else 2
        self.spend(count_gradients(forward=passes * (1.0 if whole else min(1.0, AHEAD / batch.size))))
        return found

    @cached_property
    def allowed_rate(self) -> LearningRate | None:
        """The largest stable learning rate, from the curvature; None where nothing is trained, or has a curvature."""
        if not self.trained or not self.finite:
            return None
        if self.kind.settings is None:
            self.not_measured.append(f"The largest stable learning rate: no bound is known for {self.kind.name}.")
            return None
        if self.affordable < LIMIT:
            self.not_measured.append(
                "The largest stable learning rate: its curvature does not fit into the time given."
            )
            return None
        short = lacking(self.model, vectors=VECTORS)
        if short:
            self.not_measured.append(f"The largest stable learning rate, by the curvature: {short}.")
            return None
        found, missing = allowed_rate(self.model, self.batches, self.loss, self.kind.settings)
        if missing:
            self.not_measured.append(f"The largest stable learning rate: {missing}.")
        self.spend(0.0 if found is None else found.cost)
        return found
