"""A pass is proved by the word after the last assertion, and nothing that a program started outlives its time."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tenuto_lab.full_size.answer_metrics import passes
from tenuto_lab.full_size.sandbox import SANDBOXES, SESSION, isolation, passes_tests

TESTS = ["def check(f):\n    assert f(1, 2) == 3", "check(add)"]
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 0\n"


def kinds() -> list[Any]:
    return [SESSION] if isolation() is SESSION else [SESSION, isolation()]


@pytest.fixture(params=kinds(), ids=lambda one: one.name.split()[0])
def within(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(
    "trick",
    [
        "import sys; sys.exit(0)",
        "exit()",
        "quit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "raise SystemExit(0)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit, os; atexit.register(os._exit, 0); raise SystemExit",
        "import os\nif os.fork(): os._exit(0)",
        "def add(a, b): raise SystemExit(0)",
        "def add(a, b):\n    import os\n    os._exit(0)",
        "import builtins; builtins.exec = builtins.compile = lambda *a, **k: None",
        "import os; os.write = os.read = lambda *a: b''; os._exit = lambda *a: None",
        "import hashlib, sys; hashlib.sha256 = None; sys.settrace(lambda f, e, a: sys.exit(0))",
        "import sys\ndef skip(f, e, a):\n    f.f_trace_lines = True\n    return skip\nsys.settrace(skip)",
        "import os\n[os.write(i, b'tests' * 20) for i in range(3)]",
        "print('tests' + '0' * 64)",
        "import os\nos.close(0); os.close(1)",
        "import builtins; builtins.AssertionError = ValueError",
        "import sys; sys.excepthook = lambda *a: None",
        "try:\n    1/0\nexcept Exception:\n    pass\nelse:\n    '''",
    ],
)
def test_no_trick_before_or_in_the_tests_passes_them(trick: str) -> None:
    assert not passes_tests(f"{WRONG}{trick}", TESTS, seconds=5)


def test_a_program_cannot_read_the_secret_from_its_source_or_from_proc() -> None:
    program = f"""{WRONG}
import os
known = open("/proc/self/cmdline", "rb").read() + open("/proc/self/environ", "rb").read()
for name in os.listdir("/proc/self/fd"):
    try:
        os.set_blocking(int(name), False)
        known += os.read(int(name), 1000)
    except OSError:
        pass
for name in os.listdir("/proc/self/fd"):
    try:
        os.write(int(name), known[-32:])
    except OSError:
        pass
os._exit(0)
"""
    assert not passes_tests(program, TESTS, seconds=5)


def test_right_programs_pass(within: Any) -> None:
    for program in (
        RIGHT,
        f"{RIGHT}if __name__ == '__main__':\n    assert add(2, 2) == 4",
        f"import threading, time\n{RIGHT}threading.Thread(target=time.sleep, args=(60,)).start()",
        f"print('tests')\nprint('x' * 100_000)\n{RIGHT}",
        f"from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\n{RIGHT}",
        f"import subprocess, sys\nassert subprocess.run([sys.executable, '-c', '1']).returncode == 0\n{RIGHT}",
        f"open('file', 'w').write('in an empty folder')\nimport os; assert os.listdir() == ['file']\n{RIGHT}",
    ):
        assert passes_tests(program, TESTS, seconds=20, within=within), program
    assert passes(f"```python\n{RIGHT}```", [TESTS[0], "import sys", TESTS[1]]) == 1
    assert not passes_tests(WRONG, TESTS, seconds=20, within=within)
    assert not passes_tests("def add(:", TESTS, seconds=20, within=within)


def left(mark: str) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and mark in (place / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(place.name))
        except OSError:
            continue
    return [one for one in found if one != os.getpid()]


@pytest.mark.parametrize("ends", ["while True: pass", "os._exit(0)", "os.kill(os.getppid(), 9); os._exit(0)", "pass"])
def test_what_a_program_started_ends_with_it(within: Any, ends: str) -> None:
    mark = f"outlives-{os.getpid()}-{time.monotonic_ns()}"
    program = f"""{RIGHT}
import os, subprocess, sys
sleeps = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)", "{mark}"]
subprocess.Popen(sleeps, start_new_session=True)  # a session of its own
if not os.fork():  # and once removed from its parent
    os.setsid()
    if not os.fork():
        os.execv(sys.executable, sleeps)
    os._exit(0)
{ends}
"""
    begun = time.monotonic()
    assert passes_tests(program, TESTS, seconds=1.0, within=within) == (ends == "pass")
    assert time.monotonic() - begun < 5
    assert left(mark) == []


def test_memory_files_and_time_are_limited(within: Any) -> None:
    for program in (
        "x = bytearray(6 << 30)",
        "with open('big', 'wb') as file:\n    for _ in range(80): file.write(bytes(1 << 20))",
        "while True: pass",
        "import time; time.sleep(60)",
    ):
        begun = time.monotonic()
        assert not passes_tests(f"{RIGHT}{program}", TESTS, seconds=1.0, within=within), program
        assert time.monotonic() - begun < 5


def test_nothing_of_our_environment_is_seen(monkeypatch: pytest.MonkeyPatch, within: Any) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    program = f"{RIGHT}\nimport os; assert 'HF_TOKEN' not in os.environ and 'secret' not in str(os.environ)"
    assert passes_tests(program, TESTS, seconds=20, within=within)


@pytest.mark.skipif(isolation() is SESSION, reason="there is no sandbox here")
def test_a_sandbox_has_no_network_and_no_other_processes() -> None:
    program = f"""{RIGHT}
import os, socket
assert not os.path.exists("/proc/{os.getpid()}/stat") or {os.getpid()} < 10
assert [name for _, name in socket.if_nameindex() if name == "lo"] == [name for _, name in socket.if_nameindex()]
"""
    assert passes_tests(program, TESTS, seconds=20)


def test_a_sandbox_that_does_not_work_here_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SANDBOXES:
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isolation.__wrapped__() is SESSION
