"""The rules: each file holds everything that is known of one finding's code.

A new rule is a file here with a `RULE`, and its name in `RULES`.
"""

from theta0.diagnosis.rule import Rule
from theta0.diagnosis.rules import (
    activation_shift,
    broadcast_loss,
    constant_output,
    dead_units,
    degenerate_softmax,
    does_not_train,
    exploding_activations,
    exploding_gradients,
    frozen_batch_norm,
    frozen_parameters,
    gradient_conflict,
    gradient_cut,
    identical_units,
    initial_loss,
    input_scale,
    learning_rate_too_high,
    learning_rate_too_low,
    linear_network,
    loss_mismatch,
    loss_terms,
    lost_gradient,
    mixed_samples,
    no_signal,
    non_finite,
    precision,
    saturated_units,
    small_batch,
    squashed_output,
    target_scale,
    training_mode,
    unregistered_parameters,
    unused_parameters,
    vanishing_activations,
    vanishing_gradients,
    weights_not_loaded,
    zero_gradient,
)

# In the order of judgement, which decides between findings at the same place.
RULES: tuple[Rule, ...] = (
    broadcast_loss.RULE,
    unregistered_parameters.RULE,
    lost_gradient.RULE,
    weights_not_loaded.RULE,
    gradient_cut.RULE,
    mixed_samples.RULE,
    loss_mismatch.RULE,
    no_signal.RULE,
    target_scale.RULE,
    squashed_output.RULE,
    identical_units.RULE,
    input_scale.RULE,
    linear_network.RULE,
    training_mode.RULE,
    frozen_batch_norm.RULE,
    small_batch.RULE,
    activation_shift.RULE,
    vanishing_activations.RULE,
    exploding_activations.RULE,
    saturated_units.RULE,
    dead_units.RULE,
    constant_output.RULE,
    initial_loss.RULE,
    degenerate_softmax.RULE,
    non_finite.RULE,
    precision.RULE,
    vanishing_gradients.RULE,
    exploding_gradients.RULE,
    zero_gradient.RULE,
    unused_parameters.RULE,
    frozen_parameters.RULE,
    learning_rate_too_high.RULE,
    learning_rate_too_low.RULE,
    gradient_conflict.RULE,
    does_not_train.RULE,
    loss_terms.RULE,
)


def rule_of(code: str) -> Rule | None:
    """The rule of a code; None where there is none, as for a user's own.

    Returns:
        The rule.

    Example:
        >>> rule_of("dead-units").remedies
        ('unit-variance', 'lcw')
        >>> rule_of("mine") is None
        True
    """
    return next((rule for rule in RULES if rule.code == code), None)


__all__ = ["RULES", "rule_of"]
