"""A wrapper that standardizes what a model is given."""

import torch
from torch import Tensor, nn


class StandardizedInput(nn.Module):
    """The model applied to (x - mean) / std, with the mean and standard deviation of data seen before training.

    Tables have a mean and deviation for each column, other tensors one for all entries; what does not vary is only
    centred (LeCun et al., 1998, section 4.3).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, inputs: list[Tensor]) -> None:
        super().__init__()
        if not inputs or not all(isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1 for x in inputs):
            raise ValueError("inputs: expected floating tensors of samples, got something else; standardize the data")
        data = torch.cat([x.detach().double().flatten(0, 0 if x.dim() == 2 else -2) for x in inputs])
        data = data if inputs[0].dim() == 2 else data.reshape(-1, 1)
        mean, std = data.mean(0), data.std(0, correction=0)
        std = torch.where(std > 1e-12 * mean.abs().clamp_min(1e-300), std, torch.ones_like(std))
        like = inputs[0]
        self.model = model
        self.register_buffer("mean", mean.to(like))
        self.register_buffer("std", std.to(like))
        self.train(model.training)

    def forward(self, x: Tensor) -> Tensor:
        """Standardize and apply the model."""
        result: Tensor = self.model((x - self.mean) / self.std)
        return result
