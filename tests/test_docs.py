"""The documentation is true: its Python runs, its commands exist, its links lead somewhere, its tables are checked."""

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto.laboratory import COMMANDS, offered

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands_of(page: Path) -> list[str]:
    """The lines that begin with `tenuto` in blocks without a language; long ones are joined."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    called = [re.sub(r"^(torchrun|accelerate launch) .*?-m tenuto\.cli ", "tenuto ", line) for line in lines]
    return [line for line in called if line.startswith("tenuto ")]


def small_pipeline() -> Any:
    """A text-to-image pipeline that takes prompts as one with published weights does, on a CPU and in a second."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    torch.manual_seed(0)
    pipe = StableDiffusionPipeline(
        unet=UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=16,
            attention_head_dim=2,
            norm_num_groups=4,
        ),
        vae=AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4, sample_size=8),
        scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
        text_encoder=None,
        tokenizer=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    embedded = torch.randn(1, 5, 16)
    vars(pipe)["encode_prompt"] = lambda *given, **named: (embedded, torch.zeros_like(embedded))
    vars(pipe)["to"] = lambda *given, **named: pipe  # there is no GPU here
    return pipe


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever asks for published weights gets a small pipeline instead: nothing is downloaded.

    Networks this small are slower on several threads than on one, above all on a busy machine.
    """
    import torch
    from diffusers import DiffusionPipeline

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", lambda *given, **named: small_pipeline())
    yield
    torch.set_num_threads(threads)


WITH_CODE = [page for page in sorted(DOCS.glob("*.md")) if blocks_of(page)]  # a page without code would always pass


def test_the_guides_have_code_to_run() -> None:
    assert {page.stem for page in WITH_CODE} >= {"adding-a-model", "diffusers", "evaluation", "language", "schedules"}


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: None) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in blocks_of(page):
        exec(compile(code, page.name, "exec"), names)


def test_the_summary_on_the_page_is_what_the_example_prints(
    capsys: pytest.CaptureFixture[str], published: None
) -> None:
    page = DOCS / "diffusers.md"
    pasted = page.read_text(encoding="utf-8").split("describes the last generation:\n\n```\n", 1)[1].split("```", 1)[0]
    names: dict[str, object] = {}
    for code in blocks_of(page):
        capsys.readouterr()
        exec(compile(code, page.name, "exec"), names)
        if "print(summary)" in code:
            break
    printed = capsys.readouterr().out
    timed = re.compile(r"\d+\.\d+(?= in the denoiser| saved)")
    assert timed.sub("…", printed) == timed.sub("…", pasted)


def test_the_code_of_the_readme_runs_and_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], published: None
) -> None:
    pipeline, pictures = blocks_of(ROOT / "README.md")
    monkeypatch.chdir(tmp_path)
    exec(compile(pipeline, "README.md", "exec"), {})
    assert "12 of 50 evaluations" in capsys.readouterr().out
    exec(compile(pictures, "README.md", "exec"), {})
    assert "of the steps evaluated" in capsys.readouterr().out
    assert len(list((tmp_path / "held").glob("*.png"))) == 3
    assert (tmp_path / "schedule.json").exists()


def test_the_worked_example_is_exact_when_nothing_is_held() -> None:
    import torch

    import tenuto
    from tenuto.runtime.executor import Executor

    names: dict[str, Any] = {}
    for code in blocks_of(DOCS / "adding-a-model.md"):
        exec(compile(code, "adding-a-model.md", "exec"), names)
    network = names["network"]
    evaluate = Executor(network, tenuto.schedule(names["scores"], steps=1, budget=1.0)).start()
    x, t = torch.randn(3, 32), torch.ones(3)
    assert torch.equal(evaluate(x, t), network(x, t))


def rows_of_schedulers() -> list[Any]:
    text = (DOCS / "diffusers.md").read_text(encoding="utf-8")
    table = text.split("| scheduler in diffusers |", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    named = [(re.findall(r"`(\w+Scheduler)`", row[0]), row[0], row[1], row[2]) for row in rows]
    return [(name, cell, corrected, told) for names, cell, corrected, told in named for name in names]


@pytest.mark.parametrize(("name", "cell", "corrected", "told"), rows_of_schedulers())
def test_the_table_of_schedulers_says_which_are_corrected(name: str, cell: str, corrected: str, told: str) -> None:
    import diffusers

    from tenuto.runtime.levels import nature_of
    from tenuto.runtime.stepping import Stepping

    if f"`{name}` with `eta`" in cell or f"`{name}` with `s_churn`" in cell:
        return  # which only `step` is told: tests/pipelines
    if name in ("DPMSolverSDEScheduler", "CosineDPMSolverMultistepScheduler"):
        pytest.importorskip("torchsde")
    kind = getattr(diffusers, name)
    known = inspect.signature(kind).parameters
    every: list[dict[str, Any]] = [{}]
    if "sde-dpmsolver++" in cell and name == "DPMSolverMultistepScheduler":
        every = [{"algorithm_type": "sde-dpmsolver++"}]
    if "stochastic_sampling" in cell and name == "FlowMatchEulerDiscreteScheduler":
        every = [{"stochastic_sampling": True}]
    for words, option in (("Karras", {"use_karras_sigmas": True}), ("exponential", {"use_exponential_sigmas": True})):
        every += [option] if words in cell and set(option) <= set(known) else []
    every += [{"shift": 3.0}, {"use_dynamic_shifting": True}] if "`shift`" in cell else []
    for options in every:
        scheduler = kind(**options)
        scheduler.set_timesteps(20, **({"mu": 0.7} if "use_dynamic_shifting" in options else {}))
        nature = nature_of(scheduler)
        stepping = Stepping(scheduler, nature, [True] * len(scheduler.timesteps), 2, True)
        assert stepping.corrects == corrected.startswith("yes"), stepping.uncorrected_because
        assert ("evaluates twice at one" in stepping.uncorrected_because) == ("twice at one noise level" in corrected)
        assert nature.adds_noise == ("random" in corrected) == ("in full" in told)


def test_the_page_names_the_pipelines_that_are_refused() -> None:
    from tenuto.pipelines.engine import REFUSED

    text = (DOCS / "diffusers.md").read_text(encoding="utf-8").split("## What is refused", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"`(\w+Pipeline)`", text)) == set(REFUSED)


def test_the_page_says_what_few_steps_evaluate() -> None:
    from tenuto.scheduling.refresh import BUDGET, evaluations_for

    text = (DOCS / "diffusers.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (\d+) \| (\d+) of \d+ \|", text, flags=re.MULTILINE)
    assert len(shown) >= 3 and all(evaluations_for(int(steps), BUDGET) == int(count) for steps, count in shown)
    assert evaluations_for(6, BUDGET) == 6 and "up to 6" in text
    assert [evaluations_for(steps, BUDGET) for steps in (10, 12)] == [6, 6] and "| 10, 12 | 6 |" in text


def commands_known() -> dict[str, Any]:
    """The command of every way of calling it: {"schedule": …, "lab eval samples": …}."""
    from typer.main import get_command

    from tenuto.cli.app import app_for

    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        inner = getattr(command, "commands", None)
        for name, one in (inner or {}).items():
            walk(one, f"{path} {name}".strip())
        if inner is None:
            found[path] = command

    walk(get_command(app_for([])), "")
    walk(get_command(offered("lab", COMMANDS)), "lab")
    return found


def test_every_command_and_option_that_a_page_shows_exists() -> None:
    known = commands_known()
    wrong = []
    for page in PAGES:
        for line in commands_of(page):
            words = shlex.split(line, comments=True)[1:]
            depth = next((i for i in (3, 2, 1) if " ".join(words[:i]) in known), 0)
            if not depth:
                wrong.append(f"{page.name}: {line}: no such command")
                continue
            command = known[" ".join(words[:depth])]
            options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
            unknown = [word for word in words if word.startswith("-") and word not in options]
            wrong += [f"{page.name}: {line}: no option {word}" for word in unknown]
    assert not wrong, "\n".join(wrong)


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target) if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors_of(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_of_results_that_a_page_names_is_there(page: Path) -> None:
    for path in re.findall(r"(?<![\w/])results/[\w./-]+\.(?:jsonl?|md|png)\b", page.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_use_todays_words_and_name_no_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for gone in ("--hold", "--reuse", "hold=", "reuse=", "tenuto.llada", "tenuto.integrations", "scheduled(pipe"):
        assert gone not in text, gone
    for private in ("/work/", "/root/", "/home/", "/tmp/"):
        assert private not in text, private


def test_every_page_is_part_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:", 1)[1]
    assert set(re.findall(r"[\w-]+\.md", navigation)) == {page.name for page in DOCS.glob("*.md")}


def test_the_architecture_names_every_room_and_only_files_that_are_there() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = [path for package in ("tenuto", "tenuto_lab") for path in (ROOT / "src" / package).iterdir()]
    named = {path.stem for path in rooms if not path.name.startswith("__") and path.name != "py.typed"}
    assert not {room for room in named if not re.search(rf"\b{room}\b", text)}
    files = {path.name for path in (ROOT / "src").rglob("*.py")} | {"pyproject.toml", "test_layers.py"}
    assert {Path(name).name for name in re.findall(r"`([\w/]+\.py)`", text)} <= files
