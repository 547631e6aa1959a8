"""Which faults go into which networks, and into which half, before anything is trained or judged.

The networks of each family are dealt to the two halves in an order drawn by a fixed seed. For every kind of fault, the
networks of a half are tried in a drawn order until there are enough into which it fits; place and size are drawn
from the injection's name, which holds the half. Four kinds, drawn by the same seed, are not in the development half. A
fresh draw, by a seed of its own, has one injection of every kind in any of these networks: new places, sizes and
starts. The unseen half, by a seed of its own too, is of all kinds in networks that are in no other half.
"""

import random
from dataclasses import replace

import torch

from . import graph, training_faults, weights  # noqa: F401 - they register the kinds
from .networks import healthy
from .registry import KINDS, Injected
from .training_faults import runs

SEED, FRESH_SEED, UNSEEN_SEED = 2027, 4093, 7919
PER_KIND = {"dev": 8, "test": 7, "fresh": 1, "unseen": 4}  # injections of a kind in a half
DRAWS = 4  # of place and size, at most, for one network and kind
FAMILIES = (
    ("mlp_relu", "mlp_tanh", "mlp_sigmoid", "mlp_gelu_norm", "residual_mlp", "mixer"),
    ("regression", "leaky_regression", "value_network", "siren", "point_set", "pinn"),
    ("autoencoder", "vae", "contrastive", "gaussian_policy"),
    ("lora", "experts", "film", "hypernetwork", "recommender", "graph"),
    ("cnn_batch_norm", "resnet", "depthwise_cnn"),
    ("cnn", "group_norm_cnn", "temporal_cnn"),
    ("diffusion", "denoiser", "segmentation", "multi_label"),
    ("lstm", "gru", "elman", "recurrent_language"),
    ("encoder", "attention_pooling"),
    ("decoder", "tied_decoder"),
    ("torch_encoder", "vit"),
)
UNSEEN = (
    "squeeze_excitation", "maxout", "neural_ode", "video", "bilinear", "wavenet", "translation", "masked_tokens",
    "unet", "set_transformer", "message_passing", "radial", "forecaster", "ordinal", "factorization_machine", "flow",
    "ctc", "survival", "triplets", "actor_critic", "two_tasks",
)  # fmt: skip
NOT_IN = {  # networks of which a kind would say what is not so
    # Gates, products and exponents are left when the activations are gone: the network is not linear.
    "no_nonlinearity": (
        "squeeze_excitation", "bilinear", "wavenet", "message_passing", "factorization_machine", "flow",
    ),
    # A density of scaled inputs is another number: its score says nothing of the training.
    "input_scale_up": ("flow",), "input_scale_down": ("flow",),
    "one_feature_huge": ("flow",), "constant_inputs": ("flow",),
}  # fmt: skip


def halves() -> dict[str, list[str]]:
    """Networks of the development, the test and the unseen half, and of the fresh draw."""
    rng, dealt = random.Random(SEED), []
    for family in FAMILIES:
        dealt += rng.sample(family, len(family))
    known = [name for family in FAMILIES for name in family]
    return {"dev": dealt[::2], "test": dealt[1::2], "fresh": known, "unseen": list(UNSEEN)}


def held_out_kinds() -> list[str]:
    """The kinds of which nothing is in the development half."""
    return sorted(random.Random(SEED).sample(sorted(KINDS), 4))


def injected(name: str, seed: int) -> Injected | None:
    """The injection of a name (half/network/kind/draw), in the network with weights drawn from a seed."""
    _, network, kind, _ = name.split("/")
    problem = healthy(network, seed)
    torch.manual_seed(seed)
    found = KINDS[kind].inject(problem, random.Random(name))
    return found and replace(found, codes=found.codes or KINDS[kind].codes)


def fits(name: str) -> bool:
    """Whether the fault can be put into the network, and forward and loss still run."""
    found = injected(name, 0)
    return found is not None and runs(found.problem)


def planned(half: str) -> list[str]:
    """The names of a half's injections; takes ten process seconds."""
    names = []
    seed = {"fresh": FRESH_SEED, "unseen": UNSEEN_SEED}.get(half, SEED)
    for kind in sorted(KINDS):
        if half == "dev" and kind in held_out_kinds():
            continue
        order = [network for network in halves()[half] if network not in NOT_IN.get(kind, ())]
        order = random.Random(f"{seed}/{half}/{kind}").sample(order, len(order))
        tried = [f"{half}/{network}/{kind}/{draw}" for draw in range(DRAWS) for network in order]
        found: list[str] = []
        missing: set[str] = set()
        for name in tried:
            network = name.split("/")[1]
            if len(found) == PER_KIND[half]:
                break
            if network in missing:
                continue
            if fits(name):
                found.append(name)
            elif name.endswith("/0"):
                missing.add(network)
        names += found
    return names
