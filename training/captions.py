"""Captions for CIFAR-10's pictures: a template, a word for the class and, now and then, the colour of the middle.

The colour is measured, not known: it names the mean of the picture's central quarter, be it the thing or not.
"""

import torch
from torch import Tensor

NOUNS = [  # as in cifar10.LABELS
    ("airplane", "plane", "jet", "aircraft", "airliner"),
    ("car", "automobile", "sports car", "sedan", "motor car"),
    ("bird", "small bird", "wild bird", "songbird", "feathered bird"),
    ("cat", "kitten", "house cat", "pet cat", "young cat"),
    ("deer", "wild deer", "stag", "doe", "young deer"),
    ("dog", "puppy", "pet dog", "hound", "young dog"),
    ("frog", "toad", "wild frog", "small frog", "tree frog"),
    ("horse", "pony", "wild horse", "stallion", "young horse"),
    ("ship", "boat", "vessel", "cargo ship", "motor boat"),
    ("truck", "lorry", "cargo truck", "fire truck", "big truck"),
]
TEMPLATES = (
    "a {}",
    "a photo of a {}",
    "a picture of a {}",
    "an image of a {}",
    "a small photo of a {}",
    "a close photo of a {}",
    "a blurry photo of a {}",
    "the {} in a photo",
)
COLOURS = ("black", "grey", "white", "red", "brown", "orange", "yellow", "green", "blue", "purple")
EMPTY = ""  # the caption that says nothing, for guidance


def captions(label: int, colour: str | None = None) -> list[str]:
    """Every caption of a class, forty of them: all templates with all words."""
    words = NOUNS[label] if colour is None else [f"{colour} {noun}" for noun in NOUNS[label]]
    return [article(template.format(word)) for template in TEMPLATES for word in words]


def article(caption: str) -> str:
    """ "a airplane" -> "an airplane", and back where a colour stands between. "a European" stays as it is."""
    words = caption.split()
    for i, follower in enumerate(words[1:]):
        if words[i] in ("a", "an"):
            vowel = follower[0].lower() in "aeiou" and not follower.lower().startswith(("eu", "uni"))
            words[i] = "an" if vowel else "a"
    return " ".join(words)


def vocabulary() -> list[str]:
    """Every word of every caption, sorted."""
    return sorted(
        {
            word
            for label in range(len(NOUNS))
            for colour in (None, *COLOURS)
            for caption in captions(label, colour)
            for word in caption.split()
        }
    )


def colours(images: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] -> the index in COLOURS of the mean of each picture's central quarter."""
    quarter = images.shape[-1] // 4
    r, g, b = (images[:, :, quarter:-quarter, quarter:-quarter].float() / 255).mean(dim=(2, 3)).unbind(1)
    value, least = torch.stack([r, g, b]).amax(0), torch.stack([r, g, b]).amin(0)
    chroma = (value - least).clamp(min=1e-6)
    hue = torch.where(value == g, (b - r) / chroma + 2, (r - g) / chroma + 4)  # in sixths of the circle
    hue = torch.where(value == r, (g - b) / chroma % 6, hue)
    hue, saturation = 60 * hue, chroma / value.clamp(min=1e-6)
    rules = [  # the first that holds
        (value < 0.25, "black"),
        ((saturation < 0.15) & (value > 0.72), "white"),
        (saturation < 0.15, "grey"),
        ((hue < 15) | (hue >= 310), "red"),
        ((hue < 42) & ((value < 0.62) | (saturation < 0.45)), "brown"),
        (hue < 42, "orange"),
        ((hue < 68) & ((value < 0.5) | (saturation < 0.3)), "brown"),
        (hue < 68, "yellow"),
        (hue < 165, "green"),
        (hue < 260, "blue"),
    ]
    result = torch.full_like(value, COLOURS.index("purple"), dtype=torch.long)
    for holds, name in reversed(rules):
        result = torch.where(holds, COLOURS.index(name), result)
    return result
