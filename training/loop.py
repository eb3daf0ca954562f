"""The training loop that all the shipped models share: a wall-clock budget, an average of the weights, a record.

The learning rate follows the clock, so that a run of any length ends annealed. If the loss is no longer a number, the
run ends: the command saves the last averaged weights that were good, and `save_record` then raises the error.
"""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from huggingface_hub import save_torch_state_dict
from torch import Tensor, nn

from tenuto.errors import TenutoError, first_line
from tenuto.files import replacing, write_json
from tenuto.provenance import provenance
from training.resuming import Resuming

# The options that the training commands share.
Out = Annotated[Path, typer.Option(help="The directory to write.")]
Seconds = Annotated[float, typer.Option(min=0.001, help="How long to train; compiling is not counted.")]
Config = Annotated[str | None, typer.Option(help="JSON, or a JSON file; the shipped model's if not given.")]
Batch = Annotated[int, typer.Option(min=1, help="Samples a step.")]
Rate = Annotated[float, typer.Option(help="The peak learning rate.")]
Ema = Annotated[float, typer.Option(min=0, max=1, help="The decay of the weights' average.")]
Device = Annotated[str, typer.Option(help="Where to compute.")]
Seed = Annotated[int, typer.Option(help="Of the weights and of everything drawn.")]
Compile = Annotated[bool, typer.Option(help="Compile the network first.")]
StateEvery = Annotated[
    float,
    typer.Option(
        "--state-every",
        min=0,
        help="Save the training's state every so many seconds; after a kill, repeat the command.",
    ),
]
KeepEvery = Annotated[float | None, typer.Option(min=1, help="Save what there is every so many seconds, too.")]
MaxSteps = Annotated[int | None, typer.Option(min=1, help="Stop after so many steps, if sooner.")]

WARM_UP = 0.02  # of the budget
FLOOR = 1e-2  # of the peak learning rate, where the cosine ends
READ_EVERY = 100  # steps: reading the loss waits for the device
PRINT_EVERY = 5.0  # seconds
RECOMPILE_LIMIT = 64  # of one function, in dynamo: it compiles each block of a network for itself, and stops after 8
SHARD_BYTES = 15_900_000  # of tensors; with its header a file stays below 16 MB


@dataclass(frozen=True)
class Settings:
    seconds: float
    batch: int = 512
    lr: float = 1e-3
    ema: float = 0.9995
    seed: int = 0
    compile: bool = True
    max_steps: int | None = None
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.02
    early: float | None = None  # share of the budget after which the averaged weights are kept, too
    keep_every: float | None = None  # seconds after which what there is is saved, again and again


@dataclass
class Trained:
    """The averaged weights, and what it took to get them."""

    state: dict[str, Tensor]
    steps: int = 0
    seconds: float = 0.0
    compiled: bool = False
    interrupted: bool = False
    diverged_at: int | None = None  # the step at which the loss was no longer a number; `steps` made the weights kept
    history: list[tuple[int, float, float]] = field(default_factory=list)  # (step, seconds, mean loss since the last)
    resumed: int = 0  # how often it went on after it was killed or interrupted
    early: "Trained | None" = None  # the run as it was when the share Settings.early of its budget was spent

    @property
    def final_loss(self) -> float | None:
        """The mean over the last tenth of the run: one reading alone is noise."""
        last = [loss for step, _, loss in self.history if step > 0.9 * self.steps]
        return sum(last) / len(last) if last else None


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def rate_at(done: float) -> float:
    """The learning rate, as a share of its peak, when this share of the budget is spent."""
    if done < WARM_UP:
        return done / WARM_UP
    progress = min((done - WARM_UP) / (1 - WARM_UP), 1.0)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2


def train(
    network: nn.Module,
    loss_of: Callable[[Any], Tensor],
    settings: Settings,
    optimizer: Any | None = None,
    keep: Callable[[Trained], None] | None = None,
    resuming: Resuming | None = None,
) -> Trained:
    """Train `network` in place. `loss_of(forward)` draws a batch and gives its loss through `forward`.

    `forward` is the network, compiled if that works; what `loss_of` draws must lie on the network's device. Without an
    `optimizer`, AdamW is used. Every `settings.keep_every` seconds `keep` saves the averaged weights, and `resuming`
    saves everything; a state that it finds is gone on from. The time that saving takes is not counted.
    """
    torch.set_float32_matmul_precision("high")
    network.train()
    learned = {name: value for name, value in network.named_parameters() if value.requires_grad}
    parameters = list(learned.values())
    device = parameters[0].device
    average = [parameter.detach().clone() for parameter in parameters]
    optimizer = optimizer or torch.optim.AdamW(
        parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )

    def backward(forward: Any) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(forward)
        loss.backward()
        return loss.detach()

    start = time.perf_counter()
    forward, compiled = _prepare(network, backward, settings.compile)
    optimizer.zero_grad()
    print(f"ready after {time.perf_counter() - start:.0f} s{', compiled' if compiled else ''}", flush=True)

    result = Trained(network.state_dict(), compiled=compiled)
    total, counted, printed, kept = torch.zeros((), device=device), 0, 0.0, 0.0
    good_steps, good_state = 0, result.state  # the last averaged weights that were known to be good

    def averaged() -> dict[str, Tensor]:
        return {**network.state_dict(), **dict(zip(learned, average, strict=True))}

    if resuming and (progress := resuming.load(network, average, optimizer)) is not None:
        result = _gone_on(progress, result)
        printed = kept = result.seconds
        good_steps, good_state = result.steps, copied(averaged())
        print(f"goes on from step {result.steps:,}, {result.seconds:.0f} s", flush=True)
    start = time.perf_counter() - result.seconds

    def read() -> None:
        nonlocal counted, printed, kept, good_steps, good_state, start
        loss = total.item() / counted
        total.zero_()
        counted, result.seconds = 0, time.perf_counter() - start
        if not math.isfinite(loss):
            result.diverged_at = result.steps
            return
        if torch.stack(torch._foreach_norm(average)).isfinite().all():
            good_steps, good_state = result.steps, copied(averaged())
        result.history.append((result.steps, round(result.seconds, 2), round(loss, 6)))
        if result.seconds - printed >= PRINT_EVERY:
            printed = result.seconds
            pace = result.steps / result.seconds
            print(f"step {result.steps:,}  {printed:.0f} s  loss {loss:.5f}  {pace:.1f} steps/s", flush=True)
        if settings.keep_every is not None and result.seconds - kept >= settings.keep_every:
            kept, began = result.seconds, time.perf_counter()
            if keep:
                keep(replace(result, state=averaged(), interrupted=True))
            if resuming and good_steps == result.steps:
                resuming.save(network, average, optimizer, _progress(result))
            start += time.perf_counter() - began

    # A job that runs out of time is told so by SIGTERM: what it has is worth as much then as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            done = (time.perf_counter() - start) / settings.seconds
            if settings.max_steps is not None:
                done = max(done, result.steps / settings.max_steps)
            if done >= 1:
                break
            if settings.early is not None and result.early is None and result.steps and done >= settings.early:
                if counted:
                    read()
                if result.diverged_at is not None:
                    break
                result.early = replace(result, state=copied(averaged()), history=list(result.history))
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * rate_at(done)
            total += backward(forward)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            decay = min(settings.ema, (1 + result.steps) / (10 + result.steps))
            torch._foreach_lerp_(average, [parameter.detach() for parameter in parameters], 1 - decay)
            result.steps += 1
            counted += 1
            if counted == READ_EVERY:
                read()
                if result.diverged_at is not None:
                    break
    except KeyboardInterrupt:
        result.interrupted = True
        print(f"interrupted at step {result.steps:,}; saving what there is", flush=True)
    if counted:
        read()
    if result.diverged_at is None:
        result.state = averaged()
        return result
    if not good_steps:
        raise TenutoError(f"{no_number(result.diverged_at)} There are no good weights to save.")
    result.steps, result.state = good_steps, good_state
    return result


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in state.items()}


def _progress(run: Trained) -> dict[str, Any]:
    """What a state file says of the run so far; of its early weights, the weights too."""
    told = {name: getattr(run, name) for name in ("steps", "seconds", "history", "resumed")}
    return {**told, "early": None if run.early is None else {**_progress(run.early), "state": run.early.state}}


def _gone_on(told: dict[str, Any], run: Trained) -> Trained:
    """The run as it was when its state was saved."""
    early = told["early"]
    history = [(step, seconds, loss) for step, seconds, loss in told["history"]]
    known = replace(run, steps=told["steps"], seconds=told["seconds"], history=history, resumed=told["resumed"] + 1)
    if early is None:
        return known
    device = next(iter(run.state.values())).device
    state = {key: value.to(device) for key, value in early["state"].items()}
    return replace(known, early=replace(_gone_on(early, run), state=state, resumed=early["resumed"]))


def no_number(step: int) -> str:
    return f"The loss is no longer a number at step {step}; try a lower --lr."


def allow_recompiling() -> None:
    """Let dynamo compile a function more often than by default: blocks differ by their names, and there may be many."""
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # the older name
    setattr(config, name, max(getattr(config, name), RECOMPILE_LIMIT))


def _prepare(network: nn.Module, backward: Callable[[Any], Any], compile: bool) -> tuple[Any, bool]:
    """The callable to train with, compiled if that works, after one pass that is not counted in the budget."""
    if compile:
        try:
            allow_recompiling()
            compiled = torch.compile(network, dynamic=False)  # each shape there is, compiled for itself
            backward(compiled)
            return compiled, True
        except Exception as error:  # a compiler fails in as many ways as there are toolchains
            print(f"Compiling failed, so training goes on without: {first_line(error)}")
    backward(network)
    return network, False


def save_weights(
    out: Path,
    state: dict[str, Tensor],
    pattern: str = "model{suffix}.safetensors",
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """The weights in 16 bits: one file if it is small, else shards and their index."""
    save_shards(out, {key: value.detach().to(dtype) for key, value in state.items()}, pattern, SHARD_BYTES)


def save_shards(out: Path, state: dict[str, Tensor], pattern: str, most: int = SHARD_BYTES) -> None:
    """The tensors as they are: one file if it is small, else shards and their index."""
    for stale in out.glob(pattern.format(suffix="*")):  # an earlier run's would be read as part of this checkpoint
        stale.unlink()
    stored = {key: value.cpu().contiguous() for key, value in state.items()}
    out.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(stored, out, filename_pattern=pattern, max_shard_size=most)
    for written in out.glob(pattern.format(suffix="*")):
        written.chmod(0o644)  # the library makes them private


def save_record(
    out: Path,
    trained: Trained,
    settings: Settings,
    data: str,
    before: dict[str, Any] | None = None,
    extra: dict[str, Any] | None = None,
) -> None:
    """loss.json and loss.png: what the training took, and how it went. Call it when the weights are saved.

    before  the record of the training that this one went on from
    extra   what else belongs into loss.json
    """
    record = {
        "provenance": provenance(seed=settings.seed),
        "data": data,
        "settings": asdict(settings),
        "parameters": sum(value.numel() for value in trained.state.values()),
        "steps": trained.steps,
        "samples_seen": trained.steps * settings.batch,
        "seconds": round(trained.seconds, 1),
        "compiled": trained.compiled,
        "interrupted": trained.interrupted,
        **({"resumed": trained.resumed} if trained.resumed else {}),
        "final_loss": trained.final_loss,
        "loss": trained.history,
        **({} if trained.diverged_at is None else {"diverged_at": trained.diverged_at}),
        **(extra or {}),
        **({} if before is None else {"before": before}),
    }
    write_json(out / "loss.json", record)
    try:
        plot_loss(out / "loss.png", record)
    except ImportError:
        print("There is no loss.png, because matplotlib is not installed.")
    loss = "none" if trained.final_loss is None else f"{trained.final_loss:.5f}"
    print(f"{out}: {trained.steps:,} steps in {trained.seconds:.0f} s, final loss {loss}")
    if trained.diverged_at is not None:
        raise TenutoError(f"{no_number(trained.diverged_at)} {out} has the averaged weights of step {trained.steps}.")


def plot_loss(path: Path, record: dict[str, Any]) -> None:
    """The loss over the steps, those of an earlier training included."""
    from matplotlib.figure import Figure

    runs: list[dict[str, Any]] = []  # the earliest first
    earlier: dict[str, Any] | None = record
    while earlier is not None:
        runs.insert(0, earlier)
        earlier = earlier.get("before")
    history: list[tuple[int, float]] = []
    joints: list[int] = []
    for run in runs:
        begun = joints[-1] if joints else 0
        history += [(begun + step, loss) for step, _, loss in run["loss"]]
        joints.append(begun + run["steps"])

    figure = Figure(figsize=(7, 4), layout="constrained", dpi=150)
    axes = figure.subplots()
    axes.plot([step for step, _ in history], [loss for _, loss in history], linewidth=1, color="#1f5fa8")
    for joint in joints[:-1]:
        axes.axvline(joint, color="0.6", linewidth=0.8)
    axes.set(xlabel="step", ylabel="training loss", yscale="log")
    axes.grid(True, which="both", linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
