"""Trains a small LLaDA on made-up reasoning, and on books and code if there are any, for a given time.

A batch has parts of as many tokens each, by default one of short rows, one of long rows and one in between; the options
choose the tasks, their sizes, the rows' lengths, and the blocks of another checkpoint to begin with. All layers but
attention see a part as one long list of tokens, so each is compiled once for rows of every length. There is no
attention mask: rows are filled with end-of-text, as LLaDA's are.

With --keep-every the training's state is saved beside the weights (training.resuming): after a kill or Ctrl-C the same
command goes on. The order of the rows' lengths then begins anew; everything else is as it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

import tenuto
from scripts.command_line import run
from tenuto.errors import UsageError, first_line
from tenuto.files import read_json, write_text
from tenuto.models.language_block import rotary_angles, rotate
from tenuto.models.llada import LLaDA, LLaDAConfig
from training.llada_text import BOS, EOS, MASK
from training.loop import (
    Compile,
    Config,
    Device,
    Ema,
    KeepEvery,
    MaxSteps,
    Out,
    Rate,
    Seconds,
    Seed,
    Settings,
    Trained,
    default_device,
    save_record,
    save_weights,
    train,
)
from training.muon import MuonAndAdam, of_blocks
from training.reasoning_rows import LENGTHS, Batch, Lessons, Posing, batches, parse_lengths, parse_shares, parse_sizes
from training.reasoning_text import CONTEXT, DEFAULT_PATH, VOCABULARY, Library, load
from training.recorded import Recorded
from training.resuming import NAME, Resuming
from training.train_llada import parse_config, write_config

SHIPPED = LLaDAConfig(
    d_model=512,
    n_layers=9,
    n_heads=8,
    n_kv_heads=8,
    mlp_hidden_size=1408,
    vocab_size=VOCABULARY,
    embedding_size=VOCABULARY,
    max_sequence_length=CONTEXT,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    mask_token_id=MASK,
    eos_token_id=EOS,
)
PART = 15_360  # tokens of each part of a batch
PROBLEMS = 100_000  # made up for each task before the training


# The network, as it is trained


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def project(
    x: Tensor, norm: Tensor, q: Tensor, k: Tensor, v: Tensor, cosines: Tensor, sines: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """[T, width] -> queries, keys and values [T, heads, head width], by one matrix product."""
    heads = F.linear(normed(x, norm, eps), torch.cat([q, k, v])).unflatten(-1, (-1, 2 * cosines.shape[-1]))
    count = q.shape[0] // heads.shape[-1], k.shape[0] // heads.shape[-1], v.shape[0] // heads.shape[-1]
    queries, keys, values = heads.split(count, dim=1)
    return rotate(queries, cosines, sines), rotate(keys, cosines, sines), values


def attended(q: Tensor, k: Tensor, v: Tensor, shared: bool) -> Tensor:
    """Attention, [B, heads, N, head width]. On a CPU the backward pass of torch's own kernel is slow for short rows."""
    if q.device.type != "cpu" or shared:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=shared)
    scores: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    return scores.softmax(-1) @ v


def finish(
    x: Tensor, found: Tensor, out: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor, eps: float
) -> Tensor:
    """What attention found is added to the stream, and then what the MLP makes of the stream."""
    x = x + F.linear(found, out)
    both = F.linear(normed(x, norm, eps), torch.cat([gate, up]))
    opened, fed = both.split(gate.shape[0], dim=-1)
    return x + F.linear(F.silu(opened) * fed, down)


def cross_entropy(x: Tensor, norm: Tensor, head: Tensor, clean: Tensor, weight: Tensor, eps: float) -> Tensor:
    logits = F.linear(normed(x, norm, eps), head).float()
    return (F.cross_entropy(logits, clean, reduction="none") * weight).sum()


class Layers:
    """The network's own weights by the functions above: the same result, and every function compiled once."""

    def __init__(self, network: LLaDA, compiled: bool) -> None:
        self.network, self.config, self.compiled = network, network.config, compiled

        def prepared(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, dynamic=False) if compiled else function

        self.project, self.finish = prepared(project), prepared(finish)
        self.cross_entropy = prepared(cross_entropy)

    def loss(self, batch: Batch) -> Tensor:
        """LLaDA's bound on the negative log-likelihood of a batch."""
        embedding, blocks, norm, head = self.network.parts()
        last = list(blocks)[-1]
        config, (size, length) = self.config, batch.noisy.shape
        places = torch.arange(length, device=batch.noisy.device).repeat(size)[None]
        angles = rotary_angles(places, config.head_dim, config.rope_theta)  # [1, 1, T, head width / 2]
        cosines, sines = (each[0].transpose(0, 1).contiguous() for each in angles)  # [T, 1, head width / 2]
        x = embedding(batch.noisy.flatten())
        clean, weight = batch.clean.flatten(), batch.weight.flatten()
        eps, shared = config.rms_norm_eps, config.n_kv_heads != config.n_heads
        for block in blocks:
            layers = (block.q_proj.weight, block.k_proj.weight, block.v_proj.weight)
            asked = self.project(x, block.attn_norm.weight, *layers, cosines, sines, eps)
            q, k, v = (each.unflatten(0, (size, length)).transpose(1, 2) for each in asked)
            found = attended(q, k, v, shared).transpose(1, 2)
            fed = (block.ff_proj.weight, block.up_proj.weight, block.ff_out.weight)
            found, does = found.reshape(len(x), -1), self.finish
            if block is last and x.device.type == "cpu":  # whose time goes by arithmetic: only what counts
                counts = weight.nonzero()[:, 0]
                x, found, clean, weight, does = x[counts], found[counts], clean[counts], weight[counts], finish
            x = does(x, found, block.attn_out.weight, block.ff_norm.weight, *fed, eps)
        count = cross_entropy if x.device.type == "cpu" else self.cross_entropy
        loss: Tensor = count(x, norm.weight, head.weight, clean, weight, eps)
        return loss

    def warm_up(self, part: int) -> None:
        """Compiles, by a pass over one part of a batch."""
        device = self.network.parts()[0].weight.device
        tokens = torch.full((part // 64, 64), BOS, device=device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = self.loss(Batch(tokens, tokens, torch.full(tokens.shape, 1.0 / part, device=device)))
        loss.backward()
        self.network.zero_grad()


def prepared(network: LLaDA, part: int, compiled: bool) -> Layers:
    """The layers, compiled if that works."""
    if compiled:
        try:
            layers = Layers(network, True)
            layers.warm_up(part)
            return layers
        except Exception as error:  # a compiler fails in as many ways as there are toolchains
            network.zero_grad()
            print(f"Compiling failed, so training goes on without: {first_line(error)}", flush=True)
    return Layers(network, False)


def flops(config: LLaDAConfig, lengths: Sequence[int], part: int) -> float:
    """Of a training step on parts of these row lengths: forward once, backward twice; attention is not causal."""
    width, shared = config.d_model, config.n_kv_heads * config.head_dim
    layer = 2 * width * (width + shared) + 3 * width * config.mlp_hidden_size
    dense = config.n_layers * layer + width * config.embedding_size
    return sum(3 * part * (2 * dense + config.n_layers * 4 * width * length) for length in lengths)


def train_small(
    library: Library,
    config: LLaDAConfig,
    settings: Settings,
    device: torch.device,
    count: int = PROBLEMS,
    start: Path | None = None,
    lessons: Lessons | None = None,
    layers: Sequence[int] | None = None,
    keep: Callable[[Trained], None] | None = None,
    resuming: Resuming | None = None,
) -> Trained:
    """settings.batch counts tokens, of all parts together.

    layers  which blocks of `start` the network begins with, one for each of its own; all, if not given
    keep    saves what there is, every `settings.keep_every` seconds
    resuming  where the training's state is saved then, and gone on from
    """
    if config.vocab_size != library.tokenizer.get_vocab_size():
        raise UsageError(f"The text has {library.tokenizer.get_vocab_size()} tokens, the model {config.vocab_size}.")
    lessons = lessons or Lessons()
    parts = len(lessons.lengths)
    part = settings.batch // parts
    if settings.batch % (lessons.smallest_part * parts):
        raise UsageError(f"A batch has a multiple of {lessons.smallest_part * parts} tokens, not {settings.batch}.")
    began = perf_counter()
    posing = Posing(
        library, count, settings.seed, lessons
    )  # before CUDA is touched: its processes are forks of this one
    torch.manual_seed(settings.seed)
    network = LLaDA(config)
    network.initialize_weights()
    if start is not None:
        network.load_state_dict(begun_with(tenuto.load(start).network.state_dict(), layers))
    network = network.to(device)
    torch.set_float32_matmul_precision("high")
    computed = prepared(network, part, settings.compile)
    print(f"{'compiled' if computed.compiled else 'not compiled'}, {perf_counter() - began:.0f} s", flush=True)
    made = posing.collect()
    print(
        f"{len(made.length):,} problems of {len(made.tokens):,} tokens made after {perf_counter() - began:.0f} s",
        flush=True,
    )
    generator = torch.Generator(device).manual_seed(settings.seed)
    stream = batches(library, made, part, generator, device, lessons)
    kept = None if resuming is None else replace(resuming, generators=[generator])

    optimizer = MuonAndAdam(network, of_blocks(network), settings.lr, settings.betas, settings.weight_decay, True)
    network.train()
    gradients = Recorded(
        network,
        lambda parts: torch.stack([computed.loss(part) for part in parts]).mean(),
        on=device.type == "cuda" and settings.compile,
    )

    def loss_of(forward: Any) -> Tensor:
        return gradients(next(stream)).requires_grad_()  # the gradients are there already

    # The layers are compiled already.
    trained = train(network, loss_of, replace(settings, compile=False), optimizer, keep, kept)
    trained.compiled = computed.compiled
    cycle = [np.mean([flops(config, [length], part) for length in lengths]) for lengths in lessons.lengths]
    pace = trained.steps / max(trained.seconds, 1e-9)
    print(f"{pace * settings.batch:,.0f} tokens/s, {pace * sum(cycle) / 1e12:.3g} TFLOP/s", flush=True)
    return trained


def begun_with(state: dict[str, Tensor], layers: Sequence[int] | None) -> dict[str, Tensor]:
    """The weights of a network that has only these blocks of another one, in this order."""
    if layers is None:
        return state
    marks = [f".blocks.{layer}." for layer in layers]
    if absent := [mark for mark in marks if not any(mark in key for key in state)]:
        raise UsageError(f"The checkpoint to start from has no block {absent[0].split('.')[2]}.")
    chosen = {key: value for key, value in state.items() if ".blocks." not in key}
    for i, mark in enumerate(marks):
        chosen |= {key.replace(mark, f".blocks.{i}."): value for key, value in state.items() if mark in key}
    return chosen


def resumed_at(
    out: Path,
    config: LLaDAConfig,
    settings: Settings,
    library: Library,
    count: int,
    before: dict[str, Any] | None,
    lessons: Lessons,
) -> Resuming:
    """The state file of a training, and what the training depends on."""
    own = {name: value for name, value in asdict(settings).items() if name not in ("keep_every", "compile")}
    text = {name: len(tokens) for name, tokens in library.train.items()}
    mark = {"text": text, "problems": count, "start": before and before["provenance"], **taught(lessons)}
    return Resuming(out / NAME, {**own, **asdict(config), **mark})


def taught(lessons: Lessons) -> dict[str, Any]:
    return {"sizes": dict(lessons.sizes), "shares": dict(lessons.shares), "lengths": lessons.lengths}


def save(
    out: Path,
    trained: Trained,
    config: LLaDAConfig,
    settings: Settings,
    library: Library,
    before: dict[str, Any] | None = None,
    lessons: Lessons | None = None,
) -> None:
    """before: the record of the training that this one went on from"""
    write_config(out, config)
    write_text(out / "tokenizer.json", library.tokenizer.to_str(pretty=True))
    save_weights(out, trained.state)
    data = [f"{len(tokens):,} tokens of {name}" for name, tokens in library.train.items()]
    told = ", ".join([*data, "made-up problems"])
    save_record(out, trained, settings, told, before, taught(lessons or Lessons()))


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[
        Path, typer.Option(help="The file made by training.reasoning_text, or a tokenizer.json: then problems alone.")
    ] = DEFAULT_PATH,
    config: Config = None,
    start: Annotated[Path | None, typer.Option(help="A trained checkpoint to go on from.")] = None,
    layers: Annotated[str | None, typer.Option(help="Begin with these blocks of --start: 0,2,4,...")] = None,
    sizes: Annotated[
        list[str] | None, typer.Option("--task", help="Train this task at these sizes: sums=1-4. Again for each.")
    ] = None,
    shares: Annotated[
        list[str] | None, typer.Option("--share", help="Make so many times as many problems of a task: sums=2.")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Of the rows of each part of a batch: 24,32,48/64,96,128.")
    ] = None,
    batch: Annotated[int, typer.Option(min=4, help="Tokens a step.")] = PART * len(LENGTHS),
    problems: Annotated[int, typer.Option(min=1, help="Made up for each task before the training.")] = PROBLEMS,
    lr: Rate = 2e-3,
    ema: Ema = 0.998,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
    keep_every: KeepEvery = None,
) -> None:
    """Train a LLaDA on books, code and problems. Ctrl-C saves what there is; with --keep-every the command goes on."""
    lessons = Lessons()
    if sizes:
        lessons = replace(lessons, sizes=parse_sizes(sizes))
    if shares:
        lessons = replace(lessons, shares=parse_shares(shares))
    if lengths is not None:
        lessons = replace(lessons, lengths=parse_lengths(lengths))
    llada = SHIPPED if config is None else parse_config(config, lessons.longest)
    blocks = None if layers is None else [int(layer) for layer in layers.split(",")]
    library = load(data)
    settings = Settings(seconds, batch, lr, ema, seed, compile, max_steps, keep_every=keep_every)

    # Read now: a training that goes on in its own folder overwrites the record.
    before = None if start is None else read_json(start / "loss.json", "training record")
    resuming: Resuming | None = resumed_at(out, llada, settings, library, problems, before, lessons)
    if start is not None and start.resolve() == out.resolve():
        resuming = None  # what it began with is overwritten

    def keep(trained: Trained) -> None:
        save(out, trained, llada, settings, library, before, lessons)

    where = torch.device(device)
    trained = train_small(library, llada, settings, where, problems, start, lessons, blocks, keep, resuming)
    keep(trained)
    if resuming is not None:
        resuming.finish(trained.interrupted)


if __name__ == "__main__":
    run(main)
