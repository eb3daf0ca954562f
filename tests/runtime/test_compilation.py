"""Branch functions that run compiled."""

import torch
from torch import nn

from tenuto.runtime.compilation import compiling, function_of_many_shapes


@function_of_many_shapes
def project(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = block(x)
    return result


def test_hooks_count_although_a_module_without_them_was_compiled_before():
    plain, hooked, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.ones(2, 4)
    hooked.load_state_dict(plain.state_dict())
    with torch.no_grad(), compiling():
        expected = project(plain, x)
        handle = hooked.register_forward_hook(lambda module, given, result: 2 * result)
        assert torch.allclose(project(hooked, x), 2 * expected)
        handle.remove()
        assert torch.allclose(project(hooked, x), expected)
