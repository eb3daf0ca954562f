"""Tens of thousands of samples: many processes make them in fixed parts, and collect them in one npz file.

The file has the usual layout of reference batches: `arr_0` holds the pictures [N, H, W, C] as bytes, `arr_1` the
classes, if any. A sample depends only on its index and on its batch, and an index is always in the same batch.
"""

import hashlib
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tenuto import __version__
from tenuto.errors import CheckpointError, TenutoError, UsageError
from tenuto.files import check_writable, read_text, replacing, write_json
from tenuto.models import find, is_pipeline, load
from tenuto.models.checkpoint import ModuleTensors, fingerprint_of
from tenuto.provenance import provenance
from tenuto.runtime.executor import Executor, Mode, executor_for
from tenuto.sampling.pictures import Sampling, Solver, decode, generate, vae_of
from tenuto.scheduling.schedule import Schedule, identity
from tenuto.showing.images import save_image, to_pixels
from tenuto_lab.full_size.jobs import SETTINGS, Job, StoredPart, Worker
from tenuto_lab.result_files import fields, in_order, listed, number, optional, read_result, text, whole

SET, MANIFEST, PICTURES, PARTS = "samples.npz", "manifest.json", "pictures", "parts"
PIXELS = "arr_0"  # the array of pictures in a set
Precision = Literal["float32", "bfloat16", "float16"]
Pixels = NDArray[np.uint8]  # [N, H, W, C]


@dataclass(frozen=True)
class Order:
    """A request for samples."""

    model: str
    samples: int
    schedule: Schedule | None = None
    captions: tuple[str, ...] = ()  # if the model draws captions; used in rotation
    steps: int | None = None  # default: the schedule's number, else 50
    guidance: float | None = None  # default: the family's
    solver: Solver | None = None  # default: ddim
    seed: int = 0  # of the first sample; each further sample adds 1
    batch: int = 32
    dtype: Precision | None = None  # default: the checkpoint's own; float32 on a CPU
    vae: Path | None = None
    guided_channels: int | None = None  # default: all; the DiT reference's own script guides 3 of 4
    mode: Mode = "auto"
    compiled: bool = False
    device: str = "cpu"

    @property
    def all_steps(self) -> int:
        return self.steps or (self.schedule.steps if self.schedule else 50)

    @property
    def torch_dtype(self) -> torch.dtype | None:
        return None if self.dtype is None else getattr(torch, self.dtype)


class Painter(Protocol):
    """Draws the pictures of given indices, and names its settings."""

    classes: int | None

    @property
    def settings(self) -> dict[str, Any]: ...

    def draw(self, indices: range) -> Pixels: ...


def make_samples(
    order: Order,
    output: Path,
    worker: Worker | None = None,
    png: bool = False,
    told: Callable[[int], object] = lambda samples: None,
) -> dict[str, Any] | None:
    """Make this process's share of the samples. Returns the manifest if all samples exist, else None.

    Every process of the job calls this with the same order, now or later. Existing samples are not made again.
    """
    worker = worker or Worker.from_environment()
    check_writable(output / MANIFEST)
    with _one_thread(order.device):
        painter = painter_for(order, worker)
        settings = settings_of(order, painter)
        job = Job(output / MANIFEST, output / PARTS, settings, order.samples, order.batch, [output / SET])

        def collect(parts: Sequence[StoredPart]) -> None:
            # Written among the parts and then moved, so that a killed process leaves no partial file beside the set.
            labels = None if painter.classes is None else np.arange(order.samples, dtype=np.int64) % painter.classes
            made, manifest = job.directory / SET, job.directory / MANIFEST
            write_set(made, parts, labels)
            captions = {"captions": list(order.captions)} if order.captions else {}
            seeds = [order.seed, order.seed + order.samples - 1]
            told_of = provenance(order.device, seeds=seeds, processes=worker.world, sha256=_digest(made), **captions)
            write_json(manifest, {SETTINGS: settings, "provenance": told_of})
            made.replace(output / SET)
            manifest.replace(output / MANIFEST)

        def afterwards() -> None:
            check_set(output)
            if png:
                save_pictures(output, job.directory)

        done = job.complete(
            lambda indices: _stored(painter.draw(indices)), collect, worker, lambda part: told(len(part)), afterwards
        )
    return read_manifest(output / MANIFEST) if done else None


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest beside a set of samples, checked field by field."""
    return read_result(path, "manifest of samples", MANIFEST_FILE)


MANIFEST_FILE = fields(
    {
        SETTINGS: fields(
            {
                "samples": whole(),
                "model": text,
                "steps": whole(),
                "solver": text,
                "schedule": optional(fields({"work": number(), "fingerprint": text}, others=True)),
                "guidance": optional(number()),
                "vae": optional(fields({"name": text, "dtype": text}, others=True)),
                "dtype": text,
            },
            others=True,
        ),
        "provenance": fields(
            {"seeds": in_order(whole(-(2**63), 2**64), whole(-(2**63), 2**64))},
            {"sha256": text, "captions": listed(text)},
            others=True,
        ),
    },
    others=True,
)


def check_set(directory: Path) -> None:
    """Refuse a set whose checksum differs from the manifest's."""
    made = read_manifest(directory / MANIFEST)["provenance"]
    if "sha256" in made and made["sha256"] != _digest(directory / SET):
        raise TenutoError(
            f"{directory / SET} is not the set that {directory / MANIFEST} describes: its checksum is another one. "
            f"Move {SET} away, and the same command makes it again."
        )


def settings_of(order: Order, painter: Painter) -> dict[str, Any]:
    """Everything that the bytes of the samples depend on. These settings identify a job."""
    lines = "\n".join(order.captions)
    return {
        "tenuto": __version__,
        "model": order.model,
        **painter.settings,
        "schedule": identity(order.schedule),
        "steps": order.all_steps,
        "samples": order.samples,
        "seed": order.seed,
        "batch": order.batch,
        "captions": f"{len(order.captions)}, sha256:{_sha(lines.encode())}" if order.captions else None,
        "mode": order.mode,
        "compiled": order.compiled,
        "device": torch.device(order.device).type,
    }


def painter_for(order: Order, worker: Worker) -> Painter:
    device = torch.device(worker.device(order.device))
    if is_pipeline(find(order.model)):
        return PipelinePainter(order, device)
    return ModelPainter(order, device)


class ModelPainter:
    """A model of ours, with the VAE beside it or the one that the order names."""

    def __init__(self, order: Order, device: torch.device) -> None:
        self.order = order
        self.model = model = load(order.model, device=device, dtype=order.torch_dtype)
        asks_for = model.architecture.asks_for
        if asks_for == "prompt":
            raise UsageError(f"{model.name} writes text; it is evaluated by: tenuto lab eval lm {model.name}")
        if asks_for == "class" and order.captions:
            raise UsageError(f"{model.name} draws classes, each as often as the others; --captions is not for it.")
        if asks_for == "caption" and not order.captions:
            raise UsageError(f"{model.name} draws captions: name a file of them, one a line, with --captions.")
        self.classes: int | None = model.config.classes if asks_for == "class" else None
        guidance = model.architecture.guidance if order.guidance is None else order.guidance
        self.sampling = Sampling(
            steps=order.all_steps,
            solver=order.solver or "ddim",
            guidance=guidance,
            guided_channels=order.guided_channels,
        )
        self.vae = vae_of(model, order.vae)
        self.executor: Executor = executor_for(model.network, order.schedule, order.mode, order.compiled)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "weights": sorted(self.model.fingerprints),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "solver": self.sampling.solver,
            "guidance": self.sampling.guidance,
            **({} if self.sampling.guided_channels is None else {"guided_channels": self.sampling.guided_channels}),
            "classes": self.classes,
            "vae": _described(self.vae),
        }

    def draw(self, indices: range) -> Pixels:
        wanted: dict[str, Any] = (
            {"captions": [caption_of(self.order.captions, i) for i in indices]}
            if self.classes is None
            else {"classes": [i % self.classes for i in indices]}
        )
        samples = generate(
            self.model,
            **wanted,
            executor=self.executor,
            seeds=[self.order.seed + i for i in indices],
            sampling=self.sampling,
            batch=len(indices),
        )
        return to_pixels(samples if self.vae is None else decode(samples, self.vae))


class PipelinePainter:
    """A diffusers text-to-image pipeline whose denoiser runs under the schedule."""

    classes: int | None = None

    def __init__(self, order: Order, device: torch.device) -> None:
        from diffusers import DiffusionPipeline

        from tenuto.models.diffusers.denoisers import denoiser_of
        from tenuto.pipelines.enable import accelerated
        from tenuto_lab.networks.pipeline_texts import precision
        from tenuto_lab.seam.attachment import units_in

        if not order.captions:
            raise UsageError(f"{order.model} draws captions: name a file of them, one a line, with --captions.")
        if order.vae or order.guided_channels:
            raise UsageError(f"{order.model} is a whole pipeline: its own VAE draws, and it guides all channels.")
        self.order = order
        try:
            self.pipe = DiffusionPipeline.from_pretrained(str(find(order.model)), **precision(order.torch_dtype)).to(
                device
            )
        except Exception as error:  # a damaged directory may raise any error
            raise CheckpointError(f"{order.model} is no pipeline that diffusers can load: {error}") from error
        if order.solver is not None:
            self.pipe.scheduler = scheduler_like(self.pipe.scheduler, order.solver)
        self.pipe.set_progress_bar_config(disable=True)
        denoiser = denoiser_of(self.pipe)
        keys = {key for unit in units_in(denoiser) for key in unit.tensors()}
        self.weights = fingerprint_of(ModuleTensors(denoiser), keys)
        self.dtype = str(denoiser.dtype).removeprefix("torch.")
        self._held = ExitStack()  # keeps the schedule attached while the pipeline lives
        if order.schedule is not None:
            # A requested dtype rounds the weights, so their bytes differ from those that the schedule was made from.
            how: dict[str, Any] = {"mode": order.mode, "compiled": order.compiled, "check_weights": order.dtype is None}
            self._held.enter_context(accelerated(self.pipe, schedule=order.schedule, **how))

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "weights": [self.weights],
            "dtype": self.dtype,
            "solver": type(self.pipe.scheduler).__name__,
            "guidance": self.order.guidance,  # None: the pipeline's own
            "vae": _described(self.pipe.vae, "the pipeline's"),
        }

    def draw(self, indices: range) -> Pixels:
        generators = [torch.Generator().manual_seed(self.order.seed + i) for i in indices]
        guidance = {} if self.order.guidance is None else {"guidance_scale": self.order.guidance}
        images = self.pipe(
            [caption_of(self.order.captions, i) for i in indices],
            num_inference_steps=self.order.all_steps,
            generator=generators,
            output_type="np",
            **guidance,
        ).images
        return (images * 255).round().astype(np.uint8)


def scheduler_like(scheduler: Any, solver: Solver) -> Any:
    """A scheduler for another solver, with the noise levels of the pipeline's own."""
    from diffusers import DDIMScheduler, DPMSolverMultistepScheduler

    if solver == "ddim":
        return DDIMScheduler.from_config(scheduler.config, clip_sample=False)
    return DPMSolverMultistepScheduler.from_config(scheduler.config, algorithm_type="dpmsolver++", solver_order=2)


def write_set(path: Path, parts: Sequence[StoredPart], labels: NDArray[np.int64] | None) -> None:
    """Write the parts as `arr_0` of an npz file. Only one part at a time is in memory."""
    shape = _pixels_of(parts[0]).shape[1:]
    every = (sum(len(part.indices) for part in parts), *shape)
    header = {"descr": "|u1", "fortran_order": False, "shape": every}
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        with archive.open(zipfile.ZipInfo(f"{PIXELS}.npy"), "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for part in parts:
                pixels = _pixels_of(part)
                if pixels.shape[1:] != shape:
                    raise TenutoError(
                        f"{part.path} holds pictures of another shape than {parts[0].path}; take another directory."
                    )
                member.write(pixels.tobytes())
        if labels is not None:
            with archive.open(zipfile.ZipInfo("arr_1.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, labels)


def _pixels_of(part: StoredPart) -> Pixels:
    pixels: Pixels = np.load(BytesIO(part.read()), allow_pickle=False)
    return pixels


def pictures_of(path: Path) -> Iterator[Pixels]:
    """Yield the pictures [H, W, C] of a set. Only one picture at a time is in memory."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{PIXELS}.npy") as member:
        np.lib.format.read_magic(member)
        (count, *shape), _, dtype = np.lib.format.read_array_header_1_0(member)
        for _ in range(count):
            yield np.frombuffer(member.read(math.prod(shape)), dtype).reshape(shape)


def read_captions(path: Path) -> tuple[str, ...]:
    """One caption per line; empty lines do not count."""
    lines = read_text(path, "captions").splitlines()
    captions = tuple(line.strip() for line in lines if line.strip())
    if not captions:
        raise TenutoError(f"{path} holds no captions: one a line is expected.")
    return captions


def caption_of(captions: Sequence[str], index: int) -> str:
    """The caption of a sample. After the last caption the first comes again."""
    return captions[index % len(captions)]


def save_pictures(directory: Path, scratch: Path) -> None:
    """Write each picture of a set to its own file, unless the file exists. scratch: a folder for temporary files."""
    folder = directory / PICTURES
    folder.mkdir(parents=True, exist_ok=True)
    for index, pixels in enumerate(pictures_of(directory / SET)):
        file = folder / f"{index:06d}.png"
        if not file.exists():
            image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
            save_image(image, scratch / file.name)
            (scratch / file.name).replace(file)


def _stored(pixels: Pixels) -> bytes:
    file = BytesIO()
    np.save(file, pixels)
    return file.getvalue()


def _described(vae: Any, name: str | None = None) -> dict[str, str] | None:
    """Name, fingerprint and dtype of a VAE. name: by default the directory that the VAE was loaded from."""
    if vae is None:
        return None
    name = name or str(vae.config["_name_or_path"])
    tensors, dtype = ModuleTensors(vae), str(next(vae.parameters()).dtype).removeprefix("torch.")
    return {"name": name, "fingerprint": fingerprint_of(tensors, tensors.shapes), "dtype": dtype}


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """Use one thread on a CPU, because launchers choose the number of threads, and sums depend on that number."""
    threads = torch.get_num_threads()
    if torch.device(device).type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
