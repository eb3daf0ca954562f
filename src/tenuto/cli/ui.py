"""`tenuto ui`: the page in the browser."""

import socket
from importlib.util import find_spec
from pathlib import Path

from tenuto.cli.console import say
from tenuto.cli.generate import check_device
from tenuto.errors import TenutoError
from tenuto.models import open_model
from tenuto.report.results import results_folder


def run(model: str, host: str, port: int, share: bool, results: Path | None, device: str) -> None:
    if find_spec("gradio") is None:
        raise TenutoError("The page needs gradio, which is not installed: pip install 'tenuto[ui]'")
    check_device(device)
    _check_free(host, port)
    open_model(model)  # or it would fail in the browser only
    from tenuto.ui.app import build, launch

    page = build(model, results=results or results_folder(), device=device)
    say(f"http://{host}:{port} (Ctrl-C ends it)")
    launch(page, host, port, share, quiet=True)


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = error.strerror or str(error)
            raise TenutoError(f"Cannot serve on {host}:{port}: {why}. Take another --port or --host.") from error
