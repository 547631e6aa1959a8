"""What faults of a kind bring with them: the codes that rules name as their consequences."""

# Signals that are too large.
LARGE = frozenset({"exploding-activations", "initial-loss", "degenerate-softmax", "learning-rate-too-high"})
# A scale that is wrong, either way.
SCALE = LARGE | {
    "saturated-units",
    "dead-units",
    "non-finite",
    "exploding-gradients",
    "constant-output",
    "vanishing-gradients",
    "activation-shift",
}
# Nothing that passes.
SILENCE = frozenset({"vanishing-activations", "constant-output", "vanishing-gradients", "dead-units", "zero-gradient"})
