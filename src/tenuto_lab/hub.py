"""Schedules and score files on the Hugging Face hub: pushed with a card that shows them, pulled by name.

A repository holds one schedule, one score file, or both, under fixed names. A pulled file is used like any other
file. If a schedule was made from weights, its fingerprint tells a model with other weights to refuse it.
"""

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenuto import __version__
from tenuto.errors import TenutoError, UsageError, first_line
from tenuto.files import read_json, replacing
from tenuto.scheduling.schedule import FIRST_FORMAT, Schedule
from tenuto.scheduling.schedule import FORMAT as SCHEDULE_FORMAT
from tenuto.scheduling.schedule import from_json as schedule_from_json
from tenuto.showing.escaping import in_markdown, one_line
from tenuto.showing.facts import schedule_facts
from tenuto.showing.maps import save_schedule_png
from tenuto.showing.plotting import NoPlots
from tenuto_lab.scoring.score_pictures import save_scores_png, scores_facts
from tenuto_lab.scoring.scores import FORMAT as SCORES_FORMAT
from tenuto_lab.scoring.scores import FORMATS as SCORES_FORMATS
from tenuto_lab.scoring.scores import Scores
from tenuto_lab.scoring.scores import from_json as scores_from_json

Decision = Schedule | Scores
NAMES = {SCHEDULE_FORMAT: "schedule.json", SCORES_FORMAT: "scores.json"}  # in a repository, by the file's format
PICTURES: dict[str, tuple[str, Callable[..., None]]] = {
    "schedule.json": ("schedule.png", save_schedule_png),
    "scores.json": ("scores.png", save_scores_png),
}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)  # a shell reads it as one word
TAGS = ("tenuto", "diffusion", "acceleration", "caching")


def push(
    file: str | Path,
    repository: str,
    *,
    base_model: str | None = None,
    private: bool | None = None,
    message: str | None = None,
    token: str | None = None,
) -> str:
    """Push a schedule or a score file, a card and pictures to a hub repository in one commit; return its address.

    The repository is made if needed. A file of the other kind that it already holds stays, also on the card.
    Without matplotlib (the extra `plots`) the card has no pictures, and a warning says so.

    base_model  the hub id of the weights that the file was made from; by default the model's name, if it is a hub id
    private     whether a newly made repository is private
    token       by default as the hub's own client finds it: HF_TOKEN, or `hf auth login`
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    name, decision = read_decision(Path(file))
    _check_id(repository)
    if base_model is not None:
        _check_id(base_model)
    if constants.HF_HUB_OFFLINE:
        raise TenutoError(f"Cannot push to {repository}: HF_HUB_OFFLINE is set. Unset it to reach the hub.")
    api = HfApi(token=token, library_name="tenuto", library_version=__version__)
    with _hub_errors(f"Could not push to {repository}"):
        api.create_repo(repository, private=private, exist_ok=True)
        known = dict(_stored(api, repository, None)) | {name: (Path(file), decision)}
        decisions = {name: known[name][1] for name in NAMES.values() if name in known}
        pictures = _pictures(decisions)
        contents = {
            "README.md": card(repository, decisions, base_model, pictured=bool(pictures)).encode(),
            name: Path(file).read_bytes(),
            **pictures,
        }
        commit = api.create_commit(
            repository,
            [CommitOperationAdd(path, content) for path, content in contents.items()],
            commit_message=message or _title(name, decision),
        )
    return str(commit.commit_url)


def pull(
    repository: str, directory: str | Path, *, revision: str | None = None, token: str | None = None
) -> list[Path]:
    """Fetch schedule.json, scores.json or both from a hub repository into a directory. Both are checked strictly first.

    Offline (HF_HUB_OFFLINE=1), the files come from the cache of an earlier pull.
    """
    from huggingface_hub import HfApi, constants

    _check_id(repository)
    at = f"{repository}@{revision}" if revision else repository
    api = HfApi(token=token, library_name="tenuto", library_version=__version__)
    with _hub_errors(f"Could not pull {at}"):
        found = dict(_stored(api, repository, revision))
    if not found:
        where = "in the cache, and HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "there"
        raise TenutoError(f"Could not pull {at}: neither {' nor '.join(NAMES.values())} is {where}.")
    written = []
    for name, (path, _) in found.items():
        target = Path(directory) / name
        with replacing(target) as temporary:
            temporary.write_bytes(path.read_bytes())
        written.append(target)
    return written


def read_decision(path: Path) -> tuple[str, Decision]:
    """Read a schedule or a score file; return its name in a repository, and its content."""
    record = read_json(path, "schedule or score file")
    kind = record.get("format")
    if kind in (SCHEDULE_FORMAT, FIRST_FORMAT):
        return NAMES[SCHEDULE_FORMAT], schedule_from_json(record, str(path))
    if kind in SCORES_FORMATS:
        return NAMES[SCORES_FORMAT], scores_from_json(record, str(path))
    raise TenutoError(
        f"{path} is neither a schedule ({SCHEDULE_FORMAT}) nor a score file ({SCORES_FORMAT}): its format is {kind!r}."
    )


def card(
    repository: str, decisions: Mapping[str, Decision], base_model: str | None = None, *, pictured: bool = True
) -> str:
    """The README.md of a repository with these files: what they are for, what they cost, and how to use them.

    All text from the files is escaped, so that a name can neither end a table nor begin a tag.

    pictured  whether the repository holds the pictures
    """
    model = next(iter(decisions.values())).model
    base_model = base_model or (model if HUB_ID.fullmatch(model) and not Path(model).exists() else None)
    matter = ["---", "library_name: tenuto", "tags:", *(f"- {tag}" for tag in TAGS)]
    matter += [f"base_model: {base_model}"] if base_model else []
    parts = ["\n".join([*matter, "---"]), f"# Tenuto for {in_markdown(base_model or _shown(model))}"]
    for name, decision in decisions.items():
        rows = "\n".join(f"| {in_markdown(fact)} | {in_markdown(value)} |" for fact, value in _facts(decision).items())
        parts += [f"## {name}", f"| | |\n| --- | --- |\n{rows}"]
        parts += [f"![{ABOUT[name]}]({PICTURES[name][0]})"] if pictured else []
    use = USE_SCHEDULE if "schedule.json" in decisions else USE_SCORES
    named = base_model or (_shown(model) if PLAIN_NAME.fullmatch(_shown(model)) else "MODEL")
    parts += [f"## Use\n\n```\n{use.format(repository=repository, model=named)}\n```"]
    parts += [FITS_ANY if next(iter(decisions.values())).fingerprint is None else REFUSED]
    return "\n\n".join(parts) + "\n"


ABOUT = {
    "schedule.json": "One column for each step: dark where the network or a unit is computed",
    "scores.json": "The score of each unit",
}
USE_SCHEDULE = """pip install .  # in a checkout of Tenuto
tenuto pull {repository} -o pulled
tenuto generate {model} --schedule pulled/schedule.json -o made"""
USE_SCORES = """pip install .  # in a checkout of Tenuto
tenuto pull {repository} -o pulled
tenuto schedule pulled/scores.json --steps 50 --budget 0.25 -o schedule.json"""
REFUSED = "The file was made from the weights of this fingerprint. A model with other weights refuses it."
FITS_ANY = "No weight was read to make the schedule, so it fits any weights of the same architecture and size."


def _facts(decision: Decision) -> dict[str, str]:
    """What the card says about a file: its facts, with the whole fingerprint and without its author's folders."""
    facts = schedule_facts(decision) if isinstance(decision, Schedule) else scores_facts(decision)
    whole = {} if decision.fingerprint is None else {"weights": decision.fingerprint}
    return {**facts, "model": _shown(decision.model), **whole, "made by": f"tenuto {decision.version}"}


def _title(name: str, decision: Decision) -> str:
    """The title of a commit."""
    return one_line(f"{name.removesuffix('.json').capitalize()} of {_shown(decision.model)}")


def _shown(model: str) -> str:
    """A model's name without the folders of the file's author; a hub id stays whole."""
    return model if HUB_ID.fullmatch(model) else Path(model).name


def _stored(api: Any, repository: str, revision: str | None) -> Iterator[tuple[str, tuple[Path, Decision]]]:
    """Our files in a repository, and their paths in the hub's cache."""
    from huggingface_hub import constants
    from huggingface_hub.utils import EntryNotFoundError, LocalEntryNotFoundError

    for name in NAMES.values():
        try:
            path = Path(api.hf_hub_download(repository, name, revision=revision))
        except EntryNotFoundError as error:
            if isinstance(error, LocalEntryNotFoundError) and not constants.HF_HUB_OFFLINE:
                raise  # the hub was not reached, so the file may exist
            continue
        found, decision = read_decision(path)
        if found != name:
            raise TenutoError(f"{name} of {repository} is a {found.removesuffix('.json')} file.")
        yield name, (path, decision)


def _pictures(decisions: Mapping[str, Decision]) -> dict[str, bytes]:
    """The pictures of a card, by name; if they cannot be drawn, none and a warning."""
    drawn = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, decision in decisions.items():
            picture, draw = PICTURES[name]
            path = Path(folder) / picture
            try:
                draw(decision, path)
            except NoPlots as error:
                warnings.warn(f"The card is pushed without pictures. {error}", stacklevel=3)
                return {}
            drawn[picture] = path.read_bytes()
    return drawn


def _check_id(repository: str) -> None:
    if not HUB_ID.fullmatch(repository):
        raise UsageError(f"A hub repository is written owner/name, not {repository!r}.")


@contextmanager
def _hub_errors(what: str) -> Iterator[None]:
    """Turn the hub client's many errors into one sentence of ours."""
    try:
        yield
    except TenutoError:
        raise
    except Exception as error:
        raise TenutoError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    from huggingface_hub.utils import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or only for a token that may see it (HF_TOKEN, or run: hf auth login)."
    if isinstance(error, RevisionNotFoundError):
        return "the repository has no such revision."
    if isinstance(error, LocalEntryNotFoundError):
        return "the hub cannot be reached, and it is not in the cache."
    if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
        return "the hub wants a token that may do so. Set HF_TOKEN, or run: hf auth login"
    return first_line(error)
