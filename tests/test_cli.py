"""The command line: every command does its work, prints JSON where asked, and ends with the right status."""

import json
import os
import subprocess
import sys

import pytest
from conftest import random_dit, write_checkpoint
from PIL import Image

from tenuto.cli import main


@pytest.fixture
def tenuto(monkeypatch, capsys, tmp_path):
    """Run a command in a folder of its own: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["tenuto", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            main()
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    return run


@pytest.fixture
def model(tmp_path):
    return write_checkpoint(tmp_path / "model", random_dit())


def test_score_prints_a_table_and_writes_the_file(tenuto, model, tmp_path):
    status, out, err = tenuto("score", model, "-o", "scores.json")
    assert status == 0
    assert "blocks.2.mlp" in out and "attention" in out and "Wrote scores.json" in err
    assert json.loads((tmp_path / "scores.json").read_text())["format"] == "tenuto.scores/1"


def test_score_as_json(tenuto, model):
    status, out, _ = tenuto("score", model, "--json")
    assert status == 0
    assert len(json.loads(out)["units"]) == 6


@pytest.mark.parametrize("source", ["scores.json", "model"])
def test_schedule_from_a_score_file_or_a_model(tenuto, model, tmp_path, source):
    tenuto("score", model, "-o", "scores.json")
    status, out, _ = tenuto("schedule", source, "--steps", 12, "--budget", 0.34, "-o", "schedule.json")
    assert status == 0
    assert "33.3% of unit-steps" in out and "█··█··" in out
    assert json.loads((tmp_path / "schedule.json").read_text())["steps"] == 12


def test_schedule_by_lifetimes(tenuto, model):
    status, out, _ = tenuto("schedule", model, "--steps", 10, "--policy", "lifetimes", "--tau", 0.5, "--json")
    record = json.loads(out)
    assert status == 0
    assert record["policy"] == {"name": "lifetimes", "tau": 0.5, "budget": None, "min_lifetime": 0.1}
    assert (record["hold"], record["reuse"]) == ("update", "hold")
    assert tenuto("schedule", model, "--steps", 10, "--policy", "lifetimes")[0] == 0


def test_a_long_schedule_still_fits_the_terminal(tenuto, model, monkeypatch):
    from tenuto.cli import console

    monkeypatch.setattr(console.out, "width", 60)
    for options, name in ((("--every", 3), "all 6 units"), (("--policy", "lifetimes"), "blocks.")):
        status, out, _ = tenuto("schedule", model, "--steps", 500, *options)
        assert status == 0
        assert "steps a cell" in " ".join(out.split())
        assert max(len(line) for line in out.splitlines() if name in line) <= 60


def test_generate_with_and_without_a_schedule(tenuto, model, tmp_path):
    tenuto("schedule", model, "--steps", 6, "--every", 2, "-o", "schedule.json")
    status, out, _ = tenuto("generate", model, "--schedule", "schedule.json", "--class", 3, "--count", 2, "-o", "held")
    assert status == 0
    assert "50% of the unit-steps" in out
    pictures = sorted((tmp_path / "held").glob("*.png"))
    assert [p.name for p in pictures] == ["00000-class3.png", "00001-class3.png"]
    assert Image.open(pictures[0]).size == (8, 8)
    record = json.loads((tmp_path / "held" / "generation.json").read_text())
    assert record["steps"] == 6 and record["work"] == 0.5 and record["images"][1]["seed"] == 1
    status, out, _ = tenuto("generate", model, "--steps", 3, "--solver", "dpm++", "-o", "full", "--json")
    assert status == 0
    assert [image["class"] for image in json.loads(out)["images"]] == [0, 1, 2, 3]


def test_pictures_do_not_depend_on_the_batch(tenuto, model, tmp_path):
    tenuto("generate", model, "--steps", 3, "-o", "one", "--batch", 1)
    tenuto("generate", model, "--steps", 3, "-o", "four", "--batch", 4)
    for name in ("00000-class0.png", "00003-class3.png"):
        one, four = (Image.open(tmp_path / batch / name).tobytes() for batch in ("one", "four"))
        assert all(abs(a - b) <= 1 for a, b in zip(one, four, strict=True))


def test_show_draws_tables_pages_and_pictures(tenuto, model, tmp_path):
    tenuto("score", model, "-o", "scores.json")
    tenuto("schedule", "scores.json", "--steps", 12, "-o", "schedule.json")
    for file, words in (("scores.json", "score Λ̂"), ("schedule.json", "linear of the output")):
        status, out, _ = tenuto("show", file, "--html", f"{file}.html", "--png", f"{file}.png")
        assert status == 0
        assert words in out
        page = (tmp_path / f"{file}.html").read_text()
        assert "<svg" in page and "blocks.1.attn" in page and "http" not in page.replace("http://www.w3.org", "")
        assert Image.open(tmp_path / f"{file}.png").width > 500
        assert json.loads(tenuto("show", file, "--json")[1]) == json.loads((tmp_path / file).read_text())


@pytest.mark.parametrize(
    "command", ["demo", "score", "schedule", "generate", "check", "frontier", "bench", "show", "models"]
)
def test_every_command_teaches(tenuto, command):
    status, out, _ = tenuto(command, "--help")
    assert status == 0
    assert f"Example: tenuto {command}" in out


def test_version(tenuto):
    import tenuto as package

    assert tenuto("--version")[:2] == (0, f"tenuto {package.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("schedule", "model"),  # --steps is missing
        ("schedule", "model", "--steps", "ten"),
        ("schedule", "model", "--steps", "10", "--budget", "1.5"),
        ("schedule", "model", "--steps", "10", "--tau", "1", "--budget", "0.3", "--policy", "lifetimes"),
        ("schedule", "model", "--steps", "10", "--policy", "magic"),
        ("score", "model", "--eta", "0"),
        ("generate", "model", "-o", "x", "--class", "Unicorn"),
        ("generate", "model", "-o", "x", "--class", "17"),
        ("generate", "model", "-o", "x", "--device", "abacus"),
        ("generate", "model", "-o", "x", "--count", "0"),
        ("frobnicate",),
        ("score", "model", "--unknown"),
    ],
)
def test_misuse_ends_with_status_2_and_a_sentence(tenuto, model, arguments):
    status, out, err = tenuto(*arguments)
    assert status == 2
    assert out == "" and len(err.strip()) > 10 and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("score", "no-such-model"), "no model 'no-such-model'"),
        (("show", "nowhere.json"), "nowhere.json"),
        (("show", "model/config.json"), "neither a score file"),
        (("generate", "model", "-o", "x", "--schedule", "nowhere.json"), "nowhere.json"),
        (("score", "broken"), "not whole"),
    ],
)
def test_failure_ends_with_status_1_and_names_the_culprit(tenuto, model, tmp_path, arguments, words):
    broken = write_checkpoint(tmp_path / "broken", random_dit()) / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:200])
    status, out, err = tenuto(*arguments)
    assert status == 1
    assert words in err.replace("\n", " ") and out == ""


def test_a_schedule_for_other_weights_is_refused(tenuto, model, tmp_path):
    write_checkpoint(tmp_path / "other", random_dit(seed=5))
    tenuto("schedule", "other", "--steps", 4, "-o", "schedule.json")
    status, _, err = tenuto("generate", "model", "--schedule", "schedule.json", "-o", "x")
    assert status == 1
    assert "other weights" in err and "tenuto schedule model --steps 4" in err
    assert not (tmp_path / "x").exists()


def test_an_output_that_cannot_be_written_is_named(tenuto, model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    status, _, err = tenuto("score", model, "-o", "file/scores.json")
    assert status == 1
    assert "Cannot write file/" in err and "scores.json" in err
    (tmp_path / "folder").mkdir()
    status, _, err = tenuto("score", model, "-o", "folder")
    assert status == 1 and "Cannot write folder: it is a directory" in err
    assert not list(tmp_path.glob("*.journal")) and not list(tmp_path.glob(".*"))


def test_a_failed_scoring_leaves_nothing_behind(tenuto, model, tmp_path):
    from safetensors.torch import load_file, save_file

    state = load_file(model / "model.safetensors")
    state["blocks.1.mlp.fc1.weight"][0, 0] = float("nan")
    save_file(state, model / "model.safetensors")
    status, _, err = tenuto("score", model, "-o", "scores.json")
    assert status == 1 and "blocks.1.mlp.fc1.weight" in err
    assert {file.name for file in tmp_path.iterdir()} == {"model"}


def test_a_disk_that_fills_up_when_scores_are_saved_costs_no_scoring(tenuto, model, tmp_path, monkeypatch):
    from tenuto import spectrum
    from tenuto.errors import TenutoError
    from tenuto.scores import Scores

    def full_disk(self, path):
        raise TenutoError(f"Cannot write {path}: No space left on device.")

    with monkeypatch.context() as patched:
        patched.setattr(Scores, "save", full_disk)
        assert tenuto("score", model, "-o", "scores.json")[0] == 1
    assert (tmp_path / "scores.json.journal").exists()
    monkeypatch.setattr(spectrum, "_scaled_energies", lambda *args: pytest.fail("computed again"))
    assert tenuto("score", model, "-o", "scores.json")[0] == 0
    assert not (tmp_path / "scores.json.journal").exists()


def test_brackets_in_a_path_are_no_markup(tenuto, tmp_path):
    write_checkpoint(tmp_path / "dit[v2]", random_dit())
    status, out, err = tenuto("score", "dit[v2]", "-o", "scores[v2].json")
    assert status == 0 and "dit[v2]: 6 units" in out and "Wrote scores[v2].json" in err
    assert "dit[v2]" in tenuto("schedule", "scores[v2].json", "--steps", 4)[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("schedule", "model", "--steps", "4", "--policy", "lifetimes", "--tau", "inf"),
        ("score", "model", "--eta", "inf"),
        ("generate", "model", "-o", "x", "--guidance", "inf"),
        ("generate", "model", "-o", "x", "--class", "²"),
        ("generate", "model", "-o", "x", "--seed", "-1"),
        ("generate", "model", "-o", "x", "--device", "meta"),
        ("generate", "model", "-o", "x", "--length", "8"),
        ("generate", "model", "-o", "x", "--chat"),
        ("generate", "model", "-o", "x", "--steps", "600"),
    ],
)
def test_odd_values_are_refused_before_any_work(tenuto, model, tmp_path, arguments):
    status, _, err = tenuto(*arguments)
    assert status == 2 and "Traceback" not in err
    assert not (tmp_path / "x").exists()


def test_the_examples_of_the_readme_and_of_help_run(tenuto, monkeypatch, tmp_path):
    import io
    import re
    import shlex
    from pathlib import Path

    import tenuto as package
    from tenuto.cli.app import app

    readme = (Path(package.__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## On the command line\n\n```\n(.*?)```", readme, flags=re.DOTALL).group(1)
    lines = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    for command in app.registered_commands:
        for example in command.epilog.removeprefix("Example: ").split(" · "):
            lines.append(shlex.split(example)[1:])
    tenuto("schedule", "tiny-dit", "--steps", 50, "-o", "schedule.json")
    # Those that reach out to the hub, serve until they are stopped or take long are only understood.
    for not_here in ("hub.push", "hub.pull", "ui.run", "experiment.run", "experiment.page"):
        monkeypatch.setattr(f"tenuto.cli.{not_here}", lambda *arguments: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # nobody types
    for line in lines:
        shorter = {
            "demo": ["--steps", "6"],
            "bench": ["--steps", "10", "--repeats", "1", "--batch", "1"],
            "check": ["--samples", "1"],
            "eval": ["--samples", "2", "--steps", "2"],
            "frontier": ["--samples", "1", "--seeds", "1", "--steps", "4", "--budget", "0.5", "--no-rivals"],
        }
        status, _, err = tenuto(*line, *shorter.get(line[0], []))
        assert status == 0, (line, err)


def test_ctrl_c_keeps_what_was_finished(tenuto, model, tmp_path, monkeypatch):
    from tenuto.cli import generate as command

    original, calls = command.generate, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(command, "generate", interrupted)
    status, _, err = tenuto("generate", model, "--steps", 2, "--batch", 1, "-o", "x")
    assert status == 1 and "Interrupted" in err
    made = sorted(p.name for p in (tmp_path / "x").iterdir())
    assert made == ["00000-class0.png", "00001-class1.png", "generation.json"]
    record = json.loads((tmp_path / "x" / "generation.json").read_text())
    assert [image["seed"] for image in record["images"]] == [0, 1]


def test_latent_models_ask_for_a_vae(tenuto, tmp_path):
    write_checkpoint(tmp_path / "latent", random_dit(in_channels=4))
    status, _, err = tenuto("generate", "latent", "-o", "x")
    assert status == 2 and "--vae" in err
    status, _, err = tenuto("generate", "latent", "--steps", 1, "-o", "x", "--vae", "nowhere")
    assert status == 1 and "no VAE" in err


def test_a_vae_decodes_latents(tenuto, tmp_path):
    from diffusers import AutoencoderKL

    AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, latent_channels=4).save_pretrained(tmp_path / "vae")
    write_checkpoint(tmp_path / "latent", random_dit(in_channels=4))
    status, _, err = tenuto("generate", "latent", "--steps", 1, "--class", 0, "-o", "x", "--vae", "vae")
    assert status == 0, err
    assert Image.open(tmp_path / "x" / "00000-class0.png").mode == "RGB"


def test_the_installed_program_runs():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", "from tenuto.cli import main; main()"]
    done = subprocess.run([*program, "score", "nowhere"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "nowhere" in done.stderr and "Traceback" not in done.stderr


def test_importing_tenuto_pulls_in_no_torch():
    code = "import sys, tenuto; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_models_lists_the_families_with_their_published_counts(tenuto):
    status, out, _ = tenuto("models", "--json")
    assert status == 0
    listed = {one["name"]: one for one in json.loads(out)["architectures"]}
    assert {name: (one["units"], one["parameters"]) for name, one in listed.items()} == {
        "llada": (64, 8_015_581_184),
        "dream": (56, 7_615_616_512),
        "dit": (56, 675_129_632),
        "dit-diffusers": (56, 749_826_464),  # it repeats the timestep and class embedders in every block
        "uvit": (42, 286_763_172),
        "unet": (227, 2_567_463_684),
    }
    kinds = {"attention": 70, "cross_attention": 70, "mlp": 70, "conv": 17}
    assert listed["unet"]["units_by_kind"] == kinds
    assert [one["theory"] for one in listed.values()] == [
        *("direct", "direct"),
        *("heuristic", "heuristic", "partial", "heuristic"),
    ]
    status, out, _ = tenuto("models")
    assert status == 0 and "shortcut convolutions" in out and "tiny-llada" in out


def test_generate_by_caption_and_by_prompt(tenuto, tmp_path):
    status, _, err = tenuto("generate", "tiny-sdxl", "--prompt", "a red car", "--steps", 2, "-o", "cars")
    assert status == 0, err
    assert Image.open(tmp_path / "cars" / "00000.png").size == (32, 32)
    arguments = ("--prompt", "close: ( ->", "--length", 4, "--steps", 4, "-o", "text")
    status, out, err = tenuto("generate", "tiny-llada", *arguments)
    assert status == 0, err
    assert "close: ( ->" in out and (tmp_path / "text" / "text.txt").exists()
    status, out, _ = tenuto("generate", "tiny-llada", *arguments, "--json")
    assert json.loads(out)["texts"][0]["prompt"] == "close: ( ->"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tiny-sdxl", "-o", "x"), "--prompt"),
        (("tiny-sdxl", "--class", "1", "-o", "x"), "--prompt"),
        (("tiny-sdxl", "--prompt", "a zeppelin", "-o", "x"), "zeppelin"),
        (("tiny-dit", "--prompt", "a shoe", "-o", "x"), "--class"),
        (("tiny-dit",), "-o"),
        (("tiny-llada",), "--prompt"),
        (("tiny-llada", "--prompt", "x", "--length", "7", "--steps", "9"), "9 steps"),
    ],
)
def test_each_family_says_how_it_wants_to_be_asked(tenuto, arguments, words):
    status, _, err = tenuto("generate", *arguments)
    assert status == 2 and words in err


def test_the_demo_tells_its_story(tenuto, tmp_path):
    status, out, err = tenuto("demo", "--steps", 8, "--out", "demo")
    assert status == 0, err
    assert "█···█···" in out and "speed-up" in out and "report.html" in err
    made = {file.name for file in (tmp_path / "demo").iterdir()}
    assert made == {"full.png", "scheduled.png", "difference.png", "report.html", "demo.json"} | {
        "scores.json",
        "schedule.json",
    }
    page = (tmp_path / "demo" / "report.html").read_text()
    assert (
        page.count("data:image/png;base64,") == 3 + 1 and page.count("<svg") == 2
    )  # the last is of results/frontier.json
    assert "Against its rivals" in page
    result = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert result["work"] == 0.25 and result["psnr_mean"] > 15
    assert {"command", "commit", "torch", "hardware", "seed", "date"} <= set(result)


def test_a_demo_with_nothing_held_is_identical(tenuto):
    status, out, _ = tenuto("demo", "--steps", 2, "--budget", 1.0, "--out", "demo", "--json")
    assert status == 0
    assert json.loads(out)["psnr_mean"] is None  # no error, so no ratio


def test_a_diffusers_pipeline_is_scored_scheduled_and_drawn_with(tenuto, pipeline_directory, tmp_path):
    status, out, err = tenuto("schedule", "pipeline", "--steps", 4, "--every", 2, "-o", "s.json")
    assert status == 0, err
    assert "all 30 units █·█·" in out
    common = ("generate", "pipeline", "--prompt", "a car", "--steps", 4)
    for name, extra in (("full", ()), ("held", ("--schedule", "s.json"))):
        status, _, err = tenuto(*common, "-o", name, *extra)
        assert status == 0, err
    full, held = (Image.open(tmp_path / name / "00000.png") for name in ("full", "held"))
    assert full.size == held.size and full.tobytes() != held.tobytes()
    status, _, err = tenuto(*common[:-1], 6, "-o", "x", "--schedule", "s.json")
    assert status == 1 and "4 steps" in err
    assert tenuto("generate", "pipeline", "-o", "x")[0] == 2


def test_bench_times_every_way_there_is(tenuto, checkpoint, tmp_path):
    options = ("--batch", "2", "--steps", "10", "--repeats", "1")
    status, out, _ = tenuto("bench", str(checkpoint), *options, "-o", str(tmp_path / "bench.json"))
    assert status == 0 and "refresh 8" in out and "lifetimes 35%" in out
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["provenance"]["command"] and record["rows"][0]["speedup_over_eager"] == 1
    assert all(row["ms_per_evaluation"] > 0 for row in record["rows"])
    status, out, _ = tenuto("bench", str(checkpoint), *options, "--json")
    assert len(json.loads(out)["rows"]) == len(record["rows"])
    status, _, err = tenuto("bench", str(checkpoint), "--tokens", "8")
    assert status == 2 and "--tokens means nothing" in err


def test_check_says_whether_a_schedule_is_safe(tenuto, checkpoint, tmp_path):
    for name, options in {"all": ("--budget", "1"), "few": ("--policy", "lifetimes", "--budget", "0.2")}.items():
        made = tenuto("schedule", str(checkpoint), "--steps", "10", *options, "-o", str(tmp_path / f"{name}.json"))
        assert made[0] == 0
    status, out, _ = tenuto("check", str(checkpoint), "--schedule", str(tmp_path / "all.json"), "--samples", "2")
    assert status == 0 and out.startswith("Safe: the pictures cannot be told from those of the full run")
    picture = tmp_path / "errors.png"
    command = ("check", str(checkpoint), "--schedule", str(tmp_path / "few.json"), "--for", "1")
    status, out, _ = tenuto(*command, "--png", str(picture))
    assert status == 1 and out.startswith("Not safe") and "furthest off: blocks." in out
    assert picture.stat().st_size > 1000
    status, out, _ = tenuto(*command, "--json")
    record = json.loads(out)
    assert status == 1 and not record["safe"] and record["worst_units"][0]["error"] > 0


def test_check_knows_that_a_held_language_model_takes_fewer_steps(tenuto, tmp_path):
    path = str(tmp_path / "s.json")
    tenuto("schedule", "tiny-llada", "--steps", "8", "--every", "4", "-o", path)
    status, out, _ = tenuto("check", "tiny-llada", "--schedule", path, "--length", "8", "--samples", "1")
    assert "At 6 of 8 steps every unit is held" in out and status in (0, 1)
