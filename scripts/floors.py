"""Tries the lowest versions that pyproject.toml allows: `make floors`.

Makes an environment of its own in build/floors with exactly those versions, runs the demo and the core tests in it, and
writes what came of it to results/floors/floors.json. A bound that fails is raised, not excused.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "floors"
RECORD = ROOT / "results" / "floors" / "floors.json"
EXTRAS = ("pipelines", "plots")  # beside the product's own dependencies
TOOLS = ("pytest", "hypothesis", "scipy")  # what the tests need; of any version
CORE = ("tests/scoring", "tests/scheduling", "tests/runtime", "tests/sampling", "tests/pipelines", "tests/models")
BOUND = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def lowest(pyproject: dict[str, object]) -> dict[str, str]:
    """The lower bound of every dependency, by name."""
    project = pyproject["project"]
    assert isinstance(project, dict)
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    found = [BOUND.fullmatch(one) for one in wanted]
    if unbounded := [one for one, match in zip(wanted, found, strict=True) if match is None]:
        sys.exit(f"These dependencies have no single lower bound: {', '.join(unbounded)}.")
    return {match[1]: match[2] for match in found if match is not None}


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    print("$", *command, flush=True)
    return subprocess.run([str(part) for part in command], cwd=ROOT, text=True, **options)  # type: ignore[call-overload, no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", help="another version of torch than the lowest, where that cannot be had")
    parser.add_argument("--keep", action="store_true", help="use the environment that is there")
    parser.add_argument("tests", nargs="*", default=CORE, help="what pytest runs; by default the core tests")
    asked = parser.parse_args()
    versions = lowest(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    if asked.torch:
        versions["torch"] = asked.torch
    python = PLACE / "bin" / "python"
    if not asked.keep or not python.exists():
        venv.create(PLACE, clear=True, with_pip=True)
        pins = [f"{name}=={version}" for name, version in versions.items()]
        run(python, "-m", "pip", "install", "--quiet", *pins, *TOOLS, check=True)
        run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", ".", check=True)
    demo = run(python, "-m", "tenuto", "demo", "--out", PLACE / "demo", "--steps", "12")
    tests = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked.tests, stdout=subprocess.PIPE)
    print(tests.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", tests.stdout, re.MULTILINE)
    installed = run(python, "-m", "pip", "list", "--format", "json", stdout=subprocess.PIPE, check=True).stdout
    record = {
        "python": sys.version.split()[0],
        "asked": versions,
        "installed": {one["name"]: one["version"] for one in json.loads(installed)},
        "demo": demo.returncode == 0,
        "tests": [str(one) for one in asked.tests],
        "passed": tests.returncode == 0,
        "failed": failed,
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"demo {'runs' if record['demo'] else 'FAILS'}; {len(failed)} tests fail; wrote {RECORD.relative_to(ROOT)}")
    sys.exit(0 if record["demo"] and record["passed"] else 1)


if __name__ == "__main__":
    main()
