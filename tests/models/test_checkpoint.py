"""Checkpoints load whatever form they come in, and a damaged or foreign one is refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tenuto
from tenuto.errors import CheckpointError, TenutoError
from tenuto.models import load, open_model
from tests.conftest import random_dit, write_checkpoint
from training.quantise import quantised


def same_weights(model, network):
    return all(torch.equal(value, model.network.state_dict()[key]) for key, value in network.state_dict().items())


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_directories_of_one_file_or_many(tmp_path, network, shards):
    assert same_weights(load(str(write_checkpoint(tmp_path / "dit", network, shards=shards))), network)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_stored_precision_is_kept_when_asked_and_widened_on_the_cpu(tmp_path, dtype):
    network = random_dit().to(dtype)
    path = str(write_checkpoint(tmp_path / "dit", network, dtype))
    assert load(path).dtype == torch.float32
    assert same_weights(load(path, dtype=dtype), network)


@pytest.mark.parametrize("nest", [None, "ema", "model"])
def test_published_pickles_flat_or_nested(tmp_path, nest):
    network = random_dit(hidden_size=384, num_heads=6, depth=1, in_channels=4, learn_sigma=True)
    state = network.state_dict()
    file = tmp_path / "DiT-S-2.pt"
    torch.save(state if nest is None else {nest: state, "args": {"lr": 1}}, file)
    model = load(str(file))
    assert model.config == network.config
    assert same_weights(model, network)


def test_ema_is_taken_before_the_raw_weights(tmp_path):
    network = random_dit(hidden_size=384, num_heads=6, depth=1)
    raw = {key: torch.zeros_like(value) for key, value in network.state_dict().items()}
    torch.save({"model": raw, "ema": network.state_dict()}, tmp_path / "x.pt")
    assert same_weights(load(str(tmp_path / "x.pt")), network)


def test_a_schedule_made_from_a_checkpoint_fits_it_in_every_precision(tmp_path):
    path = str(write_checkpoint(tmp_path / "dit", random_dit()))
    schedule = tenuto.schedule(path, steps=4, evaluations=2)
    for dtype in (torch.float32, torch.bfloat16):
        model = load(path, dtype=dtype)
        schedule.check_fits(schedule.units, model.fingerprints, "dit")
        own = tenuto.schedule(model, steps=4, evaluations=2)
        own.check_fits(own.units, model.fingerprints, "dit")


def edit(path, change):
    state = load_file(path / "model.safetensors")
    change(state)
    save_file(state, path / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("blocks.1.mlp.fc1.weight"), r"is missing 1 tensor\(s\): blocks.1.mlp.fc1.weight"),
        (lambda s: s.update(surplus=torch.zeros(1)), r"does not expect 1 tensor\(s\): surplus"),
        (
            lambda s: s.update({"blocks.0.attn.proj.bias": torch.zeros(5)}),
            r"misshapen 1 tensor\(s\): blocks.0.attn.proj.bias is \[5\] but should be \[16\]",
        ),
        (lambda s: [s.pop(key) for key in list(s) if ".mlp.fc" in key], r"is missing 12 tensor\(s\): .*, …"),
    ],
)
def test_wrong_keys_and_shapes_are_named_and_counted(checkpoint, change, message):
    edit(checkpoint, change)
    with pytest.raises(CheckpointError, match=message):
        load(str(checkpoint))


def test_nan_weights_are_refused_when_loaded(checkpoint):
    edit(checkpoint, lambda s: s["blocks.2.mlp.fc2.bias"].fill_(float("nan")))
    with pytest.raises(CheckpointError, match=r"blocks\.2\.mlp\.fc2\.bias holds values that are NaN"):
        load(str(checkpoint))


def test_quantised_weights_and_loras_are_told_apart(checkpoint):
    edit(checkpoint, lambda s: s.update({"blocks.0.mlp.fc1.weight": torch.zeros(64, 16, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=r"blocks\.0\.mlp\.fc1\.weight is int8: dequantise"):
        load(str(checkpoint))
    with pytest.raises(CheckpointError, match=r"blocks\.0\.mlp\.fc1\.weight holds int8 numbers"):
        tenuto.score(str(checkpoint))
    edit(checkpoint, lambda s: s.update({"blocks.0.attn.proj.lora_A.weight": torch.zeros(4, 16)}))
    with pytest.raises(CheckpointError, match="LoRA matrices: merge them"):
        load(str(checkpoint))


def test_matrices_in_8_bits_are_multiplied_by_their_scales(checkpoint, network):
    key = "blocks.0.mlp.fc1.weight"
    exact = network.state_dict()[key]
    values, scales = quantised(exact)
    edit(checkpoint, lambda s: s.update({key: values, f"{key}_scale": scales}))
    found = load(str(checkpoint)).network.state_dict()[key]
    assert values.dtype == torch.int8 and (found - exact).abs().max() <= exact.abs().max() / 127
    torch.testing.assert_close(found, (values.float() * scales.float()).half().float())
    tenuto.score(str(checkpoint))
    edit(checkpoint, lambda s: s.update({f"{key}_scale": scales[:3]}))
    with pytest.raises(CheckpointError, match=r"does not expect 1 tensor\(s\): blocks.0.mlp.fc1.weight_scale"):
        load(str(checkpoint))


def test_the_guidance_that_suits_a_model_stands_in_its_config(checkpoint):
    assert load(str(checkpoint)).guidance == 1.5  # the family's
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**config, "guidance": 4}))
    assert load(str(checkpoint)).guidance == 4
    for wrong in (True, -1, "much", float("inf")):
        (checkpoint / "config.json").write_text(json.dumps({**config, "guidance": wrong}))
        with pytest.raises(CheckpointError, match="guidance should be a number"):
            load(str(checkpoint))


def test_a_truncated_file_is_named(checkpoint):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable safetensors file, or not whole"):
        load(str(checkpoint))


def test_garbage_is_named(checkpoint, tmp_path):
    (checkpoint / "model.safetensors").write_bytes(b"not at all")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(str(checkpoint))
    (tmp_path / "x.pt").write_bytes(b"not at all")
    with pytest.raises(CheckpointError, match=r"x\.pt is not a checkpoint"):
        load(str(tmp_path / "x.pt"))


class Dangerous:
    def __reduce__(self):
        import os

        return (os.system, ("touch /tmp/owned-by-a-pickle",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    torch.save({"model": Dangerous()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match=r"evil\.pt is not a checkpoint of plain tensors"):
        load(str(tmp_path / "evil.pt"))


def test_a_pickle_of_something_else_is_refused(tmp_path):
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="flat dictionary of tensors"):
        load(str(tmp_path / "x.pt"))


def test_an_index_that_names_an_absent_shard(tmp_path, network):
    path = write_checkpoint(tmp_path / "dit", network, shards=3)
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="names model-00002-of-00003.safetensors, which is not there"):
        open_model(str(path))


def test_a_tensor_stored_twice_is_refused(tmp_path, network):
    path = write_checkpoint(tmp_path / "dit", network)
    save_file({"pos_embed": torch.zeros(1)}, path / "zz.safetensors")
    with pytest.raises(CheckpointError, match="stores the tensor pos_embed twice"):
        open_model(str(path))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "is not valid JSON"),
        ("{}", 'has no "model_type"; it is one of: llada, dream, dit, dit-diffusers, unet, uvit'),
        ('{"model_type": "gpt"}', "model_type 'gpt'; known are"),
        ('{"model_type": "dit", "dept": 3}', "unknown argument.*dept"),
        ('{"model_type": "dit", "depth": "3"}', "depth should be of type int"),
        ('{"model_type": "dit", "depth": 2.5}', "depth should be of type int"),
        ('{"model_type": "dit", "depth": -3}', "depth must be at least 1"),
    ],
)
def test_a_bad_config_says_what_is_wrong(checkpoint, config, message):
    (checkpoint / "config.json").write_text(config)
    with pytest.raises(TenutoError, match=message):
        open_model(str(checkpoint))


def test_a_bare_file_of_unknown_kind(tmp_path):
    save_file({"weight": torch.zeros(2, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint of a known architecture .*first tensors are weight"):
        open_model(str(tmp_path / "x.safetensors"))


def test_an_empty_directory_and_a_name_nobody_has(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors"):
        open_model(str(tmp_path))
    with pytest.raises(CheckpointError, match="not one of the shipped models"):
        open_model("no-such-model")


def test_a_hub_id_is_fetched_and_offline_is_a_sentence(checkpoint, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **options: str(checkpoint))
    assert open_model("owner/name").config.depth == 3

    def offline(name, **options):
        raise OSError("offline mode is enabled")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(TenutoError, match="Could not fetch owner/name from the hub.*offline mode"):
        open_model("owner/name")


def test_config_beside_a_bare_file_is_used(checkpoint):
    assert open_model(str(checkpoint / "model.safetensors")).config.num_heads == 2
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["num_heads"] == 2
