"""diffusers' directories, their single files, and live modules: all the same model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DiTTransformer2DModel,
    UNet2DConditionModel,
)
from safetensors.torch import save_file
from torch import Tensor

import tenuto
from tenuto.errors import CheckpointError, ScheduleError, UsageError
from tenuto.models import load, open_model
from tenuto.models.architecture import ConfigError, NoiseLevels
from tenuto.models.checkpoint import ModuleTensors
from tenuto.pipelines.enable import accelerated
from tenuto.runtime.executor import Executor
from tenuto_lab.networks import unet
from tenuto_lab.scoring.scores import score_tensors
from tenuto_lab.seam.attachment import attach, units_of
from tests.helpers.denoisers import DIT, SDXL, inputs, make, make_schedule, run


def original_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a tiny SDXL UNet under the names of the original single file."""
    places = {"conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2"}
    places |= {"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2"}
    places |= {"add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2"}
    for i in range(3):
        for j in range(2):
            place = f"input_blocks.{1 + 3 * i + j}"
            places |= {f"down_blocks.{i}.resnets.{j}": f"{place}.0", f"down_blocks.{i}.attentions.{j}": f"{place}.1"}
        places[f"down_blocks.{i}.downsamplers.0.conv"] = f"input_blocks.{3 + 3 * i}.0.op"
        for j in range(3):
            place = f"output_blocks.{3 * i + j}"
            places |= {f"up_blocks.{i}.resnets.{j}": f"{place}.0", f"up_blocks.{i}.attentions.{j}": f"{place}.1"}
        places[f"up_blocks.{i}.upsamplers.0.conv"] = f"output_blocks.{3 * i + 2}.2.conv"
    places |= {"mid_block.resnets.0": "middle_block.0", "mid_block.attentions.0": "middle_block.1"}
    places |= {"mid_block.resnets.1": "middle_block.2"}
    inner = {"norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1"}
    inner |= {"norm2": "out_layers.0", "conv2": "out_layers.3", "conv_shortcut": "skip_connection"}
    result = {}
    for key, value in state.items():
        new = next(place for place in places if key.startswith(f"{place}."))
        rest = key.removeprefix(f"{new}.")
        if ".resnets." in new:
            rest = f"{inner[rest.split('.')[0]]}.{rest.split('.')[1]}"
        result[f"model.diffusion_model.{places[new]}.{rest}"] = value
    return result


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's directory with a sharded unet, a unet's own directory, and a single file with other parts in it."""
    folder, network = tmp_path_factory.mktemp("checkpoints"), make("sdxl")
    network.save_pretrained(folder / "pipeline" / "unet", max_shard_size="200KB")
    network.save_pretrained(folder / "directory")
    save_file(
        {**original_names(network.state_dict()), "first_stage_model.decoder.conv_in.weight": torch.zeros(1)},
        folder / "single.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(dict(network.config)))
    return folder


@pytest.mark.parametrize("name", ["pipeline", "directory", "single.safetensors"])
def test_every_layout_loads_the_same_unet(checkpoints: Path, name: str) -> None:
    network, call = load(str(checkpoints / name)).network, inputs("sdxl")
    assert network.config == unet.UNetConfig.from_diffusers(make("sdxl").config)
    with torch.no_grad():
        output = network(call["sample"], torch.tensor(7), call["encoder_hidden_states"], call["added_cond_kwargs"])
    assert torch.equal(output, run(make("sdxl"), call))
    assert {key: tuple(value.shape) for key, value in network.state_dict().items()} == unet.expected_shapes(
        network.config
    )


def test_the_single_file_is_read_as_diffusers_reads_it(checkpoints: Path) -> None:
    theirs = UNet2DConditionModel.from_single_file(
        str(checkpoints / "single.safetensors"), config=str(checkpoints), local_files_only=True
    ).state_dict()
    ours = load(str(checkpoints / "single.safetensors")).network.state_dict()
    assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("name", ["pipeline", "directory", "single.safetensors"])
def test_scores_of_a_file_are_those_of_the_live_module(checkpoints: Path, name: str) -> None:
    opened = open_model(str(checkpoints / name))
    options = {"model": "tiny", "architecture": "unet"}
    stored = score_tensors(opened.checkpoint, opened.units, **options)
    live = make("sdxl")
    assert stored == score_tensors(ModuleTensors(live), attach(live).units, **options)


def test_a_unet_runs_under_the_executor(checkpoints: Path) -> None:
    network, call = load(str(checkpoints / "directory")).network, inputs("sdxl")
    arguments = (call["sample"], torch.tensor(7), call["encoder_hidden_states"], call["added_cond_kwargs"])
    with torch.no_grad():
        full = network(*arguments)
        generation = Executor(network, make_schedule(unet.units(network.config), 2, every=2)).start()
        assert torch.equal(generation(*arguments), full)
        torch.testing.assert_close(generation(*arguments), full)  # nothing changed, so neither does what is held


def test_a_config_is_a_value(checkpoints: Path) -> None:
    config = open_model(str(checkpoints / "directory")).config
    assert {config: 1}[unet.UNetConfig.from_diffusers(config.to_diffusers())] == 1
    assert config.sample_shape == (4, 8, 8) and unet.UNetConfig().sample_shape == (4, 128, 128)
    assert unet.ARCHITECTURE.units(config) == units_of(config.to_diffusers())


def test_a_variant_is_read_only_where_there_is_nothing_else(checkpoints: Path, tmp_path: Path) -> None:
    network = make("sdxl")
    network.save_pretrained(tmp_path, variant="fp16")
    assert open_model(str(tmp_path)).checkpoint.shapes
    network.half().save_pretrained(tmp_path)
    assert open_model(str(tmp_path)).checkpoint.read("conv_in.bias").dtype == torch.float16


def test_published_files_need_no_config(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = {key: tuple(value.shape) for key, value in original_names(make("sdxl").state_dict()).items()}
    with pytest.raises(ConfigError, match=r"config\.json"):
        unet.infer_config(original)
    monkeypatch.setattr(unet, "PUBLISHED", (unet.SD_1, SDXL))
    assert unet.infer_config(original) == unet.UNetConfig.from_diffusers(SDXL)
    assert unet.infer_config(unet.expected_shapes(unet.UNetConfig.from_diffusers(SDXL))) == unet.infer_config(original)


def test_damaged_checkpoints_are_sentences(checkpoints: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors"):
        open_model(str(tmp_path))
    with pytest.raises(CheckpointError, match="There is no model"):
        open_model(str(tmp_path / "absent.safetensors"))
    state = make("sdxl").state_dict()
    state.pop("conv_out.bias")
    save_file(state, tmp_path / "diffusion_pytorch_model.safetensors")
    (tmp_path / "config.json").write_text((checkpoints / "config.json").read_text())
    with pytest.raises(CheckpointError, match=r"missing 1 tensor\(s\): conv_out\.bias"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKL"}')
    with pytest.raises(CheckpointError, match="diffusers AutoencoderKL is none of them"):
        open_model(str(tmp_path))


def test_a_live_denoiser_is_scored_and_scheduled_as_it_is() -> None:
    network = make("sdxl")
    scores = tenuto.score(network)
    assert [unit.name for unit in scores.units] == [unit.name for unit in attach(network).units]
    network = make("sdxl")
    schedule = tenuto.schedule(network, steps=2, every=2)
    with accelerated(network, schedule=schedule, check_weights=True) as run:
        network(**inputs("sdxl"))
        assert run.step == 1
    with pytest.raises(UsageError, match="not a list"):
        tenuto.score([1, 2])
    with (
        pytest.raises(ScheduleError, match=r"tenuto\.schedule\(pipe, steps=2\)"),
        accelerated(make("sd"), schedule=schedule),
    ):
        pass


# ------------------------------------------------------------------------------------------- DiT as diffusers stores it


@pytest.fixture(scope="module")
def dit_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a DiTPipeline's directory looks like, with pictures for latents."""
    directory = tmp_path_factory.mktemp("dit-pipeline")
    torch.manual_seed(0)
    network = DiTTransformer2DModel(**{**DIT, "in_channels": 3, "out_channels": 3}).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    network.save_pretrained(directory / "transformer")
    DDIMScheduler(clip_sample=False).save_pretrained(directory / "scheduler")
    (directory / "model_index.json").write_text('{"_class_name": "DiTPipeline"}')
    return directory


def test_a_dit_pipelines_directory_is_a_model(dit_pipeline: Path) -> None:
    opened = open_model(str(dit_pipeline))
    assert opened.architecture.name == "dit-diffusers"
    live = DiTTransformer2DModel.from_pretrained(dit_pipeline / "transformer")
    options = {"model": "dit", "architecture": "dit"}
    stored = score_tensors(opened.checkpoint, opened.units, **options)
    assert stored == score_tensors(ModuleTensors(live), attach(live).units, **options)
    model = load(str(dit_pipeline))
    x, t, y = torch.randn(2, 3, 8, 8), torch.tensor([9, 9]), torch.tensor([1, 3])
    with torch.no_grad():
        assert torch.equal(model.network(x, t, y), live(x, timestep=t, class_labels=y).sample)


def test_it_draws_under_a_schedule(dit_pipeline: Path) -> None:
    model = load(str(dit_pipeline))
    full = tenuto.generate(model, [1, 2], steps=8, guidance=1)
    schedule = tenuto.schedule(tenuto.score(str(dit_pipeline)), steps=8, evaluations=4)
    held = tenuto.generate(model, [1, 2], schedule=schedule, guidance=1)
    assert full.shape == held.shape == (2, 3, 8, 8) and not torch.equal(full, held)
    everything = tenuto.schedule(tenuto.score(str(dit_pipeline)), steps=8, budget=1.0)
    assert torch.equal(tenuto.generate(model, [1, 2], schedule=everything, guidance=1), full)


def test_a_pipelines_scheduler_says_what_noise_the_model_knows(dit_pipeline: Path, tmp_path: Path) -> None:
    assert load(str(dit_pipeline)).noise == NoiseLevels("linear", 1e-4, 0.02)
    shutil.copytree(dit_pipeline, tmp_path / "other")
    DDIMScheduler(beta_schedule="scaled_linear", beta_start=0.001, beta_end=0.012, steps_offset=1).save_pretrained(
        tmp_path / "other" / "scheduler"
    )
    assert load(str(tmp_path / "other")).noise == NoiseLevels("scaled_linear", 0.001, 0.012, offset=1)
    DDIMScheduler(prediction_type="v_prediction").save_pretrained(tmp_path / "other" / "scheduler")
    with pytest.raises(ConfigError, match="v_prediction"):
        tenuto.generate(load(str(tmp_path / "other")), [1], steps=8)
