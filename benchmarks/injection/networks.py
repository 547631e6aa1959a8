"""The healthy networks, by name."""

from collections.abc import Callable

import torch

from . import structured, unseen, vectors
from .problem import Problem

NETWORKS: dict[str, Callable[..., Problem]] = {
    function.__name__: function
    for function in (
        vectors.mlp_relu, vectors.mlp_tanh, vectors.mlp_sigmoid, vectors.mlp_gelu_norm, vectors.residual_mlp,
        vectors.regression, vectors.leaky_regression, vectors.multi_label, vectors.autoencoder, vectors.vae,
        vectors.pinn, vectors.contrastive, vectors.lora, vectors.experts, vectors.film, vectors.hypernetwork,
        vectors.recommender, vectors.value_network, vectors.point_set, vectors.siren, vectors.gaussian_policy,
        structured.cnn, structured.cnn_batch_norm, structured.resnet, structured.depthwise_cnn,
        structured.group_norm_cnn, structured.lstm, structured.gru, structured.elman, structured.temporal_cnn,
        structured.encoder, structured.attention_pooling, structured.decoder, structured.tied_decoder,
        structured.recurrent_language, structured.torch_encoder, structured.vit, structured.mixer,
        structured.graph, structured.diffusion, structured.denoiser, structured.segmentation,
        unseen.squeeze_excitation, unseen.maxout, unseen.neural_ode, unseen.video, unseen.bilinear, unseen.wavenet,
        unseen.translation, unseen.masked_tokens, unseen.unet, unseen.set_transformer, unseen.message_passing,
        unseen.radial, unseen.forecaster, unseen.ordinal, unseen.factorization_machine, unseen.flow, unseen.ctc,
        unseen.survival, unseen.triplets, unseen.actor_critic, unseen.two_tasks,
    )
}  # fmt: skip


def healthy(name: str, seed: int, **options: float) -> Problem:
    """The network with weights drawn from a seed; its data are always the same."""
    torch.manual_seed(seed)
    return NETWORKS[name](**options)
