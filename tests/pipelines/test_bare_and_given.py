"""Pipelines under a schedule: what they draw, what is computed for it, and what they are left as."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DiTPipeline,
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
)
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from tenuto.errors import CheckpointError, ScheduleError
from tenuto.models import dit
from tenuto.models.checkpoint import ModuleTensors
from tenuto.pipelines.enable import accelerated, summary
from tenuto.runtime.executor import Executor
from tenuto.scheduling.schedule import Schedule
from tenuto_lab.scoring.scores import score_tensors
from tenuto_lab.seam.attachment import attach, units_of
from tenuto_lab.seam.blocks import sites_of
from tests.helpers.denoisers import DIT, SD_1, SDXL, inputs, make, make_schedule, run
from tests.helpers.dit_weights import to_diffusers, to_original
from tests.helpers.pipelines import tensor


@pytest.fixture
def computed() -> Iterator[Any]:
    """Counts how often the last matrix of each branch is really used, and not on tensors without values."""
    handles = []

    def count(counts: Counter[str], name: str, output: Tensor) -> None:
        if not isinstance(output, FakeTensor):
            counts.update([name])

    def watch(module: nn.Module) -> Counter[str]:
        counts: Counter[str] = Counter()
        modules = dict(module.named_modules())
        for site in sites_of(module):
            for unit in site.units:
                last = unit.tensors()[-1].removesuffix(".weight")
                handles.append(
                    modules[last].register_forward_hook(lambda *given, name=unit.name: count(counts, name, given[-1]))
                )
        return counts

    yield watch
    for handle in handles:
        handle.remove()


@pytest.fixture(scope="module")
def vae() -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8).eval()


@pytest.fixture(scope="module")
def pipeline(vae: AutoencoderKL) -> StableDiffusionXLPipeline:
    pipe = StableDiffusionXLPipeline(
        vae=vae,
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=make("sdxl"),
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        add_watermarker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def paint(pipe: StableDiffusionXLPipeline, steps: int = 6, seed: int = 0, **options: Any) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
    text = {name: torch.randn(1, *((5, 16) if "pooled" not in name else (16,)), generator=generator) for name in names}
    return pipe(**text, num_inference_steps=steps, generator=generator, output_type="pt", **options).images


def test_an_all_active_schedule_paints_the_same_picture(pipeline: StableDiffusionXLPipeline) -> None:
    before = paint(pipeline)
    schedule = make_schedule(units_of(pipeline.unet.config), 6)
    with accelerated(pipeline, schedule=schedule):
        assert torch.equal(paint(pipeline), before)
        assert torch.equal(paint(pipeline), before)
    assert torch.equal(paint(pipeline), before)


def test_a_schedule_saves_branches_in_every_generation(pipeline: StableDiffusionXLPipeline, computed: Any) -> None:
    before, counts = paint(pipeline), computed(pipeline.unet)
    schedule = make_schedule(units_of(pipeline.unet.config), 6, every=3)
    with accelerated(pipeline, schedule=schedule):
        first = paint(pipeline)
        assert set(counts.values()) == {2} and len(counts) == len(schedule.units)
        assert summary(pipeline).steps == 6 and summary(pipeline).keep == schedule.keep
        assert torch.equal(paint(pipeline), first)
        assert set(counts.values()) == {4}
        other = paint(pipeline, seed=1)
    assert not torch.equal(first, before) and not torch.equal(first, other)


def test_a_pipeline_whose_output_is_held_evaluates_its_denoiser_less_often(pipeline: StableDiffusionXLPipeline) -> None:
    units = units_of(pipeline.unet.config)
    schedule = make_schedule(units, 6, every=3, predict="linear", keep="output")
    calls: list[int] = []
    handle = pipeline.unet.conv_in.register_forward_hook(lambda *_: calls.append(1))
    with accelerated(pipeline, schedule=schedule):
        first = paint(pipeline)
        assert torch.equal(paint(pipeline), first)
    handle.remove()
    assert len(calls) == 2 * 2
    assert torch.isfinite(first).all()


def test_the_pipeline_is_restored_exactly(pipeline: StableDiffusionXLPipeline) -> None:
    paint(pipeline)
    objects = {"scheduler": pipeline.scheduler, **dict(pipeline.unet.named_modules())}
    before = {name: set(vars(value)) for name, value in objects.items()}
    with accelerated(pipeline, schedule=make_schedule(units_of(pipeline.unet.config), 6)):
        paint(pipeline)
        assert {name: set(vars(value)) for name, value in objects.items()} != before
    with (
        pytest.raises(ZeroDivisionError),
        accelerated(pipeline, schedule=make_schedule(units_of(pipeline.unet.config), 6)),
    ):
        raise ZeroDivisionError
    assert {name: set(vars(value)) for name, value in objects.items()} == before


def test_an_exception_leaves_nothing_behind(pipeline: StableDiffusionXLPipeline) -> None:
    schedule = make_schedule(units_of(pipeline.unet.config), 6, every=3)

    def fail(*args: Any) -> None:
        raise KeyboardInterrupt

    with accelerated(pipeline, schedule=schedule):
        expected = paint(pipeline)
        handle = pipeline.unet.conv_out.register_forward_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            paint(pipeline, seed=5)
        handle.remove()
        with pytest.raises(KeyboardInterrupt):
            paint(pipeline, seed=5, callback_on_step_end=fail)
        assert torch.equal(paint(pipeline), expected)


def test_another_number_of_steps_is_refused(pipeline: StableDiffusionXLPipeline) -> None:
    schedule = make_schedule(units_of(pipeline.unet.config), 4)
    with accelerated(pipeline, schedule=schedule), pytest.raises(ScheduleError, match="has 4 steps.* at 6"):
        paint(pipeline)


def test_a_loop_that_leaves_steps_out_runs_its_part_of_a_schedule(
    pipeline: StableDiffusionXLPipeline, computed: Any
) -> None:
    schedule, counts = make_schedule(units_of(pipeline.unet.config), 6, every=2), computed(pipeline.unet)
    with accelerated(pipeline, schedule=schedule):
        assert paint(pipeline, steps=6, denoising_end=0.5).shape == (1, 3, 8, 8)
    assert set(counts.values()) == {2}  # of the first three steps, the first and the third


def test_a_scheduler_exchanged_meanwhile_is_noticed(pipeline: StableDiffusionXLPipeline) -> None:
    euler, schedule = pipeline.scheduler, make_schedule(units_of(pipeline.unet.config), 6, every=2)
    with accelerated(pipeline, schedule=schedule):
        paint(pipeline)
        pipeline.scheduler = DDIMScheduler.from_config(euler.config)
        first = paint(pipeline)
        assert torch.equal(paint(pipeline), first)
    assert "step" not in vars(pipeline.scheduler) and "step" not in vars(euler)
    pipeline.scheduler = euler


def test_a_bare_denoiser_is_started_by_hand_and_must_keep_its_shape() -> None:
    network = make("sd1")
    with accelerated(network, schedule=make_schedule(units_of(network.config), 2, every=2)) as run_:
        first = run(network, inputs("sd1"))
        second = run(network, inputs("sd1", seed=1))
        with pytest.raises(ScheduleError, match="once more"):
            run(network, inputs("sd1"))
        run_.start()
        assert torch.equal(run(network, inputs("sd1")), first)
        with pytest.raises(ScheduleError, match=r"changed from \[2, 4, 8, 8\] to \[1, 4, 8, 8\]"):
            run(network, inputs("sd1", batch=1))
        assert torch.equal(run(network, inputs("sd1", seed=1)), second)


def test_a_schedule_of_another_model_or_other_weights_is_refused() -> None:
    network = make("sd1")
    with pytest.raises(ScheduleError, match="not for this UNet2DConditionModel"):
        accelerated(network, schedule=make_schedule(units_of(SDXL), 2)).__enter__()
    with pytest.raises(ScheduleError, match="other weights"):
        accelerated(network, schedule=make_schedule(units_of(SD_1), 2), check_weights=True).__enter__()
    attach(network).detach()  # neither refusal left it attached
    scores = score_tensors(ModuleTensors(network), units_of(SD_1), model="tiny", architecture="unet")
    fitting = Schedule(**{**vars(make_schedule(units_of(SD_1), 2)), "fingerprint": scores.fingerprint})
    with accelerated(network, schedule=fitting, check_weights=True):
        run(network, inputs("sd1"))


def test_diffusers_dit_and_our_own_agree_under_one_schedule(vae: AutoencoderKL, computed: Any) -> None:
    config = dit.DiTConfig(input_size=8, hidden_size=16, depth=2, num_heads=2)
    torch.manual_seed(0)
    ours = dit.DiT(config)
    ours.initialize_weights()
    for name, parameter in ours.named_parameters():
        if "adaLN" in name or "final_layer" in name:
            nn.init.normal_(parameter, std=0.5)  # gates of order one: a branch must matter
        elif "embed" in name and parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)  # … and so must the timestep
    theirs = make("dit")
    theirs.load_state_dict(to_diffusers(ours.state_dict()))
    for block in theirs.transformer_blocks:
        block.norm1.emb.time_proj.downscale_freq_shift = 0  # the reference divides by half, diffusers by half − 1
    pipe = DiTPipeline(theirs, vae, DDIMScheduler(clip_sample=False))
    pipe.set_progress_bar_config(disable=True)
    full = make_schedule(units_of({"_class_name": "DiTTransformer2DModel", **DIT}), 6)
    active = full.active.copy()
    active[:, 2::2] = False
    active[1, 4] = True
    saving = Schedule(**{**vars(full), "active": active, "predict": "linear"})

    def theirs_under(schedule: Schedule | None) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        call = {"class_labels": [3, 5], "num_inference_steps": 6, "generator": generator, "output_type": "pt"}
        if schedule is None:
            return tensor(pipe(**call).images)
        with accelerated(pipe, schedule=schedule):
            return tensor(pipe(**call).images)

    @torch.no_grad()
    def ours_under(schedule: Schedule) -> Tensor:
        generation, solver = Executor(ours, schedule).start(), DDIMScheduler(clip_sample=False)
        solver.set_timesteps(6)
        x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        for t in solver.timesteps:
            output = generation(torch.cat([x, x]), t.expand(4), torch.tensor([3, 5, 1000, 1000]))[:, :4]
            conditional, unconditional = output.chunk(2)
            x = solver.step(unconditional + 4 * (conditional - unconditional), t, x).prev_sample
        return (vae.decode(x / vae.config.scaling_factor).sample / 2 + 0.5).clamp(0, 1)

    counts = computed(theirs)
    plain_images = theirs_under(None)
    assert torch.equal(theirs_under(full), plain_images)
    counts.clear()
    saved = theirs_under(saving)
    assert [counts[unit] for unit in saving.units] == saving.active.sum(axis=1).tolist()
    assert (saved - plain_images).abs().max() > 1e-3
    torch.testing.assert_close(ours_under(full), plain_images, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours_under(saving), saved, atol=1e-5, rtol=0)


def test_dit_weights_survive_both_conversions() -> None:
    state = dit.DiT(dit.DiTConfig(input_size=8, hidden_size=16, depth=2, num_heads=2)).state_dict()
    there = to_diffusers(state)
    assert set(there) == set(make("dit").state_dict())
    back = to_original(there, side=4)
    assert set(back) == set(state) and all(torch.equal(back[key], state[key]) for key in state)
    key = "transformer_blocks.1.norm1.emb.timestep_embedder.linear_1.bias"
    there[key] = there[key] + 1
    with pytest.raises(CheckpointError, match=r"transformer_blocks\.1 has a timestep_embedder"):
        to_original(there, side=4)
    with pytest.raises(CheckpointError, match=r"x_embedder\.proj\.weight is missing"):
        to_diffusers({})
    with pytest.raises(CheckpointError, match="not expected, such as surplus"):
        to_diffusers({**state, "surplus": torch.zeros(1)})
