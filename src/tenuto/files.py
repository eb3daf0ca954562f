"""Reading and writing that cannot leave half a file behind, and JSON that is read strictly."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tenuto.errors import TenutoError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block ends well, and vanishes when it does not."""
    temporary = _temporary(path)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; ours are meant to be shared
        temporary.replace(path)
    except OSError as error:
        raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path, tries: int = 100) -> Path:
    for left in reversed(range(tries)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
            os.close(handle)
            return Path(name)
        except OSError as error:
            # Another process that looked whether it can write here takes away the folder that it made for that.
            vanished = isinstance(error, FileNotFoundError | FileExistsError) and not path.parent.exists()
            if not left or not (vanished or isinstance(error, FileNotFoundError)):
                raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error
    raise AssertionError


def check_writable(path: Path) -> None:
    """Fail now rather than after the work whose result is to be written there."""
    if path.is_dir():
        raise TenutoError(f"Cannot write {path}: it is a directory.")
    made = [folder for folder in path.parents if not folder.exists()]
    _temporary(path).unlink()
    with suppress(OSError):  # somebody writes there by now
        for folder in made:  # the work may yet be refused, and should leave nothing behind
            folder.rmdir()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file; `what` says what the file should have been, for the error."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TenutoError(f"Cannot read the {what} {path}: {error.strerror or error}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TenutoError(f"{path} is not a {what}: it is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise TenutoError(f"{path} is not a {what}: a JSON object is expected, not a {type(value).__name__}.")
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_fields(record: object, where: str, fields: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """`record` if it is an object with just these fields, each of its type; else an error that names the culprit."""
    if not isinstance(record, dict):
        raise TenutoError(f"{where} should be an object, not a {type(record).__name__}.")
    if unknown := [key for key in record if key not in fields]:
        raise TenutoError(f"{where} has unknown field(s) {', '.join(map(repr, unknown))}.")
    if missing := [key for key in fields if key not in record]:
        raise TenutoError(f"{where} lacks the field(s) {', '.join(map(repr, missing))}.")
    for key, kind in fields.items():
        value = record[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        kinds = (*kinds, int) if float in kinds else kinds  # JSON writes 1.0 as 1
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TenutoError(
                f"{where}: {key!r} should be {' or '.join(k.__name__ for k in kinds)}, not {type(value).__name__}."
            )
    return record
