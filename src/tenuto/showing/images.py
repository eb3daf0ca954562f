"""Tensors to pictures: single images, grids, and difference images."""

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tenuto.errors import UsageError
from tenuto.files import replacing
from tenuto.showing.escaping import one_line
from tenuto.showing.plotting import plotting


def to_pixels(samples: Tensor) -> NDArray[np.uint8]:
    """Samples [N, C, H, W] in [-1, 1] as bytes [N, H, W, C]. What is not a number becomes black, with a warning."""
    values = samples.detach().float().cpu()
    if broken := int(values.isnan().flatten(1).any(1).sum()):
        warnings.warn(
            f"{broken} of {len(values)} pictures hold values that are not numbers: they overflowed.", stacklevel=2
        )
    pixels = ((values.nan_to_num(nan=-1).clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return pixels.permute(0, 2, 3, 1).numpy()


def to_image(sample: Tensor) -> Image.Image:
    """One sample [C, H, W] in [-1, 1], of one channel (grey) or three (colour), as a picture."""
    if sample.dim() != 3 or sample.shape[0] not in (1, 3):
        raise UsageError(
            f"A sample of shape {list(sample.shape)} is not a picture of one or three channels; latents need a VAE."
        )
    array = to_pixels(sample[None])[0]
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def grid(samples: Tensor, columns: int, scale: int = 1, gap: int = 2) -> Image.Image:
    """Samples [N, C, H, W] laid out in rows of `columns`, each enlarged `scale` times with hard pixels."""
    pictures = [to_image(sample) for sample in samples]
    width, height = pictures[0].width * scale, pictures[0].height * scale
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    size = (columns * (width + gap) - gap, rows * (height + gap) - gap)
    sheet = Image.new(pictures[0].mode, size, color=255 if pictures[0].mode == "L" else (255, 255, 255))
    for i, picture in enumerate(pictures):
        place = ((i % columns) * (width + gap), (i // columns) * (height + gap))
        sheet.paste(picture.resize((width, height), Image.Resampling.NEAREST), place)
    return sheet


def difference(samples: Tensor, reference: Tensor, gain: float) -> Tensor:
    """|samples − reference| as shown, `gain` times amplified, as pictures: black where they agree."""
    shown = (samples.clamp(-1, 1) - reference.clamp(-1, 1)).abs() * gain
    return (shown - 1).clamp(-1, 1)


def save_image(image: Image.Image, path: Path) -> None:
    with replacing(path) as temporary:
        image.save(temporary, format="PNG")


def save_images(samples: Tensor, directory: str | Path, names: Sequence[str] | None = None) -> list[Path]:
    """Each sample as `name.png` in a directory; names are 000, 001, … by default."""
    names = [f"{i:03d}" for i in range(len(samples))] if names is None else names
    paths = [Path(directory) / f"{name}.png" for name in names]
    for sample, path in zip(samples, paths, strict=True):
        save_image(to_image(sample), path)
    return paths


def png_bytes(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def labelled_grid(samples: Tensor, labels: Sequence[str], scale: int = 3) -> Image.Image:
    """Samples [rows, columns, C, H, W], a row for each label, with the labels to the left."""
    plotting()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sheet = grid(samples.flatten(0, 1), samples.shape[1], scale)
    dpi, margin = 100, 100  # pixels per inch, and pixels for the labels
    figure = Figure(figsize=((sheet.width + margin) / dpi, sheet.height / dpi), dpi=dpi)
    axes = figure.add_axes((margin / (sheet.width + margin), 0, sheet.width / (sheet.width + margin), 1))
    axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, aspect="auto")
    row = sheet.height / len(labels)
    axes.set_yticks([row * (i + 0.5) for i in range(len(labels))], list(map(one_line, labels)), parse_math=False)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
