"""Which pipelines can be tried: the test classes of a checkout of diffusers that make small components and inputs."""

import importlib
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.coverage import neighbours

FOLDERS = ("tests/pipelines", "tests/modular_pipelines")


@dataclass(frozen=True)
class Case:
    """One pipeline class as one test class of diffusers builds it."""

    pipeline: str  # name of the pipeline class
    module: str  # of the tests
    tester: str  # name of the test class

    @property
    def key(self) -> str:
        return f"{self.pipeline} · {self.module.removeprefix('tests.')}.{self.tester}"


def pipeline_of(tester: type) -> type | None:
    """The pipeline class that a test class is about."""
    found = inspect.getattr_static(tester, "pipeline_class", None)
    return found if inspect.isclass(found) else None


def public_name(pipeline: type) -> str:
    """The name in diffusers of a pipeline class, or of the class that it wraps."""
    import diffusers

    for one in pipeline.__mro__:
        if getattr(diffusers, one.__name__, None) is one or one.__module__.startswith("diffusers."):
            return one.__name__
    return pipeline.__name__


def _wants_more(function: Any) -> bool:
    """Whether a method needs arguments that only its subclasses know."""
    if function is None:
        return False
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return any(one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "device"
               for one in parameters)  # fmt: skip


def cases_in(checkout: Path) -> tuple[list[Case], dict[str, str]]:
    """(the cases, one for each way of building a pipeline; test modules that cannot be imported, and why)."""
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    cases: dict[Any, Case] = {}
    failed = {}
    for path in sorted(file for folder in FOLDERS for file in (checkout / folder).rglob("test_*.py")):
        name = ".".join(path.relative_to(checkout).with_suffix("").parts)
        try:
            module = importlib.import_module(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            continue
        for tester in vars(module).values():
            if not inspect.isclass(tester) or tester.__module__ != name or not hasattr(tester, "get_dummy_inputs"):
                continue
            pipeline = pipeline_of(tester)
            if pipeline is None or _wants_more(getattr(tester, "get_dummy_components", None)):
                continue
            how = (
                pipeline,
                getattr(tester, "get_dummy_components", None),
                tester.get_dummy_inputs,
                inspect.getattr_static(tester, "pretrained_model_name_or_path", None),
            )
            cases.setdefault(how, Case(public_name(pipeline), name, tester.__name__))
    tried = {case.pipeline for case in cases.values()}
    return [*cases.values(), *(case for case in by_neighbours() if case.pipeline not in tried)], failed


def by_neighbours() -> list[Case]:
    """The pipelines that no test builds, but the parts of another pipeline's test do."""
    import diffusers

    return [Case(name, neighbours.__name__, name) for name in neighbours.NEIGHBOURS if hasattr(diffusers, name)]
