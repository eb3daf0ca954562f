"""Trains a LLaDA of 31 million parameters on made-up reasoning and some books and code, for a given time.

A batch has three parts of as many tokens each, one of short rows, one of long rows and one in between. All layers but
attention see a part as one long list of tokens, so each is compiled once for rows of every length. There is no
attention mask: rows are filled with end-of-text, as LLaDA's are.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from numpy.typing import NDArray
from torch import Tensor

import tenuto
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
    MaxSteps,
    Out,
    Rate,
    Seconds,
    Seed,
    Settings,
    Trained,
    default_device,
    run,
    save_record,
    save_weights,
    train,
)
from training.muon import MuonAndAdam
from training.reasoning_tasks import TASKS, problems
from training.reasoning_text import CONTEXT, DEFAULT_PATH, SOURCES, VOCABULARY, Library, load, needles, starts_of
from training.recorded import Recorded
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
# The lengths of a batch's three parts, of which each batch takes one. A network that has seen one length only takes the
# distance to the end for a clue. PART tokens hold a whole number of rows of every length.
LENGTHS = ((48, 64), (96, 128), (192, 256, 512, 1024))
PART = 15_360
SMALLEST_PART = 3072
TEXT_SHARES = (0.02, 0.04, 0.15)  # of the rows of each part
SOURCE_SHARES = {"books": 0.7, "code": 0.2, "stories": 0.1}  # of the text rows
PROBLEMS = 100_000  # made up for each task before the training
NEEDLES = 0.25  # of that: they are long
CHUNK = 2_000  # problems that one process makes at once
BLOCK = 16
LEAST, HEAVIEST = 1e-3, 10.0  # of t, and of 1/t; see training.train_llada
ANSWER_ONLY, IN_BLOCK, NOTHING_YET = 0.9, 0.45, 0.3  # see masked()
LOUDEST = 64  # tokens, beyond which a row counts no more than with so many
PADDING = 0.1  # what a token of padding counts, beside one of the answer


class Rows(NamedTuple):
    """Problems as one list of tokens, and where each begins, where its answer begins, and how long it is."""

    tokens: NDArray[np.int16]
    offset: NDArray[np.int64]  # [count]
    start: NDArray[np.int64]  # [count]
    length: NDArray[np.int64]  # [count], with one end-of-text; in rising order


class Batch(NamedTuple):
    noisy: Tensor  # [B, N], some tokens masked
    clean: Tensor  # [B, N]
    weight: Tensor  # [B, N]: the loss is the weighted sum of cross-entropies


# Problems, made by many processes


_library: Library  # of a process that makes problems


def encoded(library: Library, task: str, count: int, seed: object) -> list[tuple[list[int], list[int]]]:
    """Problems to train on as tokens: prompts and answers."""
    if task == "needles":
        return [(one.prompt, one.answer) for one in islice(needles(library, seed, held_out=False), count)]
    posed = list(islice(problems(task, seed, held_out=False), count))

    def tokens(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in library.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    prompts, answers = tokens([one.prompt for one in posed]), tokens([one.answer for one in posed])
    return [([BOS, *prompt], answer) for prompt, answer in zip(prompts, answers, strict=True)]


def _made(task: str, count: int, seed: str) -> tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.int64]]:
    """Tokens, and for each problem where its answer starts and how long it is."""
    made = encoded(_library, task, count, seed)
    tokens = np.array([token for prompt, answer in made for token in (*prompt, *answer, EOS)], dtype=np.int16)
    starts = np.array([len(prompt) for prompt, _ in made])
    return tokens, starts, np.array([len(prompt) + len(answer) + 1 for prompt, answer in made])


class Posing:
    """Processes that make problems while the network is compiled."""

    def __init__(self, library: Library, count: int, seed: int) -> None:
        global _library
        _library = library
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process has a core of its own
        sizes = {**dict.fromkeys(TASKS, count), "needles": max(int(count * NEEDLES), 1)}
        jobs = [(task, at, min(CHUNK, size - at)) for task, size in sizes.items() for at in range(0, size, CHUNK)]
        jobs.sort(key=lambda job: job[1])  # if one core is slow, it is not left with all the needles
        cores = len(os.sched_getaffinity(0))
        self._processes = ProcessPoolExecutor(max(cores - 2, 1), mp_context=get_context("fork"))  # the compiler's: 2
        self._pending: list[Future[Any]] = [
            self._processes.submit(_made, task, size, f"{seed} {at}") for task, at, size in jobs
        ]

    def collect(self) -> Rows:
        """All problems that fit into the context, the shortest first."""
        made = [pending.result() for pending in self._pending]
        self._processes.shutdown()
        tokens, start, length = (np.concatenate(parts) for parts in zip(*made, strict=True))
        offset = np.concatenate([[0], np.cumsum(length)[:-1]])
        order = np.argsort(length, kind="stable")
        order = order[length[order] <= CONTEXT]
        return Rows(tokens, offset[order], start[order], length[order])


# Batches


def batches(library: Library, made: Rows, part: int, seed: int, device: torch.device) -> Iterator[list[Batch]]:
    """Batches without end, each of one part for every entry of LENGTHS, drawn on the device."""
    generator = torch.Generator(device).manual_seed(seed)
    streams = {name: library.train[name] for name in SOURCES}
    begins, starts = 0, {}
    for name, tokens in streams.items():
        places = starts_of(library, name, tokens)
        places = places[places + CONTEXT < len(tokens)]
        if not len(places):
            raise UsageError(f"The {name} are shorter than one row of {CONTEXT} tokens.")
        starts[name] = torch.from_numpy(places - 1 + begins).to(device)  # the start-of-text stands before them
        begins += len(tokens)
    everything = [*(tokens.astype(np.int16) for tokens in streams.values()), made.tokens]
    flat = torch.from_numpy(np.concatenate([*everything, np.full(CONTEXT, EOS, dtype=np.int16)])).to(device)
    offset, start, length = (torch.from_numpy(each).to(device) for each in (made.offset + begins, *made[2:]))

    def integers(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator, device=device)

    def drawn(row_length: int, text_share: float) -> Batch:
        count = part // row_length
        # Problems that fill at least half of a row, but for the shortest rows: less would be mostly padding.
        shortest = 0 if row_length in LENGTHS[0] else row_length // 2
        low, high = np.searchsorted(made.length, (shortest, row_length), side="right").tolist()
        texts = {name: int(count * text_share * share) for name, share in SOURCE_SHARES.items()}
        if low == high:
            raise UsageError(f"No problem is {shortest} to {row_length} tokens long; make more of them.")
        chosen = integers(low, high, count - sum(texts.values()))
        begin = torch.cat(
            [offset[chosen], *(starts[name][integers(0, len(starts[name]), size)] for name, size in texts.items())]
        )
        text = len(begin) - len(chosen)
        answer = F.pad(start[chosen], (0, text))
        end = F.pad(length[chosen], (0, text), value=row_length)
        place = torch.arange(row_length, device=device)
        tokens = flat[begin[:, None] + place].long()
        tokens = torch.where(place < end[:, None], tokens, EOS)
        tokens[:, 0] = BOS
        return masked(tokens, answer, end, generator)

    step = 0
    while True:
        chosen = [lengths[step % len(lengths)] for lengths in LENGTHS]
        yield [drawn(row_length, share) for row_length, share in zip(chosen, TEXT_SHARES, strict=True)]
        step += 1


def masked(tokens: Tensor, start: Tensor, end: Tensor, generator: torch.Generator) -> Batch:
    """LLaDA's noise: a share t of a row's tokens masked, each counted 1/t, so that all levels count alike.

    Rows of text (start 0) are masked all over. Of the problems, ANSWER_ONLY keep their prompt, as in LLaDA's
    fine-tuning. Among these, IN_BLOCK look as they do when text is written block after block: what is before a block is
    there, what is behind is masked, and only the block counts. Of the rest, NOTHING_YET lose all of their answer.

    A row counts as the square root of the tokens that might be masked, up to LOUDEST: a long answer has more to learn
    from than a short one, but beside a whole page of text the codes of a needle must still be heard.
    """
    (size, length), device = tokens.shape, tokens.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    # One t in each of `size` equal intervals: the batch sees every noise level, whatever its size.
    order = torch.randperm(size, generator=generator, device=device)
    t = LEAST + (1 - LEAST) * ((order + uniform(1)) / size)
    task, kind = start > 0, uniform(size)
    in_block = task & (kind < IN_BLOCK)
    first = torch.where(task & (kind < ANSWER_ONLY), start, 1)  # the start-of-text is never masked
    t = torch.where(~in_block & (first > 1) & (uniform(size) < NOTHING_YET), 1.0, t)
    blocks = (end - start + BLOCK - 1) // BLOCK
    low = torch.where(in_block, start + BLOCK * (uniform(size) * blocks).long(), first)
    high = torch.where(in_block, low + BLOCK, length)
    place = torch.arange(length, device=device)
    hidden = (uniform(size, length) < t[:, None]) & (place >= low[:, None]) & (place < high[:, None])
    behind = place >= high[:, None]
    counted = (torch.minimum(end, high) - low).float()
    rows = counted.clamp(max=LOUDEST).sqrt()
    rows = rows / rows.sum()
    weight = hidden * torch.where(place < end[:, None], 1.0, PADDING)
    weight = weight * (rows / counted * (1 / t).clamp(max=HEAVIEST))[:, None]
    return Batch(torch.where(hidden | behind, MASK, tokens), tokens, weight)


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
        config, (size, length) = self.config, batch.noisy.shape
        places = torch.arange(length, device=batch.noisy.device).repeat(size)[None]
        angles = rotary_angles(places, config.head_dim, config.rope_theta)  # [1, 1, T, head width / 2]
        cosines, sines = (each[0].transpose(0, 1).contiguous() for each in angles)  # [T, 1, head width / 2]
        x = embedding(batch.noisy.flatten())
        eps, shared = config.rms_norm_eps, config.n_kv_heads != config.n_heads
        for block in blocks:
            layers = (block.q_proj.weight, block.k_proj.weight, block.v_proj.weight)
            asked = self.project(x, block.attn_norm.weight, *layers, cosines, sines, eps)
            q, k, v = (each.unflatten(0, (size, length)).transpose(1, 2) for each in asked)
            found = F.scaled_dot_product_attention(q, k, v, enable_gqa=shared).transpose(1, 2)
            fed = (block.ff_proj.weight, block.up_proj.weight, block.ff_out.weight)
            x = self.finish(x, found.reshape(len(x), -1), block.attn_out.weight, block.ff_norm.weight, *fed, eps)
        clean, weight = batch.clean.flatten(), batch.weight.flatten()
        loss: Tensor = self.cross_entropy(x, norm.weight, head.weight, clean, weight, eps)
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
) -> Trained:
    """settings.batch counts tokens, of all parts together."""
    if config.vocab_size != library.tokenizer.get_vocab_size():
        raise UsageError(f"The text has {library.tokenizer.get_vocab_size()} tokens, the model {config.vocab_size}.")
    part = settings.batch // len(LENGTHS)
    if part % SMALLEST_PART:
        raise UsageError(f"A batch has a multiple of {SMALLEST_PART * len(LENGTHS)} tokens, not {settings.batch}.")
    began = perf_counter()
    posing = Posing(library, count, settings.seed)  # before CUDA is touched: its processes are forks of this one
    torch.manual_seed(settings.seed)
    network = LLaDA(config)
    network.initialize_weights()
    if start is not None:
        network.load_state_dict(tenuto.load(start).network.state_dict())
    network = network.to(device)
    torch.set_float32_matmul_precision("high")
    layers = prepared(network, part, settings.compile)
    print(f"{'compiled' if layers.compiled else 'not compiled'}, {perf_counter() - began:.0f} s", flush=True)
    made = posing.collect()
    print(
        f"{len(made.length):,} problems of {len(made.tokens):,} tokens made after {perf_counter() - began:.0f} s",
        flush=True,
    )
    stream = batches(library, made, part, settings.seed, device)

    inner = {name for name, parameter in network.named_parameters() if ".blocks." in name and parameter.dim() == 2}
    optimizer = MuonAndAdam(network, inner, settings.lr, settings.betas, settings.weight_decay)
    network.train()
    gradients = Recorded(
        network,
        lambda parts: torch.stack([layers.loss(part) for part in parts]).mean(),
        on=device.type == "cuda" and settings.compile,
    )

    def loss_of(forward: Any) -> Tensor:
        return gradients(next(stream)).requires_grad_()  # the gradients are there already

    trained = train(network, loss_of, replace(settings, compile=False), optimizer)  # the layers are compiled already
    trained.compiled = layers.compiled
    cycle = [np.mean([flops(config, [length], part) for length in lengths]) for lengths in LENGTHS]
    pace = trained.steps / max(trained.seconds, 1e-9)
    print(f"{pace * settings.batch:,.0f} tokens/s, {pace * sum(cycle) / 1e12:.0f} TFLOP/s", flush=True)
    return trained


def save(
    out: Path, trained: Trained, config: LLaDAConfig, settings: Settings, library: Library, start: Path | None = None
) -> None:
    before = None if start is None else read_json(start / "loss.json", "training record")
    write_config(out, config)
    write_text(out / "tokenizer.json", library.tokenizer.to_str(pretty=True))
    save_weights(out, trained.state)
    sizes = ", ".join(f"{len(tokens):,} tokens of {name}" for name, tokens in library.train.items())
    save_record(out, trained, settings, f"{sizes}, and made-up problems", before)


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[Path, typer.Option(help="The file made by training.reasoning_text.")] = DEFAULT_PATH,
    config: Config = None,
    start: Annotated[Path | None, typer.Option(help="A trained checkpoint to go on from.")] = None,
    batch: Annotated[int, typer.Option(min=4, help="Tokens a step.")] = PART * len(LENGTHS),
    problems: Annotated[int, typer.Option(min=1, help="Made up for each task before the training.")] = PROBLEMS,
    lr: Rate = 2e-3,
    ema: Ema = 0.998,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
) -> None:
    """Train a LLaDA on books, code and problems. Ctrl-C ends the training early and saves what it has."""
    llada = SHIPPED if config is None else parse_config(config, CONTEXT)
    library, settings = load(data), Settings(seconds, batch, lr, ema, seed, compile, max_steps)
    trained = train_small(library, llada, settings, torch.device(device), problems, start)
    save(out, trained, llada, settings, library, start)


if __name__ == "__main__":
    run(main)
