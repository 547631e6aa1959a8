"""Which faults go into which networks, and into which half, before anything is trained or judged.

The networks of each family are dealt to the two halves in an order drawn by a fixed seed. For every kind of fault, the
networks of a half are tried in a drawn order until there are enough into which it fits; place and size are drawn
from the injection's name, which holds the half. Four kinds, drawn by the same seed, are in the test half only. A fresh
draw, by a seed of its own, has one injection of every kind in any of the networks: new places, sizes and starts.
"""

import random
from dataclasses import replace

import torch

from . import graph, training_faults, weights  # noqa: F401 - they register the kinds
from .networks import healthy
from .registry import KINDS, Injected
from .training_faults import runs

SEED, FRESH_SEED = 2027, 4093
PER_KIND = {"dev": 8, "test": 7, "fresh": 1}  # injections of a kind in a half
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


def halves() -> dict[str, list[str]]:
    """Networks of the development and the test half, and of the fresh draw."""
    rng, dealt = random.Random(SEED), []
    for family in FAMILIES:
        dealt += rng.sample(family, len(family))
    return {"dev": dealt[::2], "test": dealt[1::2], "fresh": [name for family in FAMILIES for name in family]}


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
    for kind in sorted(KINDS):
        if half == "dev" and kind in held_out_kinds():
            continue
        order = halves()[half]
        order = random.Random(f"{FRESH_SEED if half == 'fresh' else SEED}/{half}/{kind}").sample(order, len(order))
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
