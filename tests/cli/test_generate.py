"""tenuto generate: pictures and text, their record, and a directory that belongs to one process at a time."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tenuto.cli.generation_record import LOCK, claimed
from tests.cli.conftest import Run
from tests.conftest import random_dit, write_checkpoint


def test_generate_with_and_without_a_schedule(tenuto: Run, model: Path, tmp_path: Path) -> None:
    tenuto("schedule", model, "--steps", 6, "--every", 2, "-o", "schedule.json")
    status, out, _ = tenuto("generate", model, "--schedule", "schedule.json", "--class", 3, "--count", 2, "-o", "held")
    assert status == 0
    assert "2 pictures in held" in out and "6 steps, 3 of them evaluated" in out
    pictures = sorted((tmp_path / "held").glob("*.png"))
    assert [p.name for p in pictures] == ["00000-class3.png", "00001-class3.png"]
    assert Image.open(pictures[0]).size == (8, 8)
    record = json.loads((tmp_path / "held" / "generation.json").read_text())
    assert record["steps"] == 6 and record["work"] == 0.5 and record["images"][1]["seed"] == 1
    status, out, _ = tenuto("generate", model, "--steps", 3, "--solver", "dpm++", "-o", "full", "--json")
    assert status == 0
    assert [image["class"] for image in json.loads(out)["images"]] == [0, 1, 2, 3]


def test_pictures_do_not_depend_on_the_batch(tenuto: Run, model: Path, tmp_path: Path) -> None:
    tenuto("generate", model, "--steps", 3, "-o", "one", "--batch", 1)
    tenuto("generate", model, "--steps", 3, "-o", "four", "--batch", 4)
    for name in ("00000-class0.png", "00003-class3.png"):
        one, four = (Image.open(tmp_path / batch / name).tobytes() for batch in ("one", "four"))
        assert all(abs(a - b) <= 1 for a, b in zip(one, four, strict=True))


def test_a_schedule_for_other_weights_is_refused(tenuto: Run, model: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "other", random_dit(seed=5))
    tenuto("schedule", "other", "--steps", 4, "--policy", "lifetimes", "-o", "schedule.json")
    status, _, err = tenuto("generate", "model", "--schedule", "schedule.json", "-o", "x")
    assert status == 1
    assert "other weights" in err and "tenuto schedule model --steps 4" in err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--class", "Unicorn"), "Unicorn"),
        (("--class", "17"), "17"),
        (("--class", "²"), "²"),
        (("--device", "abacus"), "abacus"),
        (("--device", "meta"), "meta"),
        (("--count", "0"), "--count"),
        (("--count", "9" * 20), "--count"),
        (("--batch", "0"), "--batch"),
        (("--guidance", "inf"), "Guidance"),
        (("--seed", "-1"), "--seed"),
        (("--length", "8"), "--length has no effect"),
        (("--chat",), "--chat has no effect"),
        (("--steps", "600"), "600 steps"),
        (("--steps", "9" * 20), "--steps"),
        (("--mode", "padded"), "padded"),
        (("--memory", "1"), "--memory"),
        (("--prompt", "a shoe"), "--class"),
    ],
)
def test_odd_values_are_refused_before_any_work(
    tenuto: Run, model: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = tenuto("generate", "model", "-o", "x", *arguments)
    assert status == 2 and out == "" and words in err and "Traceback" not in err
    assert not (tmp_path / "x").exists()


def test_ctrl_c_keeps_what_was_finished(
    tenuto: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenuto.sampling import pictures

    original = pictures.generate_batches

    def interrupted(*given: Any, **options: Any) -> Iterator[Any]:
        for i, batch in enumerate(original(*given, **options)):
            if i == 2:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(pictures, "generate_batches", interrupted)
    status, _, err = tenuto("generate", model, "--steps", 2, "--batch", 1, "-o", "x")
    assert status == 130 and "Interrupted" in err
    made = sorted(p.name for p in (tmp_path / "x").iterdir())
    assert made == ["00000-class0.png", "00001-class1.png", "generation.json"]
    record = json.loads((tmp_path / "x" / "generation.json").read_text())
    assert [image["seed"] for image in record["images"]] == [0, 1]


def test_two_cannot_generate_into_one_directory(tenuto: Run, model: Path, tmp_path: Path) -> None:
    with claimed(tmp_path / "x"):
        status, out, err = tenuto("generate", model, "--steps", 1, "-o", "x")
        assert status == 1 and out == "" and "Another `tenuto generate` writes into x" in err
        assert [file.name for file in (tmp_path / "x").iterdir()] == [LOCK]
    assert tenuto("generate", model, "--steps", 1, "-o", "x")[0] == 0
    assert not (tmp_path / "x" / LOCK).exists()


def test_a_killed_process_leaves_its_directory_free(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from tenuto.cli.generation_record import claimed
with claimed(Path({str(tmp_path / "x")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode < 0
    assert (tmp_path / "x" / LOCK).exists()  # nobody could remove it
    with claimed(tmp_path / "x"):
        pass
    assert list((tmp_path / "x").iterdir()) == []


def test_a_directory_in_which_nothing_was_made_is_removed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), claimed(tmp_path / "x"):
        raise ZeroDivisionError
    assert not (tmp_path / "x").exists()


def test_latent_models_ask_for_a_vae(tenuto: Run, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "latent", random_dit(in_channels=4))
    status, _, err = tenuto("generate", "latent", "-o", "x")
    assert status == 2 and "--vae" in err
    status, _, err = tenuto("generate", "latent", "--steps", 1, "-o", "x", "--vae", "nowhere")
    assert status == 1 and "no VAE" in err


def test_a_vae_decodes_latents(tenuto: Run, tmp_path: Path) -> None:
    from diffusers import AutoencoderKL

    AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, latent_channels=4).save_pretrained(tmp_path / "vae")
    write_checkpoint(tmp_path / "latent", random_dit(in_channels=4))
    status, _, err = tenuto("generate", "latent", "--steps", 1, "--class", 0, "-o", "x", "--vae", "vae")
    assert status == 0, err
    assert Image.open(tmp_path / "x" / "00000-class0.png").mode == "RGB"


def test_generate_by_caption_and_by_prompt(tenuto: Run, tmp_path: Path) -> None:
    status, _, err = tenuto("generate", "tiny-sdxl", "--prompt", "a red car", "--steps", 2, "-o", "cars")
    assert status == 0, err
    assert Image.open(tmp_path / "cars" / "00000.png").size == (32, 32)
    arguments = ("--prompt", "close: ( ->", "--length", 4, "--steps", 4, "-o", "text")
    status, out, err = tenuto("generate", "small-llada", *arguments)
    assert status == 0, err
    assert "close: ( ->" in out and (tmp_path / "text" / "text.txt").exists()
    assert "1 text of at most 4 tokens" in err
    status, out, _ = tenuto("generate", "small-llada", *arguments, "--json")
    assert json.loads(out)["texts"][0]["prompt"] == "close: ( ->"


def test_the_factor_rule_is_on_the_command_line(tenuto: Run) -> None:
    """A factor of 1 writes at once what a threshold of 1 writes one by one."""
    arguments = ("--prompt", "close: ([{ ->", "--length", 16, "--json")
    _, out, _ = tenuto("generate", "small-llada", *arguments, "--factor", 1.0)
    fast = json.loads(out)
    _, out, _ = tenuto("generate", "small-llada", *arguments, "--parallel", 1.0)
    slow = json.loads(out)
    assert fast["factor"] == 1.0 and fast["every"] == "checked" and "parallel" not in fast
    assert fast["steps"] < slow["steps"] and fast["texts"] == slow["texts"]
    status, out, _ = tenuto("chat", "small-llada", "--prompt", "close: ([{ ->", "--length", 8, "--factor", 1.0)
    assert status == 0 and "}])" in out


def test_a_sliding_window_is_on_the_command_line(tenuto: Run) -> None:
    """The window goes on behind an unfinished block, so that fewer evaluations write the same answer."""
    asked = ("--prompt", "sort: 42 48 7 25 53 40 ->", "--length", 32, "--block-length", 16, "--parallel", 0.9)
    window, block = (
        json.loads(tenuto("generate", "small-llada", *asked, *more, "--json")[1]) for more in (("--sliding",), ())
    )
    assert window["sliding"] and "sliding" not in block and window["steps"] < block["steps"]
    assert window["texts"][0]["text"].strip() == "7 25 40 42 48 53"
    status, out, _ = tenuto("chat", "small-llada", *asked, "--sliding")
    assert status == 0 and out.strip() == "7 25 40 42 48 53"


def test_parallel_decoding_computes_everything_early(tenuto: Run) -> None:
    arguments = ("--prompt", "close: ( ->", "--length", 16, "--parallel", 1.0, "--json")
    ways = (("--every", "careful"), ("--every", "early"), ("--every", 1))
    careful, early, full = (json.loads(tenuto("generate", "small-llada", *arguments, *more)[1]) for more in ways)
    assert (careful["every"], early["every"], full["every"]) == ("careful", "early", 1)
    for record, whole in ((careful, range(9)), (early, range(5))):
        taken = record["steps"]
        assert 6 <= taken <= 16 and record["work"] == pytest.approx(len({*whole, 8} & {*range(taken)}) / taken)
    assert full["work"] == 1 and early["flop_work"] is None  # a block's positions are computed in between


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny-sdxl", "-o", "x"), "--prompt"),
        (("tiny-sdxl", "--class", "1", "-o", "x"), "--prompt"),
        (("tiny-sdxl", "--prompt", "a zeppelin", "-o", "x"), "zeppelin"),
        (("tiny-dit",), "-o"),
        (("small-llada",), "--prompt"),
        (("small-llada", "--prompt", "x", "--length", "7", "--steps", "9"), "9 steps"),
        (("small-llada", "--prompt", "x", "--parallel", "0"), "above 0 and is at most 1"),
        (("small-llada", "--prompt", "x", "--parallel", "0.9", "--steps", "8"), "leave the steps out"),
        (("small-llada", "--prompt", "x", "--parallel", "0.9", "--factor", "1"), "not both"),
        (("small-llada", "--prompt", "x", "--factor", "0"), "a positive number"),
        (("small-llada", "--prompt", "x", "--every", "early"), "--every goes with --parallel"),
        (
            ("small-llada", "--prompt", "x", "--length", "100000", "--parallel", "0.9"),
            "no room for a prompt in the 1024",
        ),
        (("small-llada", "--prompt", "x", "--sliding"), "give a threshold too"),
        (("tiny-dit", "-o", "x", "--sliding"), "--sliding has no effect"),
        (("tiny-dit", "-o", "x", "--parallel", "0.9"), "--parallel has no effect"),
        (("tiny-dit", "-o", "x", "--every", "early"), "--every has no effect"),
        (("small-llada", "--prompt", "half a \udce4 character"), "not valid Unicode"),
    ],
)
def test_each_family_says_how_it_wants_to_be_asked(tenuto: Run, arguments: tuple[str, ...], words: str) -> None:
    status, _, err = tenuto("generate", *arguments)
    assert status == 2 and words in err


def test_a_diffusers_pipeline_is_scheduled_and_drawn_with(
    tenuto: Run, pipeline_directory: Path, tmp_path: Path
) -> None:
    status, out, err = tenuto("schedule", "pipeline", "--steps", 4, "--every", 2, "-o", "s.json")
    assert status == 0, err
    assert "network █·█·" in out
    common = ("generate", "pipeline", "--prompt", "a car", "--steps", 4)
    for name, extra in (("full", ()), ("held", ("--schedule", "s.json"))):
        status, _, err = tenuto(*common, "-o", name, *extra)
        assert status == 0, err
    full, held = (Image.open(tmp_path / name / "00000.png") for name in ("full", "held"))
    assert full.size == held.size and full.tobytes() != held.tobytes()
    status, _, err = tenuto(*common[:-1], 6, "-o", "x", "--schedule", "s.json")
    assert status in (1, 2) and "4 steps" in err
    assert tenuto("generate", "pipeline", "-o", "x")[0] == 2


def test_offload_says_what_it_is_for(tenuto: Run, model: Path) -> None:
    status, _, err = tenuto("generate", model, "-o", "out", "--offload")
    assert status == 2 and "--offload is for a schedule that keeps single units (branch, update)" in err
    status, _, err = tenuto("generate", model, "-o", "out", "--memory", "1")
    assert status == 2 and "--memory is for a schedule that keeps single units" in err
    assert tenuto("schedule", model, "--steps", 12, "--keep", "branch", "-o", "units.json")[0] == 0
    units = ("generate", model, "-o", "out", "--schedule", "units.json")
    status, _, err = tenuto(*units, "--offload", "--memory", "1")
    assert status == 2 and "give one" in err
    status, _, err = tenuto(*units, "--offload")
    assert status == 2 and "is for a GPU" in err


def test_a_number_of_evaluations_needs_no_schedule(tenuto: Run, model: Path) -> None:
    asked = ("generate", model, "--class", 1, "--steps", 20)
    status, out, err = tenuto(*asked, "--evaluations", 8, "-o", "few", "--json")
    assert status == 0, err
    assert json.loads(out)["work"] == 8 / 20
    status, out, _ = tenuto(*asked, "--evaluations", 20, "-o", "all", "--json")
    assert status == 0 and json.loads(out)["work"] == 1
    status, _, err = tenuto(*asked, "--evaluations", 8, "--quality", 30, "-o", "both")
    assert status == 2 and "--schedule, --evaluations and --quality each decide" in err


def test_a_pipeline_draws_with_a_number_of_evaluations(tenuto: Run, pipeline_directory: Path) -> None:
    asked = ("generate", pipeline_directory, "--prompt", "a car", "--steps", 20, "--evaluations", 8)
    status, out, err = tenuto(*asked, "-o", "few", "--json")
    assert status == 0, err
    assert json.loads(out)["work"] == 8 / 20


def test_a_quality_computes_as_many_steps_as_it_takes(tenuto: Run, tmp_path: Path) -> None:
    status, out, _ = tenuto(
        "generate", "tiny-dit", "--class", 1, "--steps", 20, "--quality", 30, "-o", tmp_path / "near", "--json"
    )
    facts = json.loads(out)
    assert status == 0 and facts["images"][0]["file"] and 0 < facts["work"] < 1
    status, _, err = tenuto("generate", "tiny-dit", "--quality", 5, "-o", tmp_path / "far")
    assert status == 2 and "decibels from 10 to 80" in err
