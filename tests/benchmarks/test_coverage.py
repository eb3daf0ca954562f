"""The judge of coverage judges: a pipeline that works, one that is refused, one that is changed behind its back."""

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, EulerAncestralDiscreteScheduler

import tenuto
from benchmarks.coverage import hub
from benchmarks.coverage.__main__ import taken_over
from benchmarks.coverage.cases import Case, cases_in
from benchmarks.coverage.exported import NAMELESS, exported, others_than
from benchmarks.coverage.report import counts_of, share_in_words, told_in_words, verdict_of, written
from benchmarks.coverage.trial import arrays, attempt, same
from tenuto.pipelines.engine import REFUSED
from tests.helpers.pipelines import QUIET, prompt, tiny

pytestmark = QUIET


class Tester:
    """What a test class of diffusers offers."""

    @staticmethod
    def pipeline_class(**parts: Any) -> Any:
        return tiny("flux")

    def get_dummy_components(self) -> dict[str, Any]:
        return {}

    def get_dummy_inputs(self, device: str, seed: int = 0) -> dict[str, Any]:
        generator = torch.Generator(device).manual_seed(seed)
        return {**prompt("flux"), "generator": generator, "num_inference_steps": 2, "output_type": "pt"}


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> Case:
    module = types.ModuleType("tests_of_a_checkout")
    vars(module)["Tester"] = Tester
    monkeypatch.setitem(sys.modules, "tests_of_a_checkout", module)
    return Case("FluxPipeline", "tests_of_a_checkout", "Tester")


def test_a_pipeline_that_works_is_judged_so_and_its_evaluations_are_counted(case):
    told = attempt(case)
    assert told["verdict"] == "works", told["why"]
    assert told["full"] == {"transformer": 16} and told["denoisers"] == ["transformer"]
    assert told["a quarter"]["evaluations"] == {"transformer": told["a quarter"]["summary"]["computed"]}
    assert told["loop"]["schedulers"] == {"FlowMatchEulerDiscreteScheduler.step": 16}
    assert told["loop"]["before_first_step"] == {"transformer": 1}


@pytest.mark.parametrize(
    ("noisy", "helps"), [(DDPMScheduler, "DPMSolverMultistepScheduler"), (EulerAncestralDiscreteScheduler, None)]
)
def test_a_pipeline_with_a_noisy_scheduler_is_tried_again_with_another_one(monkeypatch, noisy, helps):
    def noisy_pipeline(**parts: Any) -> Any:
        pipe: Any = tiny("sd1")
        pipe.scheduler = noisy.from_config(pipe.scheduler.config)
        return pipe

    class Noisy(Tester):
        pipeline_class = staticmethod(noisy_pipeline)

        def get_dummy_inputs(self, device: str, seed: int = 0) -> dict[str, Any]:
            return {**prompt("sd1"), "generator": torch.Generator(device).manual_seed(seed), "output_type": "pt"}

    module = types.ModuleType("noisy_tests")
    vars(module)["Tester"] = Noisy
    monkeypatch.setitem(sys.modules, "noisy_tests", module)
    told = attempt(Case("StableDiffusionPipeline", "noisy_tests", "Tester"))
    assert told["verdict"] == "in full", told["why"]
    if helps is None:
        assert told["instead"] is None
    else:
        assert told["instead"]["how"] == helps
        assert told["instead"]["full"] == {"unet": 16} and told["instead"]["evaluations"] == {"unet": 6}


def test_the_shares_say_of_what_they_are():
    def row(name: str, verdict: str, **more: Any) -> dict[str, Any]:
        return {"pipeline": name, "key": name, "verdict": verdict, "why": "", **more}

    helped = {"how": "another", "full": {"unet": 16}, "evaluations": {"unet": 6}, "distance": 0.1}
    rows = [row("A", "works"), row("B", "in full", instead=helped), row("C", "in full"), row("D", "not built")]
    rows += [row("E", "refused"), {**row("F", "refused"), "key": "F · exported"}]
    told = share_in_words(rows)
    assert "3 of 4 (75.0%) are identical" in told
    assert "1 of 4 (25.0%) save evaluations as" in told and "2 of 4 (50.0%) do so if" in told


def test_a_pipeline_that_stays_enabled_fails(case, monkeypatch):
    monkeypatch.setattr(tenuto, "disable", lambda pipe: None)
    told = attempt(case)
    assert told["verdict"] == "fails" and "after disable" in told["why"]


def test_a_refusal_and_a_test_that_cannot_be_built_say_why(case, monkeypatch):
    def refuse(*given: Any, **named: Any) -> None:
        raise tenuto.TenutoError("no reason")

    monkeypatch.setattr(tenuto, "enable", refuse)
    assert attempt(case)["verdict"] == "refused"
    monkeypatch.setattr(Tester, "get_dummy_components", lambda self: {}["missing"])
    told = attempt(case)
    assert told["verdict"] == "not built" and "missing" in told["why"]


def test_what_is_tried_again_is_what_was_named_or_what_did_not_work():
    rows = [
        {"pipeline": name, "verdict": verdict} for name, verdict in (("A", "works"), ("B", "fails"), ("C", "in full"))
    ]
    assert [row["pipeline"] for row in taken_over(rows, None)] == ["A", "C"]
    assert [row["pipeline"] for row in taken_over(rows, ["A"])] == ["B", "C"]


def test_results_are_compared_whatever_their_structure():
    result = {"images": [torch.ones(2), np.array([np.nan])], "flag": [False], "name": "a"}
    assert same(arrays(result), arrays(result)) and not same(arrays(result), arrays({"images": [torch.ones(2)]}))
    assert not same([], [])


def test_the_worst_verdict_on_a_class_counts(tmp_path: Path):
    row = {"pipeline": "APipeline", "key": "a", "module": "m", "tester": "t", "why": "so"}
    rows: list[dict[str, Any]] = [{**row, "verdict": "not built"}, {**row, "verdict": "refused"}]
    assert verdict_of(rows) == "refused" and verdict_of(rows[:1]) == "not built"
    assert counts_of(rows)["ordinary"]["refused"] == 1
    made = {"command": "c", "commit": "d", "torch": "t", "hardware": "h", "date": "d", "checkout": "x"}
    written(tmp_path / "coverage.json", made, rows, {})
    assert "| APipeline | so |" in (tmp_path / "coverage.md").read_text(encoding="utf-8")


def test_a_case_is_found_once_for_each_way_of_building_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "checkout_of_diffusers" / "tests" / "pipelines"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "test_flux.py").write_text(
        "from diffusers import FluxPipeline\n"
        "class Config:\n    pipeline_class = FluxPipeline\n"
        "    def get_dummy_components(self): return {}\n    def get_dummy_inputs(self): return {}\n"
        "class TestMemory(Config): pass\n"
    )
    (folder / "test_broken.py").write_text("import no_such_package\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    cases, failed = cases_in(tmp_path / "checkout_of_diffusers")
    assert cases[0] == Case("FluxPipeline", "tests.pipelines.test_flux", "Config")
    assert all(case.module == "benchmarks.coverage.neighbours" for case in cases[1:])
    assert "no_such_package" in failed["tests.pipelines.test_broken"]


def test_the_stand_in_for_a_tokenizer_counts_characters():
    made = hub.tokenizer()
    words = made(["ab", "abc"], padding="max_length", max_length=8, truncation=True, return_tensors="pt")
    assert words["input_ids"].shape == (2, 8) and made.decode(made("a b", add_special_tokens=False).input_ids) == "a b"


def test_pictures_stay_small_where_a_pipeline_would_enlarge_them(monkeypatch):
    for name in hub.QWEN_EDITORS:
        module = importlib.import_module(f"diffusers.{name}")
        monkeypatch.setattr(module, "calculate_dimensions", vars(module)["calculate_dimensions"])
    hub.shrink_pictures()
    for name in hub.QWEN_EDITORS:
        width, height = vars(importlib.import_module(f"diffusers.{name}"))["calculate_dimensions"](1024 * 1024, 1.0)[:2]
        assert (width, height) == (64, 64)


def test_every_class_that_diffusers_exports_has_a_row_with_a_reason():
    rows = {row["pipeline"]: row for row in others_than({"FluxPipeline"})}
    assert set(rows) == set(exported()) - {"FluxPipeline"} and all(row["why"] for row in rows.values())
    refused = {name for name, row in rows.items() if row["verdict"] == "refused"}
    assert refused == set(REFUSED) & set(exported())
    assert "it reads the attention maps" in rows["StableDiffusionSAGPipeline"]["why"]
    assert rows["DiffusionPipeline"]["why"] == NAMELESS


def test_the_counts_say_what_saves_evaluations_and_what_does_not():
    rows = [{"pipeline": name, "key": name, "verdict": verdict} for name, verdict in
            (("A", "works"), ("B", "in full"), ("C", "refused"), ("D", "not tried"))]  # fmt: skip
    told = told_in_words(counts_of(rows))
    assert "Of 2 classes that were built" in told and "1 save evaluations, 1 are computed in full" in told
    assert "1 are refused" in told and "1 were not tried" in told
