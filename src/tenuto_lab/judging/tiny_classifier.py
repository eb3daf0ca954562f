"""A small Tiny-ImageNet classifier: it tells whether a sample shows the requested class.

Fréchet distances between sets of samples are computed from its penultimate features.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tenuto.errors import CheckpointError
from tenuto_lab.judging.cifar_classifier import ResidualPair
from tenuto_lab.judging.classifier import convolution

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
    """The classifier stored in a directory, ready to judge, in float32."""
    path = directory / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(
            f"There is no classifier at {path}; train one with python -m training.train_tiny_classifier."
        )
    classifier = TinyClassifier()
    try:
        state = load_file(path)
        classifier.load_state_dict({key: v.float() if v.is_floating_point() else v for key, v in state.items()})
    except (SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold this classifier's weights, or not whole: {error}") from error
    return classifier.eval()
