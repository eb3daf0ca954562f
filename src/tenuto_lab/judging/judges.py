"""The judges of samples: classifiers for pictures, and a small causal language model for text.

judge = picture_judge(model, "cuda")
distance, low, high = judge.distance(images).interval
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tenuto.errors import CheckpointError, TenutoError, UsageError, first_line
from tenuto.extras import install
from tenuto.files import check_fields, read_json
from tenuto.models import Model, place_of
from tenuto_lab.judging.cifar_classifier import CifarClassifier, load_cifar_classifier
from tenuto_lab.judging.classifier import Classifier, load_classifier
from tenuto_lab.judging.statistics import Distance, Statistics, frechet
from tenuto_lab.judging.tiny_classifier import TinyClassifier, load_tiny_classifier

CHUNK = 1000  # pictures at once
ROWS = 64  # texts at once
TINY = 1e-10  # added to lengths before division, as in LPIPS
END_OF_TEXT = 1
TIED = "lm_head.weight"  # not stored: it is the embedding

RESAMPLES = 200  # of a bootstrap; where features are many, an eigenvalue problem for each takes too long
FEW_RESAMPLES, MANY_FEATURES = 20, 512

PictureClassifier = Classifier | CifarClassifier | TinyClassifier
# The classifier for a model's pictures, by their shape.
CLASSIFIERS: dict[tuple[int, ...], tuple[str, Callable[[Path], PictureClassifier]]] = {
    (1, 32, 32): ("fashion-classifier", load_classifier),
    (3, 32, 32): ("cifar-classifier", load_cifar_classifier),
    (3, 64, 64): ("natural-judge", load_tiny_classifier),
}


class Judge(Protocol):
    """Whoever says how far pictures are from real ones."""

    name: str

    @property
    def least(self) -> int:
        """The number of pictures that a distance needs."""
        ...

    @property
    def enough(self) -> int:
        """The number of pictures from which on distances may be compared with published ones: more than features."""
        ...

    def distance(self, images: Tensor) -> Distance | None:
        """The Fréchet distance of pictures [N, C, H, W] in [-1, 1]; None if there are too few of them."""
        ...

    def value(self, images: Tensor) -> float | None:
        """The same distance of a small set, without an interval: to see how sets differ, not how good they are."""
        ...

    def agrees(self, images: Tensor, labels: Tensor) -> Tensor:
        """Whether each picture shows the requested class: bool [N]."""
        ...


def resamples_for(features: int) -> int:
    """How often a set with this many features is resampled."""
    return RESAMPLES if features <= MANY_FEATURES else FEW_RESAMPLES


class PictureJudge:
    """A classifier, and the statistics of real pictures in its features. Results lie on the classifier's device."""

    def __init__(
        self, name: str, module: PictureClassifier, statistics: Statistics | None = None, labels: Sequence[str] = ()
    ) -> None:
        self.name = f"{name} features"
        self.module = module
        self.statistics = statistics  # of real held-out pictures
        self.labels = list(labels)

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def least(self) -> int:
        """More pictures than features, for an invertible covariance."""
        return 2 if self.statistics is None else len(self.statistics.mean) + 1

    @property
    def enough(self) -> int:
        return self.least

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """[N, D]: the features for Fréchet distances."""
        return torch.cat([self.module.features(part) for part in self._parts(images)])

    def distance(self, images: Tensor) -> Distance | None:
        """The Fréchet distance from real pictures; None if there are too few pictures for an invertible covariance."""
        if self.statistics is None or len(images) < self.least:
            return None
        many = resamples_for(len(self.statistics.mean))
        return Distance.of(self.features(images).cpu(), self.statistics.to("cpu"), many)

    def value(self, images: Tensor) -> float | None:
        """As in Judge."""
        if self.statistics is None or len(images) < 2:
            return None
        return frechet(Statistics.of(self.features(images).cpu()), self.statistics.to("cpu"))

    @torch.no_grad()
    def agrees(self, images: Tensor, labels: Tensor) -> Tensor:
        """Whether the classifier sees the requested class in each picture: bool [N]."""
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} pictures cannot have {len(labels)} labels")
        guesses = torch.cat([self.module(part).argmax(1) for part in self._parts(images)])
        return guesses == labels.to(self.device)

    @torch.no_grad()
    def perceptual(self, images: Tensor, reference: Tensor) -> Tensor:
        """How different each picture looks from its reference, like LPIPS without learnt weights: [N], 0 if equal.

        After each convolution the channel vector at every place is scaled to length 1. The squared differences of
        these vectors are averaged over places and summed over convolutions.
        """
        if images.shape != reference.shape:
            raise ValueError(
                f"pictures of shape {tuple(images.shape)} cannot be compared with {tuple(reference.shape)}"
            )
        pairs = zip(self._parts(images), self._parts(reference), strict=True)
        return torch.cat([self._differences(part, other) for part, other in pairs])

    def _differences(self, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(len(a), device=a.device)
        for stage in self.module.convolutions:
            a, b = stage(a), stage(b)
            if not isinstance(stage, nn.MaxPool2d):
                total += (_directions(a) - _directions(b)).square().sum(dim=1).mean(dim=(1, 2))
        return total

    def _parts(self, images: Tensor) -> Iterator[Tensor]:
        if images.ndim != 4 or not len(images):
            raise ValueError(f"pictures should be [N, C, H, W], not {tuple(images.shape)}")
        return (part.to(self.device, torch.float32).clamp(-1, 1) for part in images.split(CHUNK))


def picture_shape(model: Model) -> tuple[int, ...]:
    """Channels, height and width of a model's pictures: its samples, or what the VAE makes of them."""
    shape: tuple[int, ...] = tuple(model.config.sample_shape)
    if model.path is None or not (model.path / "vae").is_dir():
        return shape
    config = read_json(model.path / "vae" / "config.json", "VAE's config")
    kinds = {"block_out_channels": list, "out_channels": int}
    if wrong := [name for name, kind in kinds.items() if not isinstance(config.get(name), kind)]:
        raise CheckpointError(f"The config of {model.path / 'vae'} has no {wrong[0]}.")
    scale = 2 ** (len(config["block_out_channels"]) - 1)
    return config["out_channels"], scale * shape[1], scale * shape[2]


def picture_judge(model: Model, device: str | torch.device) -> PictureJudge | None:
    """The shipped judge of a model's pictures; None if there is no judge for this kind of picture."""
    draws = hasattr(model.config, "sample_shape")  # a language model has none
    judge = judge_of(picture_shape(model), device) if draws else None
    if judge is None:
        return None
    # A model with other classes draws things that the judge does not know.
    classes, labels = getattr(model.config, "classes", len(judge.labels)), list(model.labels or judge.labels)
    return judge if classes == len(judge.labels) and labels == judge.labels else None


def judge_of(shape: tuple[int, ...], device: str | torch.device) -> PictureJudge | None:
    """The shipped judge for pictures of this shape (channels, height, width); None if there is none."""
    if shape not in CLASSIFIERS:
        return None
    name, load = CLASSIFIERS[shape]
    directory = place_of(name)
    if directory is None:
        return None
    labels = read_json(directory / "config.json", "classifier's config")["labels"]
    path = directory / "statistics.safetensors"
    statistics = Statistics.load(path).to(device) if path.exists() else None
    return PictureJudge(name, load(directory).to(device).requires_grad_(False), statistics, labels)


class TextJudge:
    """A small causal language model, trained on books. It gives book-like text a high likelihood."""

    def __init__(self, network: Any, name: str = "causal-judge") -> None:
        self.name = name
        self.network = network.eval()

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def longest(self) -> int:
        """The most tokens that a text may have."""
        return int(self.network.config.max_position_embeddings)

    @torch.no_grad()
    def nll(self, rows: Tensor, first: int) -> Tensor:
        """Negative log-likelihood of each text from position `first` on, in nats a token: float32 [B].

        rows   tokens [B, N], beginning with the start-of-text
        first  position at which the judged part begins; tokens after its first end-of-text do not count
        """
        if rows.ndim != 2 or not 0 < first < rows.shape[1] <= self.longest:
            raise UsageError(
                f"Rows of shape {tuple(rows.shape)} cannot be judged from token {first} on: each has one token before "
                f"that at least, and {self.longest} in all at most."
            )
        return torch.cat([self._nll(part.to(self.device), first) for part in rows.split(ROWS)])

    def _nll(self, rows: Tensor, first: int) -> Tensor:
        written = rows[:, first:]
        logits = self.network(input_ids=rows, use_cache=False).logits[:, first - 1 : -1].float()
        losses = -logits.log_softmax(-1).gather(-1, written[..., None])[..., 0]
        ends = written == END_OF_TEXT
        counted = ends.cumsum(1) - ends.long() == 0  # no end-of-text before the token
        return (losses * counted).sum(1) / counted.sum(1)


def build_causal(config: dict[str, Any]) -> Any:
    """A LlamaForCausalLM of `transformers`, from the fields of its config.json; weights are random."""
    try:
        transformers = import_module("transformers")
        kinds = transformers.LlamaConfig, transformers.LlamaForCausalLM
    except ImportError as error:
        raise TenutoError(
            f"Judging text needs the package transformers, which is not installed: {install('pipelines')}"
        ) from error
    return kinds[1](kinds[0](**{key: value for key, value in config.items() if key != "model_type"}))


def load_text_judge(directory: Path, device: str | torch.device = "cpu") -> TextJudge:
    """The judge stored in a directory, in float32."""
    path, given = directory / "model.safetensors", read_json(directory / "config.json", "causal judge's config")
    if given.get("model_type") != "llama":
        raise CheckpointError(f"{directory} holds no causal judge: its model_type is {given.get('model_type')!r}.")
    network = build_causal(given).float()
    try:
        found = network.load_state_dict(load_file(path), strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold this judge's weights: {first_line(error)}") from error
    if wrong := [key for key in (*found.missing_keys, *found.unexpected_keys) if key != TIED]:
        raise CheckpointError(f"{path} does not fit its config: missing or surplus are {', '.join(wrong[:3])}.")
    if TIED in found.missing_keys and not network.config.tie_word_embeddings:
        raise CheckpointError(f"{path} does not fit its config: it has no tensor {TIED}.")
    return TextJudge(network.to(device).requires_grad_(False), directory.name)


def text_judge(device: str | torch.device) -> TextJudge | None:
    """The judge of prose that training.train_causal put into the folder of weights; None if there is none."""
    directory = place_of("causal-judge")
    return None if directory is None else load_text_judge(directory, device)


class Problem(TypedDict):
    prompt: list[int]  # begins with the start-of-text
    answer: list[int]  # without the end-of-text
    metric: NotRequired[Callable[[list[int]], float]]  # of the tokens written; by default they must be the answer


def problems(model_directory: Path) -> dict[str, list[Problem]]:
    """The held-out problems stored beside a language model, by task, as its own tokens."""
    stored, path = _stored(model_directory), model_directory / "problems.json"
    for task, posed in stored["problems"].items():
        if not isinstance(posed, list) or not posed:
            raise TenutoError(f"{path}: the problems of {task!r} should be a list of some.")
        for i, problem in enumerate(posed):
            where = f"{path}: problem {i} of {task!r}"
            for part, tokens in check_fields(problem, where, {"prompt": list, "answer": list}).items():
                if not tokens or any(type(token) is not int or token < 0 for token in tokens):
                    raise TenutoError(f"{where}: {part!r} should be a list of tokens.")
    found: dict[str, list[Problem]] = stored["problems"]
    return found


def answer_lengths(model_directory: Path) -> dict[str, int]:
    """How many tokens each task's answers get; empty if the file of problems does not say."""
    lengths: dict[str, int] = _stored(model_directory).get("lengths", {})
    for task, tokens in lengths.items():
        if type(tokens) is not int or tokens < 1:
            raise TenutoError(f"{model_directory / 'problems.json'}: the length of {task!r} should be some tokens.")
    return lengths


def _stored(model_directory: Path) -> dict[str, Any]:
    path = model_directory / "problems.json"
    given = read_json(path, "list of problems")
    lengths = {"lengths": dict} if "lengths" in given else {}
    return check_fields(given, str(path), {"problems": dict, "provenance": dict, **lengths})


def _directions(x: Tensor) -> Tensor:
    """[B, C, H, W] with the channels at each place scaled to length 1."""
    return x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + TINY)
