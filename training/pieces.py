"""Folders as a few files of at most 15 MB, for machines that give back little at a time; and back again.

    python -m training.pieces pack family/base --out sent --skip vae
    python -m training.pieces unpack received --out weights

The pieces of one folder NAME are NAME.tar.00, NAME.tar.01 and so on: one uncompressed tar file, cut. Weights do not
compress.
"""

import io
import tarfile
from pathlib import Path
from typing import Annotated

import typer

from scripts.command_line import run_app
from tenuto.errors import UsageError

PIECE = 15_000_000


def pack(folder: Path, out: Path, skip: tuple[str, ...] = (), piece: int = PIECE) -> list[Path]:
    """Writes the pieces of a folder; `skip` names files or folders at its top to leave out."""
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}.")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            if path.name not in skip:
                archive.add(path, f"{folder.name}/{path.name}")
    content, written = buffer.getvalue(), []
    out.mkdir(parents=True, exist_ok=True)
    for i, start in enumerate(range(0, len(content), piece)):
        written.append(out / f"{folder.name}.tar.{i:02}")
        written[-1].write_bytes(content[start : start + piece])
    return written


def unpack(pieces: Path, out: Path) -> list[str]:
    """Puts every folder together whose pieces lie in `pieces`, or one level below; returns their names."""
    found = sorted([*pieces.glob("*.tar.[0-9][0-9]"), *pieces.glob("*/*.tar.[0-9][0-9]")], key=lambda path: path.name)
    names = sorted({path.name.rsplit(".tar.", 1)[0] for path in found})
    if not names:
        raise UsageError(f"There are no pieces in {pieces}.")
    for name in names:
        parts = [path for path in found if path.name.rsplit(".tar.", 1)[0] == name]
        if [path.name for path in parts] != [f"{name}.tar.{i:02}" for i in range(len(parts))]:
            raise UsageError(f"A piece of {name} is missing or there twice: {', '.join(path.name for path in parts)}.")
        with tarfile.open(fileobj=io.BytesIO(b"".join(path.read_bytes() for path in parts))) as archive:
            archive.extractall(out, filter="data")
    return names


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("pack")
def pack_command(
    folders: Annotated[list[Path], typer.Argument(help="What to pack.")],
    out: Annotated[Path, typer.Option(help="Where the pieces go.")],
    skip: Annotated[list[str], typer.Option(help="A file or folder at the top to leave out.")] = [],  # noqa: B006
    piece: Annotated[int, typer.Option(min=1, help="Bytes of a piece, at most.")] = PIECE,
) -> None:
    """Cut folders into pieces."""
    for folder in folders:
        for path in pack(folder, out, tuple(skip), piece):
            print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


@app.command("unpack")
def unpack_command(
    pieces: Annotated[Path, typer.Argument(help="The folder with the pieces.")],
    out: Annotated[Path, typer.Option(help="Where the folders go.")],
) -> None:
    """Put folders together again."""
    print(", ".join(unpack(pieces, out)))


if __name__ == "__main__":
    run_app(app)
