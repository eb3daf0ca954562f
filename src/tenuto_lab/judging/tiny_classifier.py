"""A small Tiny-ImageNet classifier: it tells whether a sample shows the requested class.

Fréchet distances between sets of samples are computed from its penultimate features.
"""

from pathlib import Path

from torch import Tensor, nn

from tenuto_lab.judging.cifar_classifier import ResidualPair
from tenuto_lab.judging.classifier import convolution, restored

CLASSES = 200
FEATURES = 224


class TinyClassifier(nn.Module):
    """A residual network of fourteen layers, pooled to one vector, and a linear layer: x [B, 3, 64, 64] in [-1, 1]."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            convolution(3, 64),
            nn.MaxPool2d(2),
            convolution(64, 96),
            ResidualPair(96),
            ResidualPair(96),
            nn.MaxPool2d(2),
            convolution(96, 160),
            ResidualPair(160),
            ResidualPair(160),
            nn.MaxPool2d(2),
            convolution(160, FEATURES),
            ResidualPair(FEATURES),
        )
        self.head = nn.Linear(FEATURES, classes)

    def features(self, x: Tensor) -> Tensor:
        """[B, 224]: the input of the linear layer that gives the logits."""
        return self.convolutions(x).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def load_tiny_classifier(directory: Path) -> TinyClassifier:
    """The classifier stored in a directory, ready to judge."""
    return restored(TinyClassifier(), directory, "train_tiny_classifier")
