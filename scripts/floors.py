"""Tries the lowest versions that pyproject.toml allows: `make floors`.

Makes an environment of its own in build/floors with exactly those versions, runs the demo and the core tests in it, and
writes what came of it to results/floors/floors.json. A bound that fails is raised, not excused. A test that fails for
its own sake, because it and not the product asks for something newer, is named with the reason under "explained".
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
EXTRAS = ("pipelines", "plots", "lab")  # beside the product's own dependencies
ALSO = ("accelerate",)  # of the other extras: offloading, which the core tests try, needs it
TOOLS = ("pytest", "hypothesis")  # what the tests need; of any version
CORE = (
    *("tests/scheduling", "tests/runtime", "tests/sampling", "tests/pipelines", "tests/models"),
    *("tests/lab/scoring", "tests/lab/units", "tests/lab/seam", "tests/lab/networks"),
)
BOUND = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")
PROVENANCE = (
    "import json, sys; from tenuto.provenance import provenance; print(json.dumps(provenance(command=sys.argv[1])))"
)


def lowest(pyproject: dict[str, object]) -> dict[str, str]:
    """The lower bound of every dependency, by name."""
    project = pyproject["project"]
    assert isinstance(project, dict)
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]
    wanted += [next(one for some in extras.values() for one in some if re.match(rf"{name}\b", one)) for name in ALSO]
    found = [BOUND.fullmatch(one) for one in wanted]
    if unbounded := [one for one, match in zip(wanted, found, strict=True) if match is None]:
        sys.exit(f"These dependencies have no single lower bound: {', '.join(unbounded)}.")
    return {match[1]: match[2] for match in found if match is not None}


def same(one: str, other: str) -> bool:
    """Whether two versions are one: 2.8 is 2.8.0+cu128."""
    parts = [[int(part) for part in version.partition("+")[0].split(".")] for version in (one, other)]
    length = max(map(len, parts))
    first, second = ([*part, *[0] * (length - len(part))] for part in parts)
    return first == second


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    print("$", *command, flush=True)
    return subprocess.run([str(part) for part in command], cwd=ROOT, text=True, **options)  # type: ignore[call-overload, no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="change the environment that is there; do not start afresh")
    parser.add_argument("tests", nargs="*", default=CORE, help="what pytest runs; by default the core tests")
    asked = parser.parse_args()
    versions = lowest(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    python = PLACE / "bin" / "python"
    if not asked.keep or not python.exists():
        venv.create(PLACE, clear=True, with_pip=True)
    pins = [f"{name}=={version}" for name, version in versions.items()]
    run(python, "-m", "pip", "install", "--quiet", *pins, *TOOLS, check=True)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", ".", check=True)
    listed = run(python, "-m", "pip", "list", "--format", "json", stdout=subprocess.PIPE, check=True).stdout
    installed = {one["name"].lower().replace("-", "_"): one["version"] for one in json.loads(listed)}
    if wrong := [name for name, version in versions.items() if not same(installed[name.replace("-", "_")], version)]:
        sys.exit(f"The environment has other versions of {', '.join(wrong)}.")
    demo = run(python, "-m", "tenuto", "demo", "--out", PLACE / "demo", "--steps", "12")
    tests = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *asked.tests, stdout=subprocess.PIPE)
    print(tests.stdout)
    command = " ".join(["python", "-m", "scripts.floors", *sys.argv[1:]])
    made = run(python, "-c", PROVENANCE, command, stdout=subprocess.PIPE, check=True).stdout
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", tests.stdout, re.MULTILINE)
    explained = json.loads(RECORD.read_text(encoding="utf-8"))["explained"] if RECORD.exists() else {}
    record = {
        "provenance": json.loads(made),
        "asked": versions,
        "installed": installed,
        "demo": demo.returncode == 0,
        "tests": [str(one) for one in asked.tests],
        "passed": tests.returncode == 0,
        "failed": failed,
        "explained": {test: reason for test, reason in explained.items() if test in failed},
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"demo {'runs' if record['demo'] else 'FAILS'}; {len(failed)} tests fail; wrote {RECORD.relative_to(ROOT)}")
    sys.exit(0 if record["demo"] and record["passed"] else 1)


if __name__ == "__main__":
    main()
