"""CLIP scores: how well pictures match their captions, by a CLIP model of transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenuto.errors import CheckpointError, TenutoError, first_line
from tenuto.extras import install

ROWS = 64  # pictures at once


@torch.inference_mode()
def clip_scores(
    pixels: NDArray[np.uint8], captions: Sequence[str], directory: Path, device: str | torch.device = "cpu"
) -> Tensor:
    """100 · max(0, cos) of each picture [N, H, W, 3] with its caption: [N], on the CPU."""
    try:
        import transformers
    except ImportError as error:
        raise TenutoError(f"CLIP scores need transformers, which is not installed: {install('eval')}") from error
    if not directory.is_dir():  # otherwise transformers would look for it on the hub
        raise CheckpointError(f"{directory} holds no CLIP model: there is no such directory.")
    try:
        model: Any = transformers.CLIPModel.from_pretrained(directory)
        model = model.to(device).eval()
        tokenizer = transformers.CLIPTokenizer.from_pretrained(directory)
        # Some versions of transformers have a separate processor that needs no torchvision.
        kind = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
        processor = kind.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{directory} holds no CLIP model with its processors: {first_line(error)}") from error
    longest = model.config.text_config.max_position_embeddings
    scores = []
    for start in range(0, len(pixels), ROWS):
        part, said = pixels[start : start + ROWS], list(captions[start : start + ROWS])
        colour = np.broadcast_to(part, (*part.shape[:3], 3))
        text = tokenizer(said, padding=True, truncation=True, max_length=longest, return_tensors="pt").to(device)
        images = processor(images=list(colour), return_tensors="pt")["pixel_values"].to(device)
        seen = model(input_ids=text["input_ids"], attention_mask=text["attention_mask"], pixel_values=images)
        cosine = torch.cosine_similarity(seen.image_embeds.float(), seen.text_embeds.float(), dim=-1)
        scores.append(100 * cosine.clamp(min=0).cpu())
    return torch.cat(scores)
