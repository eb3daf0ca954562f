"""Features of texts by a causal language model of transformers, and MAUVE of a run's continuations with them.

As published (Pillutla et al.): a text's feature is the last hidden state at its last token, texts are cut to so many
tokens, and the model is GPT-2 large. Figures of different models, lengths or numbers of texts cannot be compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenuto.errors import CheckpointError, TenutoError, UsageError, first_line
from tenuto.extras import install
from tenuto_lab.full_size.metrics import mauve
from tenuto_lab.full_size.paired_runs import questions_of
from tenuto_lab.full_size.tasks import read_tasks

ROWS = 16  # texts at once
LONGEST = 256  # tokens of a text
FEWEST = 20  # texts; with fewer, there are no clusters to speak of


@torch.inference_mode()
def text_features(texts: Sequence[str], directory: Path, device: str | torch.device = "cpu") -> Tensor:
    """[N, width], on the CPU."""
    try:
        import transformers
    except ImportError as error:
        raise TenutoError(f"Features of texts need transformers, which is not installed: {install('eval')}") from error
    if not directory.is_dir():  # otherwise transformers would look for it on the hub
        raise CheckpointError(f"{directory} holds no language model: there is no such directory.")
    try:
        model: Any = transformers.AutoModel.from_pretrained(directory, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{directory} holds no language model with a tokenizer: {first_line(error)}") from error
    model = model.to(device).eval()
    found: list[Tensor] = []
    for start in range(0, len(texts), ROWS):
        rows = [
            tokenizer(text, truncation=True, max_length=LONGEST)["input_ids"] for text in texts[start : start + ROWS]
        ]
        if not all(rows):
            raise UsageError("A text has no token at all, so it has no feature.")
        width = max(map(len, rows))
        tokens = torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows], device=device)
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device)
        states = model(input_ids=tokens, attention_mask=real).last_hidden_state
        ends = real.sum(1) - 1
        found.append(states[torch.arange(len(rows), device=device), ends].float().cpu())
    return torch.cat(found)


def mauve_of_run(results: Path, tasks: Path, directory: Path, device: str, seed: int = 0) -> dict[str, Any]:
    """MAUVE of what a run wrote against the expected continuations, each behind its prompt."""
    questions = {one.id: one for one in read_tasks(tasks)}
    written = {name: one.get("output", "") for name, one in questions_of(results).items()}
    if any(name not in questions for name in written):
        raise UsageError(f"{results} does not hold answers to the questions of {tasks}.")
    if len(written) < FEWEST:
        raise UsageError(f"MAUVE compares two crowds of texts: {len(written)} are too few, {FEWEST} the least.")
    empty = sum(not output.strip() for output in written.values())
    if empty == len(written):
        raise UsageError(f"No answer in {results} has any text: MAUVE would compare prompts with themselves.")
    ours = [f"{questions[name].prompt}{output}" for name, output in written.items()]
    real = [f"{questions[name].prompt}{questions[name].answers[0]}" for name in written]
    value = mauve(text_features(ours, directory, device), text_features(real, directory, device), seed=seed)
    return {
        "mauve": value,
        "texts": len(written),
        "empty": empty,
        "features": directory.name,
        "longest": LONGEST,
        "seed": seed,
    }
