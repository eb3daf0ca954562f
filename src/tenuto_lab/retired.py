"""Networks that results were measured on and that the repository no longer holds: how to train them again."""

from collections.abc import Iterable

RETIRED = {"tiny-llada": "python -m training.train_llada"}  # name -> command
CARD = "networks/{}/README.md"  # in the folder of results


def about_retired(models: Iterable[str], results: str | None = None) -> list[str]:
    """A sentence on each of these models that the repository no longer holds, in Markdown.

    results  path from the page to the folder of results, for a link; without it the card is named only
    """
    found = [model for model in dict.fromkeys(models) if model in RETIRED]
    return [f"**{model} is no longer in this repository.** {_again(model, results)}\n" for model in found]


def _again(model: str, results: str | None) -> str:
    path = CARD.format(model)
    card = f"`results/{path}`" if results is None else f"[its card]({results}/{path})"
    return f"`{RETIRED[model]}` trains it again; every command is in {card}."
