"""Runs a program that a model wrote, and its tests, in isolation. A secret word proves a pass, not an exit code.

The program runs first. When it has ended, the process receives the tests and half of a secret. The other half waits in
the pipe; the process reads it after the last assertion. The word is the hash of both halves. So a program that ends the
process (sys.exit, os._exit) cannot pass: neither its source nor /proc holds the secret, and the exit code is ignored.

Remaining weakness: program and tests share a process, as HumanEval requires. A program written against this very file
can search the frames and pipes of its process for the secret while the tests call it. An object that claims to equal
everything passes every assertion. But answers come from models that do not know this file.
"""

import hashlib
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

GIGABYTE = 2**30
LIMITS = {"memory": 4 * GIGABYTE, "file": GIGABYTE // 16, "processes": 64}  # of a program; processes: beside the user's
ASKS = b"tests"  # what the process sends when the program has ended without an error

# The code of the keeper process. The program runs in a fork of the keeper, so Python starts only once. The keeper is a
# "subreaper": it becomes the parent of all processes that the program leaves behind, even in sessions of their own. So
# it finds these processes below itself and ends them.
KEEPER = r"""
import builtins, ctypes, hashlib, json, os, random, resource, signal, sys, types

SUBREAPER, PARENT_DIES, NO_NEW_PRIVILEGES = 36, 1, 38
libc = ctypes.CDLL(None)
libc.prctl(SUBREAPER, 1, 0, 0, 0)
libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)

def below():
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    found, more = set(), {os.getpid()}
    while more:
        more = {one for one, parent in parents.items() if parent in more} - found
        found |= more
    return found

def end_all(*_):
    for _ in range(1000):  # what is started while we look is found the next time
        for one in below():
            try:
                os.kill(one, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
    os._exit(0)

def limit(name, value):
    try:
        _, most = resource.getrlimit(name)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(name, (value, value))
    except (OSError, ValueError):
        pass

def processes():
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            pass
    return count

def run(asked):
    # All that is used after the program has run is bound here, where the program cannot put something else.
    read, write, leave, compiled, execute, digest, settrace, setprofile = (
        os.read, os.write, os._exit, compile, exec, hashlib.sha256, sys.settrace, sys.setprofile
    )
    number, known, everything = int.from_bytes, dict(vars(builtins)), vars(builtins)
    os.setsid()
    count = processes()
    for name, value in (
        (resource.RLIMIT_AS, asked["memory"]), (resource.RLIMIT_FSIZE, asked["file"]), (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, asked["seconds"]), (resource.RLIMIT_NPROC, count + asked["processes"]),
    ):
        limit(name, value)
    places = random.SystemRandom().sample(range(100, 250), 2)
    source, sink = (os.dup2(one, place, inheritable=False) for one, place in zip((0, 1), places))
    null = os.open(os.devnull, os.O_RDWR)
    for one in (0, 1, 2):
        os.dup2(null, one)
    def exactly(size):
        data = b""
        while len(data) < size:
            more = read(source, size - len(data))
            if not more:
                leave(1)
            data += more
        return data
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = vars(module)
    try:
        execute(compiled(asked["program"], "<answer>", "exec"), names)
        settrace(None)
        setprofile(None)
        everything.clear()
        everything.update(known)
        write(sink, asked["asks"].encode())
        half = exactly(32)
        tests = exactly(number(exactly(8), "big")).decode()
        execute(compiled(tests, "<tests>", "exec"), names)
        write(sink, digest(half + exactly(32)).digest())
    finally:
        leave(1)

line = b""
while not line.endswith(b"\n"):
    more = os.read(0, 1)
    if not more:
        os._exit(1)
    line += more
asked = json.loads(line)
signal.signal(signal.SIGTERM, end_all)
signal.signal(signal.SIGALRM, end_all)
signal.alarm(asked["seconds"] + 5)  # whoever asked may be killed, and then nobody else ends this
libc.prctl(PARENT_DIES, signal.SIGTERM, 0, 0, 0)
if os.getppid() != asked["parent"] and asked["parent"]:
    os._exit(1)  # whoever asked is gone already
child = os.fork()
if not child:
    signal.alarm(0)
    for one in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(one, signal.SIG_DFL)
    libc.prctl(SUBREAPER, 0, 0, 0, 0)
    run(asked)
os.close(1)
while True:
    try:
        ended, _ = os.waitpid(-1, 0)
    except ChildProcessError:
        break
    if ended == child:
        break
end_all()
"""


@dataclass(frozen=True)
class Isolation:
    """A way to isolate a program from the machine, in addition to limits and an empty folder."""

    name: str
    command: Callable[[Path], list[str]]  # the program's folder -> the words before its own command
    own_processes: bool  # whether the program sees only its own processes


def _bubblewrap(folder: Path) -> list[str]:
    """The file system is read-only except for the program's folder; there is no network."""
    rooms = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(folder), str(folder)]
    return ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", *rooms, "--chdir", str(folder), "--"]


def _namespaces(folder: Path) -> list[str]:
    """The program sees no network and no other processes. It has this user's access to the file system."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    return ["unshare", *user, "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]


SESSION = Isolation("a session of its own, without a sandbox", lambda folder: [], False)
SANDBOXES = {
    "bwrap": Isolation("bubblewrap (read-only files, no network, no other processes)", _bubblewrap, True),
    "unshare": Isolation("namespaces by unshare (no network, no other processes)", _namespaces, True),
}


@cache
def isolation() -> Isolation:
    """The best sandbox that is installed and usable here."""
    for program, one in SANDBOXES.items():
        if shutil.which(program):
            with tempfile.TemporaryDirectory() as folder, suppress(OSError, subprocess.TimeoutExpired):
                tried = [*one.command(Path(folder)), sys.executable, "-I", "-c", "pass"]
                if subprocess.run(tried, capture_output=True, timeout=10, cwd=folder).returncode == 0:
                    return one
    return SESSION


def passes_tests(program: str, tests: Sequence[str], seconds: float, within: Isolation | None = None) -> bool:
    """Whether the program and its tests run to their end in time. Ends all processes that the program started."""
    within = within or isolation()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [*within.command(Path(folder)), sys.executable, "-I", "-c", KEEPER],
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin and process.stdout
        asked = {"program": program, "asks": ASKS.decode(), "seconds": int(seconds) + 2, **LIMITS}
        asked["parent"] = 0 if within.own_processes else os.getpid()
        try:
            talk = Talk(process.stdin, process.stdout, time.monotonic() + seconds)
            return talk.send(json.dumps(asked).encode() + b"\n") and _word_is_given(talk, "\n".join(tests))
        finally:
            _end(process, within, folder)


def _word_is_given(talk: "Talk", tests: str) -> bool:
    first, second = secrets.token_bytes(32), secrets.token_bytes(32)
    if talk.receive(len(ASKS)) != ASKS:
        return False
    source = tests.encode(errors="replace")
    talk.send(first + len(source).to_bytes(8, "big") + source + second)
    return talk.receive(32) == hashlib.sha256(first + second).digest()


@dataclass
class Talk:
    """Our ends of the pipes to and from the program, with a deadline."""

    sink: IO[bytes]
    source: IO[bytes]
    deadline: float

    def __post_init__(self) -> None:
        os.set_blocking(self.sink.fileno(), False)

    def send(self, data: bytes) -> bool:
        """Send the data. Returns whether the program received all of it in time."""
        with selectors.DefaultSelector() as ready:
            ready.register(self.sink, selectors.EVENT_WRITE)
            while data:
                if not ready.select(max(0.0, self.deadline - time.monotonic())):
                    return False
                try:
                    data = data[os.write(self.sink.fileno(), data) :]
                except OSError:  # the reader is gone
                    return False
        return True

    def receive(self, size: int) -> bytes:
        """Receive `size` bytes; fewer if the program ends or the deadline passes."""
        data = b""
        with selectors.DefaultSelector() as ready:
            ready.register(self.source, selectors.EVENT_READ)
            while len(data) < size and ready.select(max(0.0, self.deadline - time.monotonic())):
                more = os.read(self.source.fileno(), size - len(data))
                if not more:
                    break
                data += more
        return data


def _end(process: subprocess.Popen[bytes], within: Isolation, folder: str) -> None:
    """End the program and all processes that it started."""
    for stream in (process.stdin, process.stdout):
        if stream:
            with suppress(OSError):
                stream.close()
    if within.own_processes:
        # If the first process of a namespace is killed, the system ends all others before it notifies the parent.
        for one in _children(process.pid):
            with suppress(OSError):
                os.kill(one, signal.SIGKILL)
    else:  # the keeper ends all processes below itself
        with suppress(OSError):
            process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not within.own_processes:  # because the program may have killed its keeper
        _end_those_of(folder)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(path.read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _end_those_of(folder: str) -> None:
    """End all processes that were started with this folder as their home."""
    home = f"HOME={folder}".encode()
    for _ in range(100):
        found = [one for one in Path("/proc").glob("[0-9]*/environ") if home in _environment(one)]
        for one in found:
            with suppress(OSError):
                os.kill(int(one.parent.name), signal.SIGKILL)
        if not found:
            return
        time.sleep(0.01)


def _environment(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # the process belongs to another user or has ended
        return []
