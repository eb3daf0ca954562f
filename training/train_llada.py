"""Trains a small LLaDA on books and tasks for a given time, and writes it as a checkpoint the package reads."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

import tenuto
from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.models.llada import LLaDA, LLaDAConfig
from training.llada_text import (
    BOS,
    DEFAULT_PATH,
    EOS,
    LONG,
    MASK,
    SHORT,
    SOURCE,
    VOCABULARY,
    Corpus,
    Problem,
    arithmetic,
    brackets,
    drills,
    load,
    needle,
    rows,
    sentence_starts,
)
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
    save_record,
    save_weights,
    train,
)

SHIPPED = LLaDAConfig(
    d_model=256,
    n_layers=12,
    n_heads=8,
    n_kv_heads=8,
    mlp_hidden_size=704,
    vocab_size=VOCABULARY,
    embedding_size=VOCABULARY,
    max_sequence_length=LONG,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    mask_token_id=MASK,
    eos_token_id=EOS,
)
LEAST = 1e-3  # of t, as in the reference
HEAVIEST = 10.0  # 1/t of a token: without a bound, a few tokens of nearly finished rows drown the rest of a batch
SHORTEST = 16  # tokens of a text row that is cut off
# Problems made before the training.
POOLS = {"needle": 120_000, "drill": 60_000, "arithmetic": 200_000, "brackets": 40_000}
# Three tenths of the tokens go to short rows, five of which cost as much as a long one. What the rows of each length
# are made of, in twentieths.
SHORT_SHARE = 0.3
LONG_PARTS = {"text": 8, "needle": 6, "drill": 4, "arithmetic": 1, "brackets": 1}
SHORT_PARTS = {"text": 4, "arithmetic": 12, "brackets": 4}


class Pool(NamedTuple):
    """Rows on the device."""

    tokens: Tensor  # int16 [count, length]
    start: Tensor  # int16 [count]: where the answer begins
    end: Tensor  # int16 [count]: behind the answer and one end-of-text


class Batch(NamedTuple):
    noisy: Tensor  # [B, N], some tokens masked
    clean: Tensor  # [B, N]
    real: Tensor  # [B, N]: False behind where the row was cut off
    weight: Tensor  # [B, N]: what a token counts; the whole batch's loss is the weighted sum of cross-entropies


def parse_config(given: str | None, shortest: int = LONG) -> LLaDAConfig:
    """A config from a JSON file or from JSON itself; a checkpoint's own config.json will do.

    shortest  the context that the training's rows need
    """
    if given is None:
        return SHIPPED
    try:
        values = json.loads(given) if given.lstrip().startswith("{") else read_json(Path(given), "LLaDA config")
        config = LLaDAConfig(**{key: value for key, value in values.items() if key != "model_type"})
    except (json.JSONDecodeError, TypeError) as error:
        raise UsageError(f"The config is not a LLaDA's: {error}.") from error
    if (config.mask_token_id, config.eos_token_id) != (MASK, EOS):
        raise UsageError(f"The text here needs mask_token_id {MASK} and eos_token_id {EOS}.")
    if config.max_sequence_length < shortest:
        raise UsageError(f"The text here needs a max_sequence_length of at least {shortest}.")
    return config


def counts(parts: dict[str, int], size: int) -> dict[str, int]:
    """How many of `size` rows are of each kind; what does not divide is text."""
    shares = {kind: size * part // sum(parts.values()) for kind, part in parts.items()}
    return {**shares, "text": shares["text"] + size - sum(shares.values())}


def batches(
    corpus: Corpus, size: int, seed: int, device: torch.device, pools: dict[str, int] = POOLS
) -> Iterator[tuple[Batch, Batch]]:
    """Pairs of batches without end, one of long rows and one of short ones, drawn on the device.

    Together they have as many tokens as `size` long rows.
    """
    generator = torch.Generator(device).manual_seed(seed)
    text = torch.from_numpy(corpus.train.astype("int16")).to(device)
    starts = torch.from_numpy(sentence_starts(corpus.train[:-LONG], corpus.tokenizer)).to(device)

    def pool(problems: Iterator[Problem], count: int, length: int) -> Pool:
        return Pool(*(torch.from_numpy(part).to(device) for part in rows(problems, count, length)))

    made = {
        "needle": pool(needle(corpus, seed, held_out=False), pools["needle"], LONG),
        "arithmetic": pool(arithmetic(corpus, seed, held_out=False), pools["arithmetic"], SHORT),
        "brackets": pool(brackets(corpus, seed, held_out=False), pools["brackets"], SHORT),
    }

    def integers(high: int, count: int) -> Tensor:
        return torch.randint(high, (count,), generator=generator, device=device)

    def draw(kind: str, count: int, length: int) -> Pool:
        if kind != "text":
            chosen = integers(len(made[kind].tokens), count)
            tokens, start, end = (part[chosen] for part in made[kind])
            return Pool(F.pad(tokens, (0, length - tokens.shape[1]), value=EOS), start, end)
        places = starts[integers(len(starts), count)][:, None] + torch.arange(length, device=device)
        tokens = text[places - 1]
        tokens[:, 0] = BOS
        return Pool(tokens, tokens.new_zeros(count), tokens.new_full((count,), length))

    drill_tokens, drill_answers = (torch.from_numpy(part).to(device) for part in drills(corpus, seed, pools["drill"]))

    def batch(parts: dict[str, int], size: int, length: int) -> Batch:
        shares = counts(parts, size)
        drilled = shares.pop("drill", 0)
        drawn = [draw(kind, count, length) for kind, count in shares.items()]
        tokens, start, end = (torch.cat(same).long() for same in zip(*drawn, strict=True))
        noisy = masked(tokens, start, end, generator)
        if not drilled:
            return noisy
        chosen = integers(len(drill_tokens), drilled)
        return joined(noisy, unanswered(drill_tokens[chosen].long(), drill_answers[chosen]))

    short = round(SHORT_SHARE * size)
    while True:
        yield batch(LONG_PARTS, size - short, LONG), batch(SHORT_PARTS, short * (LONG // SHORT), SHORT)


def unanswered(tokens: Tensor, answers: Tensor) -> Batch:
    """All answers of a drill masked, as they are when an answer is asked for."""
    weight = answers / answers.sum(1, keepdim=True) / len(tokens)
    return Batch(torch.where(answers, MASK, tokens), tokens, torch.ones_like(answers), weight)


def joined(first: Batch, second: Batch) -> Batch:
    """One batch, each row counting as much as any other."""
    sizes = torch.tensor([len(first.noisy), len(second.noisy)]).double()
    share = (sizes / sizes.sum()).tolist()
    noisy, clean, real = (torch.cat(pair) for pair in zip(first[:3], second[:3], strict=True))
    return Batch(noisy, clean, real, torch.cat([first.weight * share[0], second.weight * share[1]]))


def masked(tokens: Tensor, start: Tensor, end: Tensor, generator: torch.Generator) -> Batch:
    """LLaDA's noise: a share t of each row's tokens masked, each counted 1/t, so that all levels count alike.

    Half of the task rows (those with an answer's start) are masked in the answer and the padding only, as in LLaDA's
    fine-tuning; half of these lose all of the answer, as when it is asked for. A row's loss is divided by its tokens
    that might be masked, padding not counted: divided by the padding too, an answer of three tokens would hardly be
    heard beside a page of text.

    Half of the rows are cut off at a random place (tasks behind their answer). A network that has seen one length
    only takes the distance to the end for a clue, and is lost where there are fewer tokens to write.
    """
    (size, length), device = tokens.shape, tokens.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    # One t in each of `size` equal intervals: the batch sees every noise level, whatever its size.
    order = torch.randperm(size, generator=generator, device=device)
    t = LEAST + (1 - LEAST) * ((order + uniform(1)) / size)
    task = start > 0
    least = torch.where(task, end, SHORTEST)
    kept = torch.where(uniform(size) < 0.5, length, least + (uniform(size) * (length - least + 1)).long())
    end = torch.minimum(end, kept)
    answer_only = task & (uniform(size) < 0.5)
    first = torch.where(answer_only, start, 1)  # the start-of-text is never masked
    t = torch.where(answer_only & (uniform(size) < 0.5), 1.0, t)
    place = torch.arange(length, device=device)
    real = place < kept[:, None]
    hidden = (uniform(size, length) < t[:, None]) & (place >= first[:, None]) & real
    weight = hidden * ((1 / t).clamp(max=HEAVIEST) / (end - first))[:, None] / size
    return Batch(torch.where(hidden, MASK, tokens), tokens, real, weight)


def bound(logits: Tensor, batch: Batch) -> Tensor:
    """LLaDA's bound on the negative log-likelihood, in nats a token."""
    losses = F.cross_entropy(logits.flatten(0, 1).float(), batch.clean.flatten(), reduction="none")
    return (losses * batch.weight.flatten()).sum()


def train_llada(
    corpus: Corpus,
    config: LLaDAConfig,
    settings: Settings,
    device: torch.device,
    pools: dict[str, int] = POOLS,
    start: Path | None = None,
) -> Trained:
    if config.vocab_size != corpus.tokenizer.get_vocab_size():
        raise UsageError(f"The text has {corpus.tokenizer.get_vocab_size()} tokens, the model {config.vocab_size}.")
    torch.manual_seed(settings.seed)
    network = LLaDA(config)
    network.initialize_weights()
    if start is not None:
        network.load_state_dict(tenuto.load(start).network.state_dict())
    network = network.to(device)
    stream = batches(corpus, settings.batch, settings.seed, device, pools)

    def loss_of(forward: Any) -> Tensor:
        long, short = next(stream)
        return (
            bound(forward(long.noisy, attention_mask=long.real), long)
            + bound(forward(short.noisy, attention_mask=short.real), short)
        ) / 2

    return train(network, loss_of, settings)


def write_config(out: Path, config: LLaDAConfig) -> None:
    write_json(out / "config.json", {"model_type": "llada", **asdict(config)})


def save(
    out: Path, trained: Trained, config: LLaDAConfig, settings: Settings, corpus: Corpus, start: Path | None = None
) -> None:
    before = None if start is None else read_json(start / "loss.json", "training record")
    write_config(out, config)
    write_text(out / "tokenizer.json", corpus.tokenizer.to_str(pretty=True))
    save_weights(out, trained.state)
    text = f"{len(corpus.train):,} tokens of books from github.com/{SOURCE}"
    save_record(out, trained, settings, f"{text}, and made-up tasks", before)


def main(
    out: Out,
    seconds: Seconds,
    data: Annotated[Path, typer.Option(help="The file made by training.llada_text.")] = DEFAULT_PATH,
    config: Config = None,
    start: Annotated[Path | None, typer.Option(help="A trained checkpoint to go on from.")] = None,
    batch: Annotated[int, typer.Option(min=4, help=f"Rows of {LONG} tokens, or their worth in shorter ones.")] = 256,
    lr: Rate = 1e-3,
    ema: Ema = 0.9995,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    max_steps: MaxSteps = None,
) -> None:
    """Train a LLaDA on books and tasks. Ctrl-C ends the training early and saves what it has."""
    llada, corpus, settings = (
        parse_config(config),
        load(data),
        Settings(seconds, batch, lr, ema, seed, compile, max_steps),
    )
    trained = train_llada(corpus, llada, settings, torch.device(device), start=start)
    save(out, trained, llada, settings, corpus, start)


if __name__ == "__main__":
    run(main)
