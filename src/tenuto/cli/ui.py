"""`tenuto ui`: the page in the browser."""

from importlib.util import find_spec
from pathlib import Path

from tenuto.cli.console import say
from tenuto.cli.generate import check_device
from tenuto.errors import TenutoError
from tenuto.models import PACKAGE, open_model


def run(model: str, host: str, port: int, share: bool, results: Path | None, device: str) -> None:
    if find_spec("gradio") is None:
        raise TenutoError("The page needs gradio, which is not installed: pip install 'tenuto[ui]'")
    check_device(device)
    open_model(model)  # or it would fail in the browser only
    from tenuto.ui.app import build, launch

    page = build(model, results=results or results_folder(), device=device)
    say(f"http://{host}:{port} (Ctrl-C ends it)")
    try:
        launch(page, host, port, share, quiet=True)
    except OSError as error:  # gradio's own, of a port that is taken
        raise TenutoError(f"Cannot serve on {host}:{port}: {error}") from error


def results_folder() -> Path:
    """`results` here, or else of the checkout the package lies in."""
    here, project = Path("results"), PACKAGE.parents[1] / "results"
    return project if not here.is_dir() and project.is_dir() else here
