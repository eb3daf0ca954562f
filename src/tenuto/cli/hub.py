"""`tenuto push` and `tenuto pull`: schedules and score files, to the hub and from it."""

from pathlib import Path

from tenuto.cli.console import out, print_json, say
from tenuto.errors import UsageError
from tenuto.files import check_writable
from tenuto.integrations import hub


def push(
    file: Path, repository: str, base_model: str | None, private: bool | None, message: str | None, as_json: bool
) -> None:
    address = hub.push(file, repository, base_model=base_model, private=private, message=message)
    if as_json:
        print_json({"repository": repository, "commit": address})
    else:
        out.print(address, markup=False, soft_wrap=True)


def pull(source: str, output: Path, as_json: bool) -> None:
    repository, at, revision = source.partition("@")
    if at and not revision:
        raise UsageError(f"{source} names no revision after the @.")
    for name in hub.NAMES.values():
        check_writable(output / name)
    written = hub.pull(repository, output, revision=revision or None)
    if as_json:
        print_json({"repository": repository, "revision": revision or None, "files": [str(path) for path in written]})
        return
    for path in written:
        say(f"Wrote {path}")
