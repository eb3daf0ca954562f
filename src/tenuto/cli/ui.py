"""`tenuto ui`: the web page."""

import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from tenuto.cli.app import MODEL, Device, app


@app.command(epilog="Example: tenuto ui tiny-sdxl --port 7861")
def ui(
    model: Annotated[str, typer.Argument(help=MODEL)] = "tiny-dit",
    host: Annotated[str, typer.Option(help="Address to serve on. 0.0.0.0: your whole network.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to serve on.")] = 7860,
    share: Annotated[bool, typer.Option("--share", help="Also make a public link, through gradio's servers.")] = False,
    results: Annotated[
        Path | None, typer.Option(help="Folder with frontier/frontier.json and experiments/. Default: results.")
    ] = None,
    device: Device = "cpu",
) -> None:
    """Open a page: the map of a schedule, and pictures or text with the schedule and without.

    Nothing leaves this machine unless --share is given. It needs gradio. In Tenuto's folder: pip install '.\\[ui]'
    """
    from tenuto.cli.app import check_device
    from tenuto.cli.console import say
    from tenuto.extras import needs
    from tenuto.models import open_model

    needs("The page", "ui")
    check_device(device)
    _check_free(host, port)
    open_model(model)  # a model that cannot be opened would fail in the browser only
    from tenuto.ui.app import build, launch

    named: dict[str, Any] = {} if results is None else {"results": results}
    page = build(model, device=device, **named)
    say(f"http://{host}:{port} (Ctrl-C ends it)")
    launch(page, host, port, share, quiet=True)


def _check_free(host: str, port: int) -> None:
    from tenuto.errors import TenutoError

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = error.strerror or str(error)
            raise TenutoError(f"Cannot serve on {host}:{port}: {why}. Take another --port or --host.") from error
