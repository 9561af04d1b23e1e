"""Networks that normalise raw features with statistics fixed once and stored with the weights, never per task."""

import torch
from torch import Tensor, nn


class NormalisedNetwork(nn.Module):
    """Holds mean and scale of raw features.

    Args:
        features: F, raw features of a table.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    def set_normalisation(self, features: Tensor) -> None:
        """Fix mean and scale from raw features (T, F), once."""
        self.mean.copy_(features.mean(dim=0))
        # A feature that never varied in training keeps its unit, and so cannot blow up later.
        deviation = features.std(dim=0, correction=0)
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def normalised(self, features: Tensor) -> Tensor:
        """Raw features (..., F) in units of their standard deviation from their mean."""
        return (features - self.mean) / self.scale
