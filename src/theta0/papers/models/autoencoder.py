"""The variational autoencoder of furusho2020thesis, section 3.3.2."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class LineAutoencoder(nn.Module):
    """A variational autoencoder with one latent variable (furusho2020thesis, section 3.3.2, its reference 71).

    Attributes:
        encoder: image -> mean and log variance of z.
        decoder: z -> logits of the pixels.
    """

    def __init__(self, pixels: int, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, 2))
        self.decoder = nn.Sequential(
            nn.Linear(1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, pixels)
        )

    def forward(self, images: Float[Tensor, "n pixels"], noise: Float[Tensor, "n 1"]) -> Float[Tensor, ""]:
        """The negative evidence lower bound per image, for pixels in [0, 1].

        Args:
            images: flat images.
            noise: standard normal draws.

        Returns:
            Mean over images of reconstruction error plus Kullback-Leibler divergence.
        """
        mean, log_variance = self.encoder(images).chunk(2, 1)
        logits = self.decoder(mean + noise * (log_variance / 2).exp())
        reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(1)
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)
        bound: Tensor = (reconstruction + divergence).mean()
        return bound

    def images(self, z: Float[Tensor, "n 1"]) -> Float[Tensor, "n pixels"]:
        """Images along the latent line.

        Args:
            z: latent values.

        Returns:
            Pixels in [0, 1].
        """
        return torch.sigmoid(self.decoder(z))


def trained_autoencoder(images: Float[Tensor, "n pixels"], *, steps: int, seed: int) -> LineAutoencoder:
    """Fit the autoencoder by full-batch Adam at rate 2e-3.

    Args:
        images: flat images in [0, 1].
        steps: number of updates.
        seed: of its start and its noise.

    Returns:
        The network.
    """
    generator = torch.Generator().manual_seed(seed)
    model = LineAutoencoder(images.shape[1])
    for parameter in model.parameters():
        fan_in = parameter.shape[1] if parameter.dim() > 1 else 0
        with torch.no_grad():
            parameter.normal_(0.0, fan_in**-0.5, generator=generator) if fan_in else parameter.zero_()
    stepper = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(steps):
        stepper.zero_grad()
        torch.autograd.backward(model(images, torch.randn(len(images), 1, generator=generator)))
        stepper.step()
    return model
