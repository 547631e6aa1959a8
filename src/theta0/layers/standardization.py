"""The standardization layer: activations, behind the nonlinearity, get mean 0 and variance 1 over the batch."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm


class Standardization(_BatchNorm):
    r"""SL: $(a - \mathrm{E}[a]) / \sqrt{\mathrm{V}[a] + ε}$ of the activations a = φ(z), put behind the nonlinearity.

    kutsuna2019lcw, section 5, takes it from Gülçehre and Bengio (2016): the same standardization as batch
    normalization, of a where that one takes z. It removes the activation shift by making the mean activation zero
    (Proposition 2). One mean and one variance for each unit (axis 1), over the batch and, for convolutional
    activations, over positions: those of the batch in training, running ones in evaluation. The source computes it by
    torch's own batch normalization, and so does this: running statistics, `state_dict`, conversion to synchronised
    statistics and everything that looks for batch normalization work alike.

    No scale and bias unless `affine=True` (what torch's module has by default): a linear layer behind it
    takes them up into its own weight and bias.

    Args:
        num_features: units, or channels.
        eps: ε; torch's 1e-5 is small against the variance of a sigmoid of unit-variance preactivations, 0.043.
        momentum: share of the newest batch in the running statistics; None averages all batches alike.
        affine: whether a scale (1 at first) and a bias (0) are learned.
        track_running_stats: whether running statistics are kept; without them evaluation uses the batch's.

    >>> layer = Standardization(1)
    >>> [round(value, 3) for value in layer(torch.tensor([[1.0], [3.0]])).flatten().tolist()]
    [-1.0, 1.0]
    """

    def __init__(
        self,
        num_features: int,
        *,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)

    def _check_input_dim(self, input: Float[Tensor, "..."]) -> None:  # torch's hook, called before all else
        shape = tuple(input.shape)
        if not 2 <= len(shape) <= 5 or shape[1] != self.num_features:
            raise ValueError(
                f"Standardization: expected activations [batch, {self.num_features}, positions …] of 2 to 5 axes, got "
                f"shape {shape}; units belong on axis 1 (transpose sequences of [batch, length, units])"
            )
        if (self.training or self.running_mean is None) and input.numel() <= self.num_features:
            raise ValueError(
                f"Standardization: expected more than one value for each unit, got shape {shape} with batch "
                "statistics, whose variance is zero; give a larger batch, or call model.eval()"
            )
