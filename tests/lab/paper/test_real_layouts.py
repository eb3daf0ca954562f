"""Experiments on checkpoints as they are published: each tried from the command line on a miniature of its layout."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tenuto
from tenuto.errors import TenutoError, UsageError
from tenuto.runtime.executor import Executor
from tenuto_lab.cli import app
from tenuto_lab.frontier.frontier_report import frontier_tables
from tenuto_lab.frontier.writing import as_expected
from tenuto_lab.paper import EXPERIMENTS, Lab, Protocol, freezing, writing_bench
from tenuto_lab.paper.writing_bench import read_problems
from tests.helpers import layouts

pytestmark = pytest.mark.filterwarnings("ignore")  # of diffusers and TorchScript, about themselves


@pytest.fixture
def judged(tmp_path: Path) -> list[str]:
    """Inception as TorchScript, and real pictures in an npz file."""
    layouts.scripted_inception(tmp_path / "inception.pt")
    pixels = np.random.default_rng(0).integers(0, 256, size=(12, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "real.npz", arr_0=pixels)
    return ["--inception", str(tmp_path / "inception.pt"), "--reference", str(tmp_path / "real.npz")]


def done(name: str, tmp_path: Path, *arguments: str, size: tuple[int, int, int] = (4, 2, 8)) -> dict[str, Any]:
    samples, seeds, steps = map(str, size)
    options = [
        "--samples",
        samples,
        "--seeds",
        seeds,
        "--steps",
        steps,
        "-o",
        str(tmp_path / "out"),
        "--orders",
        "2",
        "--json",
    ]
    found = CliRunner().invoke(app, ["experiment", name, *options, *arguments])
    assert found.exit_code == 0, found.output
    record: dict[str, Any] = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    return record


@pytest.mark.parametrize("make", [layouts.latent_dit, layouts.latent_uvit], ids=["dit", "uvit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_latents_are_decoded_and_judged_by_inception(make: Any, dtype: str, tmp_path: Path, judged: list[str]) -> None:
    place = make(tmp_path / "model")
    record = done("operating-points", tmp_path, "--checkpoint", str(place), "--dtype", dtype, *judged)
    fids = [row for row in record["rows"] if "FID above" in row["quantity"]]
    assert fids and all(row["measured"] is not None for row in fids)
    assert record["provenance"]["protocol"]["dtype"] == dtype


def test_latents_are_not_clamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The VAE gets latents beyond [-1, 1] as they are; only its pictures are clamped."""
    from tenuto_lab.paper import drawing_bench

    seen: list[torch.Tensor] = []
    decode = drawing_bench.decode

    def watched(latents: torch.Tensor, vae: Any) -> torch.Tensor:
        seen.append(latents)
        return decode(latents, vae)

    monkeypatch.setattr(drawing_bench, "decode", watched)
    bench = Lab((str(layouts.latent_dit(tmp_path / "model")),), 4, 1).bench(str(tmp_path / "model"))
    pictures = bench.sample(8)(Executor(bench.model.network))
    assert seen[0].shape[1] == 4 and seen[0].abs().max() > 1
    assert pictures.shape[1] == 3 and pictures.abs().max() <= 1


@pytest.mark.parametrize("name", ["rankings", "comparisons"])
def test_an_sdxl_directory_draws_captions_from_a_file(name: str, tmp_path: Path, judged: list[str]) -> None:
    place = layouts.sdxl(tmp_path / "sdxl")
    (tmp_path / "coco.txt").write_text("a car\na cat\n")
    more = ["--captions", str(tmp_path / "coco.txt"), "--dtype", "bfloat16", "--granularity", "block"]
    record = done(name, tmp_path, "--checkpoint", str(place), *more, *judged, size=(2, 1, 6))
    claims = [row for row in record["rows"] if row["holds"] is not None]
    assert claims and all(row["measured"] is not None and row["granularity"] == "block" for row in claims)


@torch.no_grad()
def test_an_sdxl_directory_draws_what_its_pipeline_draws(tmp_path: Path) -> None:
    """The same noise, captions, solver and guidance give the same latents as diffusers' own pipeline."""
    from diffusers import StableDiffusionXLPipeline

    place = layouts.sdxl(tmp_path / "sdxl")
    (tmp_path / "coco.txt").write_text("a car\na cat\n")
    protocol = Protocol(captions=tmp_path / "coco.txt", guidance=3.0)
    bench: Any = Lab((str(place),), 2, 1, protocol=protocol).bench(str(place))
    assert bench.vae is not None
    latents = tenuto.generate(bench.model, captions=bench.wanted, steps=4, guidance=3.0)
    pipe = StableDiffusionXLPipeline.from_pretrained(place)
    pipe.set_progress_bar_config(disable=True)
    noise = torch.stack([torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)])
    wanted = pipe(["a car", "a cat"], latents=noise, num_inference_steps=4, guidance_scale=3.0, output_type="latent",
                  negative_prompt=["", ""]).images  # fmt: skip
    torch.testing.assert_close(latents, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("make", [layouts.latent_dit, layouts.sdxl], ids=["dit", "sdxl"])
def test_the_frontier_runs_on_them_as_well(make: Any, tmp_path: Path) -> None:
    place = make(tmp_path / "model")
    (tmp_path / "coco.txt").write_text("a car\na cat\n")
    more = ["--captions", str(tmp_path / "coco.txt")] if make is layouts.sdxl else []
    options = [
        "--samples",
        "2",
        "--seeds",
        "1",
        "--steps",
        "10",
        "--budget",
        "0.5",
        "--no-rivals",
        "--dtype",
        "bfloat16",
    ]
    found = CliRunner().invoke(app, ["frontier", str(place), *options, *more, "--json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["rows"]
    assert rows[0]["psnr"] == 200 and all(row["psnr"] > 5 for row in rows)


def test_the_frontier_is_judged_by_inception(tmp_path: Path, judged: list[str]) -> None:
    options = ["--samples", "4", "--seeds", "1", "--steps", "10", "--budget", "0.5", "--no-rivals", "--json", *judged]
    found = CliRunner().invoke(app, ["frontier", str(layouts.latent_dit(tmp_path / "model")), *options])
    assert found.exit_code == 0, found.output
    assert all(row["fid"] >= 0 and "lpips" not in row for row in json.loads(found.stdout)["rows"])
    alone = CliRunner().invoke(app, ["frontier", str(tmp_path / "model"), *judged[:2]])
    assert isinstance(alone.exception, UsageError) and "with --reference" in str(alone.exception)


def problems_file(place: Path) -> Path:
    posed = [{"task": "gsm8k", "prompt": f"w{i % 8} w1", "answer": f"w{i % 8}"} for i in range(8)]
    place.write_text("\n".join(json.dumps(one) for one in posed))
    return place


def test_the_frontier_asks_a_llada_directory_problems_from_a_file(tmp_path: Path) -> None:
    place, file = layouts.llada(tmp_path / "llada"), problems_file(tmp_path / "gsm8k.jsonl")
    shape = ["--steps", "8", "--length", "16", "--block-length", "8", "--answer-length", "4", "--dtype", "bfloat16"]
    options = ["--samples", "2", "--seeds", "1", "--budget", "0.5", "--no-rivals", "--json", "--problems", str(file)]
    found = CliRunner().invoke(app, ["frontier", str(place), *shape, *options])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["rows"]
    assert rows[0]["same_tokens"] == 1 and all(0 <= row["arithmetic"] <= 1 and "needle" not in row for row in rows)
    assert "| gsm8k |" in frontier_tables(json.loads(found.stdout)), "the column bears the name of the task"


def test_a_llada_directory_answers_problems_from_a_file(tmp_path: Path) -> None:
    place, file = layouts.llada(tmp_path / "llada"), problems_file(tmp_path / "gsm8k.jsonl")
    record = done("language", tmp_path, "--checkpoint", str(place), "--problems", str(file), "--dtype", "bfloat16",
                  "--answer-length", "4")  # fmt: skip
    assert any(
        row["quantity"] == "spectral against random: more right answers in gsm8k, share" for row in record["rows"]
    )


def test_two_runs_of_a_llada_directory_are_compared_question_by_question(tmp_path: Path) -> None:
    place, file = layouts.llada(tmp_path / "llada"), tmp_path / "questions.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"w{i} w1", "answer": f"w{i}"}) for i in range(8)))
    shape = ["--tasks-file", str(file), "--length", "16", "--block-length", "8"]
    found = [str(tmp_path / name) for name in ("full.json", "parallel.json")]
    for out, options in zip(found, ([], ["--parallel", "0.9"]), strict=True):
        run = CliRunner().invoke(app, ["eval", "lm", str(place), *shape, *options, "-o", out])
        assert run.exit_code == 0, run.output
    compared = CliRunner().invoke(app, ["eval", "compare", *found])
    assert compared.exit_code == 0 and "8 questions" in " ".join(compared.output.split()), compared.output


def test_problems_of_a_task_file_are_judged_by_its_metric(tmp_path: Path) -> None:
    """A language model explains before it answers: of GSM8K the last number counts, not every token."""
    source, file = tmp_path / "test.jsonl", tmp_path / "gsm8k.jsonl"
    source.write_text(json.dumps({"question": "w1 w2", "answer": "12 + 7 = 19\n#### 19"}))
    built = CliRunner().invoke(app, ["eval", "build", "gsm8k", "--source", str(source), "-o", str(file)])
    assert built.exit_code == 0, built.output
    model = tenuto.load(str(layouts.llada(tmp_path / "llada")))
    ((task, (problem,)),) = read_problems(file, model).items()
    assert task == "gsm8k"
    model.tokenizer.decode = lambda tokens: " ".join(map(str, tokens))
    assert as_expected([[12, 7, 19, 1, 5], [19, 12, 1, 5]], [problem, problem], end=1) == [1.0, 0.0]


def test_code_is_not_run_by_experiments(tmp_path: Path) -> None:
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "w1", "answer": "w2", "metric": "pass@1"}')
    model = tenuto.load(str(layouts.llada(tmp_path / "llada")))
    with pytest.raises(UsageError, match="line 1: the metric pass@1 runs code, and only `tenuto lab eval lm`"):
        read_problems(tmp_path / "humaneval.jsonl", model)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nonsense", "line 1 is no JSON"),
        ('{"prompt": 3, "answer": "x"}', "line 1 should have a prompt and an answer"),
        ('{"prompt": "w1"}', "line 1 has no answer"),
        ('{"prompt": "w1", "answer": "x", "metric": ["exact"]}', "line 1: the metric is one of exact"),
        ("", "holds no problems"),
    ],
)
def test_problems_that_are_none_are_named(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    model = tenuto.load(str(layouts.llada(tmp_path / "llada")))
    with pytest.raises(TenutoError, match=sentence):
        read_problems(tmp_path / "p.jsonl", model)


def test_what_a_checkpoint_lacks_is_said(tmp_path: Path) -> None:
    place = str(layouts.sdxl(tmp_path / "sdxl"))
    with pytest.raises(UsageError, match="is a pipeline: name a file of captions"):
        Lab((place,), 1, 1).bench(place)
    with pytest.raises(UsageError, match="name them, or their statistics, with --reference"):
        Protocol(inception=tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (layouts.latent_dit, ["--problems", "x.jsonl"], "--problems is for models that write"),
        (layouts.latent_dit, ["--task", "sums"], "--task is for models that write"),
        (layouts.latent_dit, ["--answer-length", "4"], "--answer-length is for models that write"),
        (layouts.latent_dit, ["--captions", "x.txt"], "--captions is for models that draw captions"),
        (layouts.llada, ["--captions", "x.txt"], "--captions is for models that draw captions"),
        (layouts.llada, ["--vae", "x"], "--vae is for models that draw"),
        (layouts.llada, ["--guidance", "2"], "--guidance is for models that draw"),
        (layouts.llada, ["--reference", "x.npz"], "--reference is for models that draw"),
        (layouts.latent_dit, ["--guidance", "nan"], "Guidance must be neither negative nor infinite, and nan is."),
        (layouts.latent_dit, ["--guidance", "-1"], "Guidance must be neither negative nor infinite, and -1.0 is."),
    ],
)
def test_an_option_that_the_model_cannot_use_is_refused_at_once(
    make: Any, options: list[str], sentence: str, tmp_path: Path
) -> None:
    place, out = make(tmp_path / "model"), tmp_path / "out"
    found = CliRunner().invoke(app, ["experiment", "maps", "--checkpoint", str(place), *options, "-o", str(out)])
    assert isinstance(found.exception, UsageError) and sentence in str(found.exception)
    assert not out.exists() or not list(out.glob("*.json")), "nothing was computed"


ASKING = [name for name, one in EXPERIMENTS.items() if "small-llada" in one.models]


@pytest.mark.parametrize("name", ASKING)
def test_every_experiment_that_takes_problems_runs_on_a_llada_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in (("BATCH", 2), ("ASKED", 2), ("TIMED", 1)):
        monkeypatch.setattr(freezing, constant, value)
    place, file = layouts.llada(tmp_path / "llada"), problems_file(tmp_path / "gsm8k.jsonl")
    more = ["--problems", str(file), "--answer-length", "4", "--dtype", "bfloat16", "--granularity", "block"]
    record = done(name, tmp_path, "--checkpoint", str(place), *more, size=(2, 1, 8))
    assert record["rows"] and {row["model"] for row in record["rows"]} <= {"llada", "LLaDA-8B"}


def test_problems_without_sums_have_wrong_answers_and_no_carries(tmp_path: Path) -> None:
    place, file = layouts.llada(tmp_path / "llada"), problems_file(tmp_path / "gsm8k.jsonl")
    record = done("failures", tmp_path, "--checkpoint", str(place), "--problems", str(file), size=(2, 1, 8))
    rows = {row["quantity"]: row for row in record["rows"]}
    assert rows["τ = 2: wrong answers among 2 of the kind gsm8k, share"]["holds"] is None
    assert not any("carry" in quantity for quantity in rows)


def test_prose_is_continued_and_judged_and_the_longest_needles_are_asked_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = layouts.llada(tmp_path / "llada")
    judge = layouts.prose(place)
    monkeypatch.setattr(writing_bench, "text_judge", lambda device: judge)
    record = done("language", tmp_path, "--checkpoint", str(place), "--granularity", "block", size=(2, 1, 8))
    rows = {row["quantity"]: row for row in record["rows"] if row["model"] == "llada"}
    assert rows["spectral: needle in the longest contexts (paper: 4,096 tokens), share right"]["paper"] == 0.992
    assert rows["spectral: nats a token by which its text is likelier"]["measured"] is not None
    assert "its likelihood changes by" in record["finding"]
    assert {"full: arithmetic, share right", "full: needle, share right"} <= set(rows)


def test_sums_that_carry_are_counted_apart(tmp_path: Path) -> None:
    """By the name of their task: those beside the shipped model are of one length each."""
    place, file = layouts.llada(tmp_path / "llada"), tmp_path / "p.jsonl"
    lines = [{"task": "sums-2", "prompt": f"w{i} w1", "answer": "w2"} for i in range(2)]
    file.write_text("\n".join(map(json.dumps, lines)))
    record = done("failures", tmp_path, "--checkpoint", str(place), "--problems", str(file), size=(2, 1, 8))
    assert any("that carry, share" in row["quantity"] for row in record["rows"])


def test_only_the_tasks_that_are_named_are_asked(tmp_path: Path) -> None:
    place, file = layouts.llada(tmp_path / "llada"), tmp_path / "p.jsonl"
    lines = [{"task": t, "prompt": f"w{i} w1", "answer": "w2"} for t in ("sort", "add", "spell") for i in range(2)]
    file.write_text("\n".join(map(json.dumps, lines)))
    bench: Any = Lab((str(place),), 2, 1, protocol=Protocol(problems=file, tasks=("add", "spell"))).bench(str(place))
    assert bench.tasks == ("all tasks", "add", "spell")
    with pytest.raises(UsageError, match="There is no task 'sums' among these problems; there are sort, add, spell"):
        Lab((str(place),), 2, 1, protocol=Protocol(problems=file, tasks=("sums",))).bench(str(place))
