"""`tenuto lab eval mauve`: how alike what a run wrote and what people wrote are."""

from pathlib import Path
from typing import Annotated

import typer

from tenuto.cli.app import AsJson, Device, Seed
from tenuto_lab.cli.app import evaluation


@evaluation.command(
    epilog="Example: tenuto lab eval mauve wikitext.json --tasks-file wikitext.jsonl --features gpt2-large"
)
def mauve(
    results: Annotated[Path, typer.Argument(help="Results of `tenuto lab eval lm` on the task file.")],
    tasks_file: Annotated[Path, typer.Option(help="The task file: prompts, and how people went on.")],
    features: Annotated[Path, typer.Option(help="The directory of a causal language model of transformers.")],
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """MAUVE of a run's continuations against those of people, with the features of a language model."""
    from tenuto.cli.app import check_device
    from tenuto.cli.console import counted, print_json, say, tell
    from tenuto.extras import needs
    from tenuto_lab.full_size.text_features import mauve_of_run

    needs("MAUVE", "eval", "sklearn", "transformers")
    check_device(device)
    found = mauve_of_run(results, tasks_file, features, device, seed)
    if as_json:
        print_json(found)
        return
    tell(f"MAUVE {found['mauve']:.3f}: {found['texts']} texts")
    if found["empty"]:
        say(f"Warning: {counted(found['empty'], 'answer')} without any text; of these only the prompts are compared.")
    tell(
        f"Protocol: prompt and continuation, at most {found['longest']} tokens; features of {found['features']} at the "
        f"last token; k-means with a tenth as many clusters as texts, scale 5, seed {found['seed']}."
    )
