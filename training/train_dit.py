"""Trains a small DiT on Fashion-MNIST for a given time, and writes it as a checkpoint the package reads.

The learning rate follows the clock, so that a run of any length ends annealed.
"""

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from fashion_mnist import DEFAULT_PATH, LABELS, PACKAGE, SIZE, FashionMnist, load, run
from safetensors.torch import save_file
from torch import Tensor

from tenuto.errors import TenutoError, UsageError
from tenuto.files import read_json, replacing, write_json
from tenuto.models.dit import DiT, DiTConfig
from tenuto.provenance import provenance

SHIPPED = DiTConfig(
    input_size=SIZE,
    patch_size=4,  # 64 tokens: two CPU cores draw a picture in seconds
    in_channels=1,
    hidden_size=256,
    depth=12,
    num_heads=4,
    mlp_ratio=4.0,
    class_dropout_prob=0.1,
    num_classes=len(LABELS),
    learn_sigma=False,
)
TIMESTEPS = 1000
BETAS = (1e-4, 0.02)  # DDPM's, rising linearly
SHOES = [LABELS.index(name) for name in ("Sandal", "Sneaker", "Ankle boot")]
WARM_UP = 0.02  # of the budget
FLOOR = 1e-2  # of the peak learning rate, where the cosine ends
READ_EVERY = 100  # steps: reading the loss waits for the device
PRINT_EVERY = 5.0  # seconds
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


@dataclass
class Trained:
    """The averaged weights, and what it took to get them."""

    state: dict[str, Tensor]
    steps: int = 0
    seconds: float = 0.0
    compiled: bool = False
    interrupted: bool = False
    history: list[tuple[int, float, float]] = field(default_factory=list)  # (step, seconds, mean loss since the last)

    @property
    def final_loss(self) -> float | None:
        """The mean over the last tenth of the run: one reading alone is noise."""
        last = [loss for step, _, loss in self.history if step > 0.9 * self.steps]
        return sum(last) / len(last) if last else None


def alphas_cumprod() -> Tensor:
    return torch.cumprod(1 - torch.linspace(*BETAS, TIMESTEPS, dtype=torch.float32), dim=0)


def parse_config(given: str | None) -> DiTConfig:
    """A config from a JSON file or from JSON itself; a checkpoint's own config.json will do."""
    if given is None:
        return SHIPPED
    try:
        values = json.loads(given) if given.lstrip().startswith("{") else read_json(Path(given), "DiT config")
        config = DiTConfig(**{key: value for key, value in values.items() if key not in ("model_type", "labels")})
    except (json.JSONDecodeError, TypeError) as error:
        raise UsageError(f"The config is not a DiT's: {error}.") from error
    if (config.input_size, config.in_channels, config.num_classes) != (SIZE, 1, len(LABELS)):
        raise UsageError(f"Fashion-MNIST needs input_size {SIZE}, in_channels 1 and num_classes {len(LABELS)}.")
    if config.learn_sigma:
        raise UsageError("The objective here has no term for a learned variance: set learn_sigma to false.")
    return config


def rate_at(done: float) -> float:
    """The learning rate, as a share of its peak, when this share of the budget is spent."""
    if done < WARM_UP:
        return done / WARM_UP
    progress = min((done - WARM_UP) / (1 - WARM_UP), 1.0)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2


def batches(
    data: FashionMnist, config: DiTConfig, size: int, seed: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(noised images, timesteps, labels, noise) without end, drawn on the device."""
    generator = torch.Generator(device).manual_seed(seed)
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    alphas = alphas_cumprod().to(device)
    # All shoes in the data point left, and a model of the data should know it.
    mirrorable = torch.ones(len(LABELS), dtype=torch.bool)
    mirrorable[SHOES] = False
    mirrorable = mirrorable.to(device)

    def chance(probability: float) -> Tensor:
        return torch.rand(size, generator=generator, device=device) < probability

    while True:
        chosen = torch.randint(len(images), (size,), generator=generator, device=device)
        x, y = images[chosen], labels[chosen]
        x = torch.where((chance(0.5) & mirrorable[y])[:, None, None, None], x.flip(-1), x)
        if config.class_dropout_prob > 0:
            y = y.masked_fill(chance(config.class_dropout_prob), config.null_class)
        t = torch.randint(TIMESTEPS, (size,), generator=generator, device=device)
        noise = torch.randn(x.shape, generator=generator, device=device)
        alpha = alphas[t][:, None, None, None]
        yield alpha.sqrt() * x + (1 - alpha).sqrt() * noise, t, y, noise


def prepare(network: DiT, backward: Callable[[Any], Any], compile: bool) -> tuple[Any, bool]:
    """The callable to train with, compiled if that works, after one pass that is not counted in the budget."""
    if compile:
        try:
            compiled = torch.compile(network)
            backward(compiled)
            return compiled, True
        except Exception as error:  # a compiler fails in as many ways as there are toolchains
            print(f"Compiling failed, so training goes on without: {str(error).strip().splitlines()[0]}")
    backward(network)
    return network, False


def train(data: FashionMnist, config: DiTConfig, settings: Settings, device: torch.device) -> Trained:
    torch.manual_seed(settings.seed)
    network = DiT(config)
    network.initialize_weights()
    network = network.to(device).train()
    learned = {name: value for name, value in network.named_parameters() if value.requires_grad}
    parameters = list(learned.values())
    average = [parameter.detach().clone() for parameter in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=settings.lr, betas=(0.9, 0.99), weight_decay=0.02, fused=True)
    stream = batches(data, config, settings.batch, settings.seed, device)

    def backward(forward: Any) -> Tensor:
        x, t, y, noise = next(stream)
        with torch.autocast(device.type, torch.bfloat16):
            predicted = forward(x, t, y)
        loss = F.mse_loss(predicted.float(), noise)
        loss.backward()
        return loss.detach()

    start = time.perf_counter()
    forward, compiled = prepare(network, backward, settings.compile)
    optimizer.zero_grad()
    print(f"ready after {time.perf_counter() - start:.0f} s{', compiled' if compiled else ''}", flush=True)

    result = Trained(network.state_dict(), compiled=compiled)
    total, counted, printed = torch.zeros((), device=device), 0, 0.0
    start = time.perf_counter()

    def read() -> None:
        nonlocal counted, printed
        loss = total.item() / counted
        total.zero_()
        counted, result.seconds = 0, time.perf_counter() - start
        if not math.isfinite(loss):
            raise TenutoError(f"The loss is no longer a number at step {result.steps}; try a lower --lr.")
        result.history.append((result.steps, round(result.seconds, 2), round(loss, 6)))
        if result.seconds - printed >= PRINT_EVERY:
            printed = result.seconds
            pace = result.steps / result.seconds
            print(f"step {result.steps:,}  {printed:.0f} s  loss {loss:.5f}  {pace:.1f} steps/s", flush=True)

    try:
        while True:
            done = (time.perf_counter() - start) / settings.seconds
            if settings.max_steps is not None:
                done = max(done, result.steps / settings.max_steps)
            if done >= 1:
                break
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
    except KeyboardInterrupt:
        result.interrupted = True
        print(f"interrupted at step {result.steps:,}; saving what there is", flush=True)
    if counted:
        read()
    result.state = {**network.state_dict(), **dict(zip(learned, average, strict=True))}
    return result


def save_checkpoint(out: Path, state: dict[str, Tensor], config: DiTConfig) -> None:
    """config.json and bfloat16 weights: one file if it is small, else shards and their index."""
    write_json(out / "config.json", {"model_type": "dit", **asdict(config), "labels": LABELS})
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for key, value in state.items():
        stored = value.detach().to("cpu", torch.bfloat16).contiguous()
        if shards[-1] and filled + stored.nbytes > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][key] = stored
        filled += stored.nbytes
    names = (
        ["model.safetensors"]
        if len(shards) == 1
        else [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    )
    for name, shard in zip(names, shards, strict=True):
        with replacing(out / name) as temporary:
            save_file(shard, temporary, {"format": "pt"})
    index = out / "model.safetensors.index.json"
    if len(shards) == 1:
        index.unlink(missing_ok=True)
    else:
        size = sum(value.nbytes for shard in shards for value in shard.values())
        places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        write_json(index, {"metadata": {"total_size": size}, "weight_map": places})
    # What an earlier run left here would be read as part of this checkpoint.
    for stale in out.glob("model*.safetensors"):
        if stale.name not in names:
            stale.unlink()


def plot_loss(path: Path, history: list[tuple[int, float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([step for step, _, _ in history], [loss for _, _, loss in history], linewidth=1, color="#1f5fa8")
    axes.set(xlabel="step", ylabel="noise prediction error (MSE)", yscale="log")
    axes.grid(True, which="both", linewidth=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
    pyplot.close(figure)


def save(out: Path, trained: Trained, config: DiTConfig, settings: Settings) -> None:
    save_checkpoint(out, trained.state, config)
    record = {
        "provenance": provenance(seed=settings.seed),
        "data": f"npm {PACKAGE}",
        "settings": asdict(settings),
        "parameters": sum(value.numel() for value in trained.state.values()),
        "steps": trained.steps,
        "images_seen": trained.steps * settings.batch,
        "seconds": round(trained.seconds, 1),
        "compiled": trained.compiled,
        "interrupted": trained.interrupted,
        "final_loss": trained.final_loss,
        "loss": trained.history,
    }
    write_json(out / "loss.json", record)
    try:
        plot_loss(out / "loss.png", trained.history)
    except ImportError as error:  # the weights matter more than their picture
        print(f"loss.png is not drawn: {error}.")


def main(
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    seconds: Annotated[float, typer.Option(min=0.001, help="How long to train; compiling is not counted.")],
    data: Annotated[Path, typer.Option(help="The file made by fashion_mnist.py.")] = DEFAULT_PATH,
    config: Annotated[str | None, typer.Option(help="JSON, or a JSON file; the shipped model's if not given.")] = None,
    batch: Annotated[int, typer.Option(min=1)] = 512,
    lr: Annotated[float, typer.Option(help="The peak learning rate.")] = 1e-3,
    ema: Annotated[float, typer.Option(min=0, max=1, help="The decay of the weights' average.")] = 0.9995,
    device: Annotated[str, typer.Option()] = "cuda" if torch.cuda.is_available() else "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    compile: Annotated[bool, typer.Option()] = True,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Stop after so many steps, if sooner.")] = None,
) -> None:
    """Train a DiT on Fashion-MNIST. Ctrl-C ends the training early and saves what it has."""
    # A job that runs out of time is told so by SIGTERM: what it has is worth as much then as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_float32_matmul_precision("high")
    dit, place = parse_config(config), torch.device(device)
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps)
    trained = train(load(data), dit, settings, place)
    save(out, trained, dit, settings)
    loss = "none" if trained.final_loss is None else f"{trained.final_loss:.5f}"
    print(f"{out}: {trained.steps:,} steps in {trained.seconds:.0f} s, final loss {loss}")


if __name__ == "__main__":
    run(main)
