"""A small Fashion-MNIST classifier: it tells whether a sample shows the requested class.

Fréchet distances between sets of samples are computed from its penultimate features.
"""

from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tenuto.errors import CheckpointError

CLASSES = 10
FEATURES = 128
M = TypeVar("M", bound=nn.Module)


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Classifier(nn.Module):
    """Six plain convolutions, pooled to one vector, and a linear layer: x [B, 1, 32, 32] in [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            convolution(1, 32),
            convolution(32, 32),
            nn.MaxPool2d(2),
            convolution(32, 64),
            convolution(64, 64),
            nn.MaxPool2d(2),
            convolution(64, FEATURES),
            convolution(FEATURES, FEATURES),
        )
        self.head = nn.Linear(FEATURES, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        """[B, 128]: the input of the linear layer that gives the logits."""
        return self.convolutions(x).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def load_classifier(directory: Path) -> Classifier:
    """The classifier stored in a directory, ready to judge."""
    return restored(Classifier(), directory, "train_classifier")


def restored(classifier: M, directory: Path, script: str) -> M:
    """The classifier with the weights stored in a directory, ready to judge, in float32.

    script  the module of `training` that makes such a file
    """
    path = directory / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"There is no classifier at {path}; train one with python -m training.{script}.")
    try:
        state = load_file(path)
        classifier.load_state_dict({key: v.float() if v.is_floating_point() else v for key, v in state.items()})
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold this classifier's weights, or not whole: {error}") from error
    return classifier.eval()
