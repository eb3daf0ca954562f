"""The Inception network of published FIDs: torch-fidelity's, or the TorchScript file that StyleGAN's metrics use."""

import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import CheckpointError, TenutoError, first_line
from tenuto.extras import install
from tenuto.files import check_regular

SPATIAL_CHANNELS = 7  # of 17 × 17 places; sFID uses these features


class Inception:
    """Pictures as bytes [B, 3, H, W] -> features, logits and spatial features."""

    name = "Inception-v3 features (torch-fidelity)"

    def __init__(self, extractor: Any) -> None:
        self.extractor = extractor
        self._spatial = torch.empty(0)
        # The convolution that the published evaluation calls mixed_6/conv.
        extractor.Mixed_6d.branch1x1.register_forward_hook(self._note)

    def _note(self, module: object, inputs: object, output: Tensor) -> None:
        self._spatial = output[:, :SPATIAL_CHANNELS].permute(0, 2, 3, 1).flatten(1).float()  # in the published layout

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, logits = self.extractor(pixels)
        return features, logits, self._spatial


class ScriptedInception:
    """A TorchScript Inception (inception-2015-12-05.pt): bytes [B, 3, H, W] -> features and logits.

    The file holds its own code, which runs in TorchScript's interpreter: it computes, and opens nothing.
    """

    name = "Inception-v3 features (TorchScript)"

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = self.module(pixels, return_features=True)
        return features, self.module(pixels, no_output_bias=True).clamp(min=1e-12).log()


def load_inception(weights: Path | None, device: str | torch.device) -> Inception | ScriptedInception:
    """Inception with the weights of a file, or a TorchScript file; without a file, torch-fidelity downloads its own."""
    if weights is not None:
        check_regular(weights, "Inception weights")
    if weights is not None and _is_script(weights):
        return _load_script(weights, device)
    try:
        from torch_fidelity import FeatureExtractorInceptionV3
    except ImportError as error:
        raise TenutoError(
            f"Inception features need torch-fidelity and torchvision ({error}): {install('eval')}. "
            "Without them, compare in the features of the shipped classifiers: --features own"
        ) from error
    if weights is not None:
        _check_plain(weights)
    try:
        extractor = FeatureExtractorInceptionV3(
            "inception-v3-compat",
            ["2048", "logits_unbiased"],
            feature_extractor_weights_path=None if weights is None else str(weights),
        )
    except OSError as error:  # includes urllib's errors
        raise TenutoError(
            f"The Inception weights could not be fetched ({first_line(error)}); name a copy with --inception."
        ) from error
    except RuntimeError as error:
        raise CheckpointError(f"{weights} does not hold torch-fidelity's Inception: {first_line(error)}") from error
    return Inception(extractor.to(device))


def _is_script(path: Path) -> bool:
    """Whether a file is TorchScript: an archive that holds code."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def _load_script(path: Path, device: str | torch.device) -> ScriptedInception:
    try:
        loaded = ScriptedInception(torch.jit.load(str(path), map_location=torch.device(device)).eval())  # type: ignore[no-untyped-call]
        features, _ = loaded(torch.zeros(2, 3, 32, 32, dtype=torch.uint8, device=device))
    except (RuntimeError, ValueError, OSError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is no TorchScript Inception: {first_line(error)}") from error
    if features.ndim != 2 or len(features) != 2:
        raise CheckpointError(f"{path} is no TorchScript Inception: it gives no features [B, D] for pictures.")
    return loaded


def _check_plain(path: Path) -> None:
    """Refuse a file with anything but tensors, because torch-fidelity would execute its pickle."""
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"Cannot read the Inception weights {path}: {error.strerror or error}.") from error
    except Exception as error:  # the unpickler may raise any error
        raise CheckpointError(f"{path} is no plain file of tensors: {first_line(error)}") from error
