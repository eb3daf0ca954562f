"""A model that draws, with its requests and its judge: FID over all seeds, and dB to the full run's pictures.

Latents are decoded by the model's VAE before anybody judges them. Only pictures are clamped to [-1, 1], never latents.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tenuto.models import Model
from tenuto.quality import psnr
from tenuto.runtime.executor import Executor
from tenuto.sampling.pictures import Sampling, Solver, decode, generate
from tenuto_lab.frontier.measurements import HIGHEST, timed, work_of
from tenuto_lab.judging.judges import Judge
from tenuto_lab.judging.statistics import Distance
from tenuto_lab.paper.trials import ModelBench, Trial, Way
from tenuto_lab.rivals import Rival

APART = 100_000  # distance between the noise seeds of two rounds
STEPS = {"unet": 50}  # the paper's, of SDXL; all others take 100
GUIDANCE = {"dit": 1.5, "uvit": 1.5, "unet": 7.5}  # the paper's


class PictureBench(ModelBench):
    """quality: psnr, dB to the full run's picture from the same noise. Fréchet distances are over all seeds.

    wanted  classes or captions, the same for every seed
    judge   what Fréchet distances are taken with; None: only dB are measured
    labels  the classes that the judge should see, if it knows classes
    vae     decodes latents
    """

    quality = "psnr"
    quality_title = "dB to the full run"
    writes = False

    def __init__(
        self,
        model: Model,
        samples: int,
        seeds: range,
        wanted: Sequence[Any],
        judge: Judge | None = None,
        labels: Sequence[int] | None = None,
        *,
        guidance: float | None = None,
        vae: Any = None,
        batch: int | None = None,
    ) -> None:
        super().__init__(model, samples, seeds)
        self.steps = STEPS.get(self.family, 100)
        self.wanted, self.judge, self.labels, self.vae = list(wanted), judge, labels, vae
        self.guidance = GUIDANCE.get(self.family) if guidance is None else guidance
        self.batch = min(samples, batch or (256 if self.on_gpu else 32))
        self.chance = None if labels is None else 1 / len(set(labels))
        self._noise: float | None = None  # FID of noise
        many = samples * len(seeds)
        if judge is not None and many < judge.least:
            self.lacks = (
                f"{model.name}: {many} pictures are too few for an FID in {judge.name}; {judge.least} are enough "
                "(--samples times --seeds). Claims about FID will say: cannot tell."
            )
        elif judge is not None and many < judge.enough:
            self.lacks = (
                f"{model.name}: {many} pictures are fewer than the features, so their FIDs are too high. Compare them "
                f"with each other only; for published ones take at least {judge.enough} (--samples times --seeds)."
            )
        self._full: dict[int, tuple[list[Tensor], float | None]] = {}
        self._distances: dict[int, Distance | None] = {}  # of the full run's pictures from real pictures, by steps

    def draw(
        self, executor: Executor, steps: int, solver: Solver, seed: int, count: int | None = None, first: int = 0
    ) -> Tensor:
        """Pictures in [-1, 1]: `count` of a round, from the `first` on."""
        wanted = self.wanted[first:][: self.samples if count is None else count]
        sampling = Sampling(steps=steps, solver=solver, guidance=self.guidance)
        asked: dict[str, Any] = {"classes" if self.model.architecture.asks_for == "class" else "captions": wanted}
        first_seed = seed * APART + first
        made = generate(self.model, **asked, seed=first_seed, executor=executor, sampling=sampling, batch=self.batch)
        return (made if self.vae is None else decode(made.float(), self.vae)).float().clamp(-1, 1)

    def trial(self, way: Way, steps: int | None = None, base: int | None = None, solver: Solver = "ddim") -> Trial:
        steps = steps or self.steps
        base = base or steps
        full, full_seconds = self.full(base)
        executor = way(steps, 1)
        images, seconds = self._draw_all(executor, steps, solver)
        work, flop_work = work_of(executor, self.model.units, steps / base)
        alike = torch.cat([psnr(a, b).clamp(max=HIGHEST) for a, b in zip(images, full, strict=True)]).tolist()
        found = Trial(seconds, full_seconds, work, flop_work, {"psnr": alike})
        executor.release()
        self._judge(found, images, base)
        for name, values in found.values.items():
            found.of_seeds[name] = self.of_each_seed(values)
        return found

    def sample(self, steps: int, count: int | None = None, first: int = 0) -> Callable[[Executor], Tensor]:
        return lambda executor: self.draw(executor, steps, "ddim", self.seeds[0], count, first)

    def seconds(self, way: Way | None, steps: int, solver: Solver = "ddim") -> float:
        executor = Executor(self.model.network, mode="eager") if way is None else way(steps, 1)
        draw = partial(self.draw, executor, steps, solver, self.seeds[0], self.batch)
        draw()  # warm-up
        took = timed(draw, self.model.device)[1] / self.batch
        executor.release()
        return took

    def full(self, steps: int) -> tuple[list[Tensor], float | None]:
        """The pictures of the full run for every seed, and its seconds per sample. It runs eagerly, as users run it."""
        if steps not in self._full:
            self._full[steps] = self._draw_all(Executor(self.model.network, mode="eager"), steps, "ddim")
        return self._full[steps]

    def _draw_all(self, executor: Executor, steps: int, solver: Solver) -> tuple[list[Tensor], float | None]:
        if not self.takes_time:
            return [self._round(executor, steps, solver, seed) for seed in self.seeds], None
        # Warm-up: a GPU records graphs for whole batches; on a CPU one sample is enough.
        self.draw(executor, steps, solver, self.seeds[0], self.batch if self.on_gpu else 1)
        if isinstance(executor, Rival):
            executor.forget()
        drawn = [timed(partial(self._round, executor, steps, solver, seed), self.model.device) for seed in self.seeds]
        return [images for images, _ in drawn], sum(took for _, took in drawn) / (len(drawn) * self.samples)

    def _round(self, executor: Executor, steps: int, solver: Solver, seed: int) -> Tensor:
        """The pictures of one seed, a batch at a time."""
        parts = []
        for first in range(0, self.samples, self.batch):
            parts.append(self.draw(executor, steps, solver, seed, min(self.batch, self.samples - first), first))
            done, all_of = seed * self.samples + first + len(parts[-1]), self.samples * len(self.seeds)
            self.tell(f"{done} of {all_of} pictures")
        return torch.cat(parts)

    def _judge(self, found: Trial, images: Sequence[Tensor], base: int) -> None:
        judge = self.judge
        if judge is None:
            return
        if self.labels is not None:
            labels = torch.tensor(list(self.labels) * len(self.seeds))
            found.values["agreement"] = judge.agrees(torch.cat(list(images)), labels).double().tolist()
        if base not in self._distances:
            self._distances[base] = judge.distance(torch.cat(self.full(base)[0]))
        distance, full = judge.distance(torch.cat(list(images))), self._distances[base]
        if distance is None or full is None:
            return
        found.figures["fid"], found.figures["full_fid"] = distance.interval, full.interval
        found.figures["fid_delta"] = distance.beyond(full)
        if self.chance is None and (noise := self._noise_fid(images)) is not None:
            found.figures["noise_fid"] = noise, noise, noise
        found.draws["fid"] = distance.drawn.tolist()
        each = [judge.value(one) for one in images] if len(self.seeds) > 1 else []
        found.of_seeds["fid"] = [one for one in each if one is not None]

    def _noise_fid(self, images: Sequence[Tensor]) -> float | None:
        """The FID of as much white noise: what is as bad shows nothing."""
        if self._noise is None and self.judge is not None:
            generator = torch.Generator().manual_seed(0)
            noise = 2 * torch.rand(len(images) * self.samples, *images[0].shape[1:], generator=generator) - 1
            self._noise = self.judge.value(noise)
        return self._noise
