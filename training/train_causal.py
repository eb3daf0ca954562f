"""Trains the small causal language model that judges written text, and writes it with its model card.

It reads the books in the tokens of the model whose texts it will judge, from sentence to sentence, and nothing else.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from scripts.command_line import run
from tenuto.errors import UsageError
from tenuto.files import read_json, write_json, write_text
from tenuto.provenance import provenance
from tenuto_lab.judging.judges import TIED, build_causal, load_text_judge
from training.card import table, training_section
from training.evaluate_llada import PROMPT_LENGTH, chunks
from training.llada_text import BOS, DEFAULT_PATH, EOS, LONG, SOURCE, VOCABULARY, Corpus, load, recoded, sentence_starts
from training.loop import (
    Batch,
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

SHIPPED: dict[str, Any] = {  # of transformers' LlamaConfig
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "intermediate_size": 704,
    "max_position_embeddings": LONG,
    "tie_word_embeddings": True,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
HELD_OUT_ROWS = 512


def parse_config(given: str | None) -> dict[str, Any]:
    """The shipped config, with the changes in a JSON file or in JSON itself."""
    if given is None:
        return SHIPPED
    try:
        inline = given.lstrip().startswith("{")
        return SHIPPED | (json.loads(given) if inline else read_json(Path(given), "Llama config"))
    except json.JSONDecodeError as error:
        raise UsageError(f"The config is no JSON: {error}.") from error


def batches(corpus: Corpus, size: int, seed: int, device: torch.device) -> Iterator[Tensor]:
    """Rows of books without end, each from the start of a sentence on and behind a start-of-text: [size, LONG]."""
    generator = torch.Generator(device).manual_seed(seed)
    text = torch.from_numpy(corpus.train.astype("int16")).to(device)
    starts = torch.from_numpy(sentence_starts(corpus.train[:-LONG], corpus.tokenizer)).to(device)
    if not len(starts):
        raise UsageError(f"The text has no row of {LONG} tokens.")
    places = torch.arange(LONG, device=device) - 1
    while True:
        chosen = torch.randint(len(starts), (size,), generator=generator, device=device)
        rows = text[starts[chosen][:, None] + places].long()
        rows[:, 0] = BOS
        yield rows


def train_causal(corpus: Corpus, config: dict[str, Any], settings: Settings, device: torch.device) -> Trained:
    if config["vocab_size"] != corpus.tokenizer.get_vocab_size():
        raise UsageError(f"The text has {corpus.tokenizer.get_vocab_size()} tokens, the model {config['vocab_size']}.")
    torch.manual_seed(settings.seed)
    network = build_causal(config).to(device)
    stream = batches(corpus, settings.batch, settings.seed, device)

    def loss_of(forward: Any) -> Tensor:
        rows = next(stream)
        logits = forward(input_ids=rows, use_cache=False).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    trained = train(network, loss_of, settings)
    trained.state.pop(TIED, None)  # the embedding by another name, and not averaged
    return trained


def evaluate(out: Path, corpus: Corpus, device: torch.device, seed: int) -> dict[str, Any]:
    """The loss on held-out text, of the weights as they are stored."""
    judge, rows = load_text_judge(out, device), chunks(corpus, HELD_OUT_ROWS, LONG)
    record = {
        "held_out_loss": judge.nll(rows, 1).mean().item(),
        "held_out_loss_behind_prompt": judge.nll(rows, PROMPT_LENGTH).mean().item(),
        "prompt_length": PROMPT_LENGTH,
        "rows": len(rows),
        "precision": "float32",
        "provenance": provenance(device, seed=seed),
    }
    write_json(out / "evaluation.json", record)
    return record


def model_card(out: Path) -> str:
    """The card, from what the JSON files beside the weights say."""
    config, training, evaluation = (read_json(out / f"{name}.json", name) for name in ("config", "loss", "evaluation"))
    rows = {
        "Held-out text": f"**{evaluation['held_out_loss']:.3f}** nats a token, on {evaluation['rows']:,} rows",
        f"Behind the first {evaluation['prompt_length']} tokens": f"{evaluation['held_out_loss_behind_prompt']:.3f}",
    }
    return f"""# Causal language model of books

A small Llama ({training["parameters"] / 1e6:.1f} million parameters) that reads English prose from left to right. It
judges what the small LLaDA writes: by how unlikely a text is to it. Its tokens are those of that LLaDA's
`tokenizer.json`; weights are the training's moving average, stored in bfloat16. It is a measuring instrument, not a
product. `transformers` reads it as a `LlamaForCausalLM`.

| config.json | |
|---|---|
{table(config)}

{training_section(training, out, of="rows")}
## Evaluation

Of the weights as they are stored, in {evaluation["precision"]}, on rows of {LONG} tokens:

| | |
|---|---|
{table(rows)}

## Limits

It has read old books only. It never saw a text end, so one that ends early is unlikely to it. A low figure does not
make a text good: one that repeats itself is likely, too.

## Licence

The weights: Apache-2.0. The books are in the public domain.
"""


def main(
    out: Out,
    seconds: Seconds,
    checkpoint: Annotated[Path, typer.Option(help="The LLaDA whose texts it will judge, with its tokenizer.json.")],
    data: Annotated[Path, typer.Option(help="The file made by training.llada_text.")] = DEFAULT_PATH,
    config: Config = None,
    batch: Batch = 256,
    lr: Rate = 1e-3,
    ema: Ema = 0.999,
    device: Device = default_device(),
    seed: Seed = 0,
    compile: Compile = True,
    steps: MaxSteps = None,
) -> None:
    """Train the causal language model that judges text. Ctrl-C ends the training early and saves what it has."""
    llama, settings = parse_config(config), Settings(seconds, batch, lr, ema, seed, compile, steps)
    corpus = recoded(load(data), checkpoint / "tokenizer.json")
    trained = train_causal(corpus, llama, settings, torch.device(device))
    write_json(out / "config.json", llama)
    save_weights(out, trained.state)
    save_record(out, trained, settings, f"{len(corpus.train):,} tokens of books from github.com/{SOURCE}")
    record = evaluate(out, corpus, torch.device(device), seed)
    write_text(out / "README.md", model_card(out))
    print(f"{out}: held-out text {record['held_out_loss']:.3f} nats a token")


if __name__ == "__main__":
    run(main)
