"""From samples to pictures: a latent model's samples are decoded by the VAE that is stored beside the model."""

from collections.abc import Callable

from torch import Tensor

from tenuto.models import Model
from tenuto.sampling.pictures import decode, vae_of


def decoder_of(model: Model) -> Callable[[Tensor], Tensor]:
    """What makes pictures of a model's samples. Samples are returned unchanged if no VAE is stored beside the model."""
    if model.path is None or not (model.path / "vae").is_dir():
        return lambda samples: samples
    vae = vae_of(model)
    return lambda samples: decode(samples, vae)
