"""A small CIFAR-10 classifier: it tells whether a sample shows the class named in its caption.

Fréchet distances between sets of samples are computed from its penultimate features.
"""

from pathlib import Path

from torch import Tensor, nn

from tenuto_lab.judging.classifier import convolution, restored

CLASSES = 10
FEATURES = 184


class ResidualPair(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(convolution(width, width), convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class CifarClassifier(nn.Module):
    """A nine-layer residual network, pooled to one vector, and a linear layer: x [B, 3, 32, 32] in [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            convolution(3, 48),
            convolution(48, 96),
            nn.MaxPool2d(2),
            ResidualPair(96),
            convolution(96, 144),
            nn.MaxPool2d(2),
            convolution(144, FEATURES),
            nn.MaxPool2d(2),
            ResidualPair(FEATURES),
        )
        self.head = nn.Linear(FEATURES, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """[B, 184]: the input of the linear layer that gives the logits."""
        return self.convolutions(x).amax(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def load_cifar_classifier(directory: Path) -> CifarClassifier:
    """The classifier stored in a directory, ready to judge."""
    return restored(CifarClassifier(), directory, "train_cifar_classifier")
