"""Which of diffusers' pipelines work when they are enabled?

    git clone https://github.com/huggingface/diffusers ../diffusers-checkout
    python -m benchmarks.coverage --checkout ../diffusers-checkout     # writes results/coverage/

Each pipeline is made by diffusers' own fast tests, or of the parts that they make for a similar one (neighbours.py):
small, with random weights. What the tests load from the hub is made
on the spot (hub.py). A pipeline works if the result at budget 1 is identical to the untouched pipeline's, if a quarter
really saves evaluations, counted by hooks of torch, if ten evaluations (which are corrected) give a finite result, and
if the result after `tenuto.disable` is identical again. torchvision, sentencepiece, ftfy, einops, opencv, requests_mock
and parameterized let more of diffusers' tests be imported.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.coverage.exported import others_than
from benchmarks.coverage.report import RECORD, TRIAL, written
from benchmarks.coverage.worker import MARK
from benchmarks.places import ROOT, results_of
from scripts.command_line import run
from tenuto.errors import TenutoError
from tenuto.files import read_text
from tenuto.provenance import provenance
from tenuto_lab.journal import parsed
from tenuto_lab.result_files import Misfit, read_result

RESULTS = results_of("coverage")


class Worker:
    """One process that tries one pipeline after the other; it is replaced if it dies or takes too long."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def start(self) -> dict[str, Any]:
        """Begin a process; the list of cases that it found."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.coverage.worker", str(self._checkout)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, preexec_fn=lambda: os.nice(2),
            start_new_session=True,
        )  # fmt: skip
        self._lines = queue.Queue()
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()
        found = self._next(300)
        if found is None:
            raise TenutoError(f"The tests in {self._checkout} cannot be listed.")
        return found

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                lines.put(line.removeprefix(MARK))
        lines.put(None)

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next answer; None if the process died or takes too long."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            line = None
        if line is None:
            self.stop()
        return None if line is None else json.loads(line)

    def attempt(self, number: int, seconds: float) -> dict[str, Any] | None:
        if self._process is None:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        return self._next(seconds)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def main(
    checkout: Annotated[Path, typer.Option(help="a checkout of diffusers; its tests are used, not its code")],
    only: Annotated[list[str] | None, typer.Option(help="try only these pipeline classes")] = None,
    workers: Annotated[int, typer.Option(help="processes")] = 1,
    seconds: Annotated[float, typer.Option(help="time limit for one pipeline")] = 180,
    again: Annotated[bool, typer.Option(help="try again what an interrupted run has tried")] = False,
    retry: Annotated[
        bool, typer.Option(help="take over from the result what works, and try the rest again, or what `only` names")
    ] = False,
    out: Annotated[Path, typer.Option(help="where the result goes")] = RESULTS,
) -> None:
    lines = out.with_suffix(".partial.jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    if again:
        lines.unlink(missing_ok=True)
    done = tried_before(lines)
    made = provenance("cpu", checkout=_commit(checkout))
    if retry:
        before = read_result(out, "record of coverage", RECORD)
        done |= {row["key"]: row for row in taken_over(before["pipelines"], only)}
        made = {**before["provenance"], "again": made}
    first = Worker(checkout.resolve())
    found = first.start()
    cases = found["cases"]
    wanted = [n for n, case in enumerate(cases) if not only or case["pipeline"] in only]
    todo = [n for n in wanted if cases[n]["key"] not in done]
    jobs: queue.Queue[int] = queue.Queue()
    for number in sorted(todo, key=lambda number: "Edit" in cases[number]["pipeline"]):  # the slowest last
        jobs.put(number)
    lock = threading.Lock()

    def work(worker: Worker) -> None:
        while True:
            try:
                number = jobs.get_nowait()
            except queue.Empty:
                worker.stop()
                return
            case = cases[number]
            answer = worker.attempt(number, seconds)
            answer = answer or {**case, "verdict": "not built", "why": f"died, or took more than {seconds:g} s"}
            with lock:
                done[answer["key"]] = answer
                with lines.open("a") as sink:
                    sink.write(json.dumps(answer) + "\n")
                print(
                    f"{len(done)}/{len(cases)} {answer['verdict']:10} {case['key']}  {answer['why'][:110]}", flush=True
                )

    threads = [threading.Thread(target=work, args=(first if not place else Worker(checkout.resolve()),))
               for place in range(max(1, workers))]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if only is None or retry:
        tried = [row for row in done.values() if not row["key"].endswith("· exported")]
        rows = [*tried, *others_than({row["pipeline"] for row in tried})]
        written(out, made, rows, found["failed"])
        lines.unlink(missing_ok=True)


def tried_before(path: Path) -> dict[str, dict[str, Any]]:
    """What an interrupted run has tried, by its key. A line that was not finished is tried again."""
    found = {}
    for line in read_text(path, "trials").splitlines() if path.exists() else ():
        trial = parsed(line)
        with suppress(Misfit):
            TRIAL(trial, "")
            found[trial["key"]] = trial
    return found


def taken_over(rows: list[dict[str, Any]], again: list[str] | None) -> list[dict[str, Any]]:
    """The rows that stay as they are: those that `again` does not name, or, without names, those that worked."""
    if again is None:
        return [row for row in rows if row["verdict"] in ("works", "in full")]
    return [row for row in rows if row["pipeline"] not in again]


def _commit(checkout: Path) -> str:
    run = subprocess.run(
        ["git", "-C", str(checkout), "log", "-1", "--format=%h of %cs"], capture_output=True, text=True
    )
    return run.stdout.strip() or "unknown"


if __name__ == "__main__":
    run(main)
