"""Muon (Jordan et al.): gradient descent whose updates of matrices are made orthogonal.

Embeddings, heads and norms are left to AdamW. With the scale of Liu et al. ("Muon is scalable for LLM training") both
take the same learning rate. Matrices of one shape are updated together, so that a step is few large operations.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton–Schulz polynomial
ITERATIONS = 5
RMS = 0.2  # of an update, as AdamW's are


@torch.no_grad()
def orthogonal(matrices: Tensor) -> Tensor:
    """[count, a, b]: each matrix with its singular values brought near 1."""
    wide = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if wide else matrices).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if wide else x).to(matrices.dtype)


class MuonAndAdam:
    """Muon for the matrices of a network's blocks, AdamW for all its other parameters."""

    def __init__(
        self,
        network: nn.Module,
        inner: set[str],
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        keeps_gradients: bool = False,
    ) -> None:
        """inner            the names of the matrices that Muon updates
        keeps_gradients  whether new gradients are computed in the memory of the old ones (`training.recorded`)
        """
        named = dict(network.named_parameters())
        self._cleared = [] if keeps_gradients else list(named.values())
        shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for name in sorted(inner):
            shapes[named[name].shape].append(named[name])
        self._stacks = [(same, torch.zeros(len(same), *shape).to(same[0])) for shape, same in shapes.items()]
        others = [parameter for name, parameter in named.items() if name not in inner]
        self._adam = torch.optim.AdamW(others, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
        self._group: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self.param_groups = [self._group, *self._adam.param_groups]

    @torch.no_grad()
    def step(self) -> None:
        self._adam.step()
        lr, decay = self._group["lr"], self._group["weight_decay"]
        for parameters, momentum in self._stacks:
            gradients = torch.stack([parameter.grad for parameter in parameters if parameter.grad is not None])
            momentum.lerp_(gradients, 1 - MOMENTUM)
            updates = orthogonal(gradients.lerp(momentum, MOMENTUM))
            scale = RMS * max(updates.shape[1:]) ** 0.5
            torch._foreach_mul_(parameters, 1 - lr * decay)
            torch._foreach_add_(parameters, list(updates.unbind()), alpha=-lr * scale)

    def state_dict(self) -> dict[str, Any]:
        return {"momenta": [momentum for _, momentum in self._stacks], "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for (_, momentum), value in zip(self._stacks, state["momenta"], strict=True):
            momentum.copy_(value)
        self._adam.load_state_dict(state["adam"])
        self.param_groups = [self._group, *self._adam.param_groups]  # AdamW makes new groups when it loads

    def zero_grad(self) -> None:
        for parameter in self._cleared:
            parameter.grad = None


def of_blocks(network: nn.Module) -> set[str]:
    """The names of the matrices of a transformer's blocks."""
    return {name for name, value in network.named_parameters() if "blocks." in name and value.dim() == 2}
