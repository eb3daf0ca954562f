"""Whether the weights that a live denoiser uses have changed."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tenuto.runtime.private_torch import parts_of, version_of


def weights_seen(module: nn.Module, values: bool) -> tuple[object, ...]:
    """A value that changes when the module's weights change. It holds the identities and versions of the tensors, and
    the adapters and their strengths. This is computed before every generation, while the device waits for it.

    values  also notice writes that torch does not count (`weight.data`). This reads all weights once.
    """
    tensors: list[Tensor] = []
    adapters: list[tuple[object, ...]] = []
    for number, layer in enumerate(parts_of(module)):
        own = vars(layer)
        tensors += [one for one in own["_parameters"].values() if one is not None and not one.is_meta]
        if isinstance(scaling := own.get("scaling"), dict):
            adapters.append((number, *_state(layer), tuple(sorted((name, repr(one)) for name, one in scaling.items()))))
    identities = tuple((id(one), version_of(one), one.dtype) for one in tensors)
    return identities, tuple(adapters), _checksum(tensors) if values else ""


def _state(layer: nn.Module) -> tuple[object, ...]:
    """Which adapters of a layer are active, merged into its matrix, or switched off."""
    active, merged = (tuple(getattr(layer, name, ())) for name in ("active_adapters", "merged_adapters"))
    return active, merged, getattr(layer, "disable_adapters", False)


@torch.no_grad()
def _checksum(tensors: Iterable[Tensor]) -> str:
    """Of the sum and the norm of each matrix."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for one in tensors:
        if type(one) is nn.Parameter and one.dim() >= 2 and one.is_floating_point() and one.dtype.itemsize > 1:
            plain = one.detach()
            found = [plain.sum(dtype=torch.float32), torch.linalg.vector_norm(plain, dtype=torch.float32)]
            by_device.setdefault(one.device, []).extend(found)
    sha = hashlib.sha256()
    for parts in by_device.values():
        sha.update(torch.stack(parts).cpu().numpy().tobytes())
    return sha.hexdigest()
