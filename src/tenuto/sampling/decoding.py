"""From samples to pictures: a latent model's samples are decoded by the VAE that is stored beside the model."""

from collections.abc import Callable

from torch import Tensor

from tenuto.models import Model
from tenuto.sampling.pictures import decode, vae_of


def decoder_of(model: Model) -> Callable[[Tensor], Tensor]:
    """What makes pictures of a model's samples. Samples are returned unchanged if no VAE is stored beside the model."""
    if not _has_vae(model):
        return lambda samples: samples
    vae = vae_of(model)
    return lambda samples: decode(samples, vae)


def picture_shape(model: Model) -> tuple[int, ...]:
    """Channels, height and width of a model's pictures."""
    shape: tuple[int, ...] = tuple(model.config.sample_shape)
    if not _has_vae(model):
        return shape
    config = vae_of(model).config
    scale = 2 ** (len(config.block_out_channels) - 1)
    return (int(config.out_channels), scale * shape[1], scale * shape[2])


def _has_vae(model: Model) -> bool:
    return model.path is not None and (model.path / "vae").is_dir()
