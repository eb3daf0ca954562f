"""Writing that cannot leave half a file behind, and strict reading of JSON."""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from tenuto.errors import TenutoError, first_line

# Files of these kinds beside a model's weights count as parts of the model.
WEIGHTS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
MODEL_SUFFIXES = (*WEIGHTS_SUFFIXES, ".model", ".json", ".txt")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path. If the block succeeds, its content becomes the content of `path`; if not, it is deleted.

    A plain file is replaced at once, so that no one sees half of it. A link stays a link: the file that it points to is
    replaced. A device or a pipe is written to. A read-only file is refused.
    """
    target = _target(path)
    temporary = _temporary(path, None if target is None else target.parent)
    try:
        yield temporary
        if target is None:
            with temporary.open("rb") as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            return
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except OSError as error:
        raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _target(path: Path) -> Path | None:
    """The plain file to replace; None if `path` is a device or a pipe, which is written to instead."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error
    if stat.S_ISDIR(mode):
        raise TenutoError(f"Cannot write {path}: it is a directory.")
    if not mode & 0o222:  # look at the file's own mode, because root may write everything
        raise TenutoError(f"Cannot write {path}: it is read-only.")
    if not stat.S_ISREG(mode) or path.is_relative_to("/dev") or path.is_relative_to("/proc"):
        return None
    return Path(os.path.realpath(path))


def _temporary(path: Path, folder: Path | None, tries: int = 100) -> Path:
    """A new file for the future content of `path`: in the folder, or (None) in the system's temporary folder."""
    for left in reversed(range(tries)):
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            # A short name, because the file's own name may already have the maximum length.
            handle, name = tempfile.mkstemp(prefix=".tenuto-", suffix=path.suffix[-20:], dir=folder)
            os.close(handle)
            return Path(name)
        except OSError as error:
            # Another process may have made the folder to check that it can write here, and removed it again.
            vanished = isinstance(error, FileNotFoundError) or (
                isinstance(error, FileExistsError) and folder is not None and (folder.is_dir() or not folder.exists())
            )
            if not left or not vanished:
                raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error
    raise AssertionError


def check_writable(path: Path, reads: Iterable[str | Path] = ()) -> None:
    """Fail now if `path` cannot be written, rather than after the work whose result goes there.

    reads  files and folders that the work reads: none of them may be overwritten
    """
    for source in map(Path, reads):
        if _belongs_to(path, source):
            raise TenutoError(f"Cannot write {path}: it belongs to what is read ({source}). Name another file.")
    target = _target(path)
    if target is None:
        return
    made = [folder for folder in target.parents if not folder.exists()]
    _temporary(target, target.parent).unlink()
    with suppress(OSError):  # another process writes there now
        for folder in made:  # the work may still be refused, and should then leave nothing behind
            folder.rmdir()


def _belongs_to(path: Path, source: Path) -> bool:
    """Whether `path` is the source itself, or part of the model in the source folder, or would be taken for one."""
    if not source.exists():
        return False
    if source.is_file():
        return path.is_file() and path.samefile(source)
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(source))
    if not path.exists():  # a new file is taken for weights later
        return inside and path.suffix in WEIGHTS_SUFFIXES
    return inside and path.is_file() and path.suffix in MODEL_SUFFIXES and not _is_ours(path)


def _is_ours(path: Path) -> bool:
    """Whether Tenuto wrote the file; such a file may be overwritten."""
    with suppress(TenutoError):
        record = read_json(path, "file of Tenuto")
        return str(record.get("format", "")).startswith("tenuto.") or "tenuto" in record
    return False


def write_text(path: Path, text: str) -> None:
    """Write UTF-8. What UTF-8 cannot encode (half a character, of a name not in UTF-8) becomes a question mark."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_text(path: Path, what: str) -> str:
    """The text of a file; `what` names the expected kind of file in errors."""
    check_regular(path, what)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TenutoError(f"Cannot read the {what} {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise TenutoError(f"Cannot read the {what} {path}: it is not UTF-8 ({first_line(error)}).") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError if it is not JSON, has a number too long, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(first_line(error)) from error


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file; `what` names the expected kind of file in errors."""
    try:
        value = parse_json(read_text(path, what))
    except ValueError as error:
        raise TenutoError(f"{path} is not a {what}: it is not valid JSON ({first_line(error)}).") from error
    if not isinstance(value, dict):
        raise TenutoError(f"{path} is not a {what}: a JSON object is expected, not a {type(value).__name__}.")
    return value


def check_regular(path: Path, what: str) -> None:
    """Refuse a pipe or a device, because reading one can wait for ever, and a file that may not be read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()  # other libraries call a file that may not be read missing
            return
    except OSError as error:
        raise TenutoError(f"Cannot read the {what} {path}: {error.strerror or error}.") from error
    kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise TenutoError(f"Cannot read the {what} {path}: it is {kind}, not a file.")


def check_not_special(path: Path) -> None:
    """Refuse a pipe or a device where a file of our own belongs: opening one can wait for ever."""
    with suppress(OSError):
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            return
        raise TenutoError(f"Cannot write {path}: it is a pipe or a device, not a file. Remove it.")


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[bool]:
    """Whether this process holds the lock. The system releases the lock when the process ends, in any way.

    Where the system has no such locks (Windows), nobody is kept out.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        yield True
        return
    with _opened(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = os.fstat(handle.fileno()).st_nlink > 0  # else its last holder has just removed the file
        except BlockingIOError:
            held = False
        except OSError as error:
            raise TenutoError(f"Cannot lock {path}: {error.strerror or error}.") from error
        yield held


def _opened(path: Path, tries: int = 100) -> TextIO:
    """Open a file for locking. If another process removes the directory meanwhile, create the directory again."""
    for left in reversed(range(tries)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            check_not_special(path)
            return path.open("a", encoding="utf-8")
        except OSError as error:
            # The directory vanished before the file was opened, or while mkdir checked whether it is a directory.
            vanished = isinstance(error, FileNotFoundError | FileExistsError)
            if not left or not vanished:
                raise TenutoError(f"Cannot write {path}: {error.strerror or error}.") from error
    raise AssertionError


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_fields(record: object, where: str, fields: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """`record`, if it is an object with exactly these fields and types; else an error that names the wrong field."""
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
