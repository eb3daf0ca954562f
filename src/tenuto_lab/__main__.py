"""`python -m tenuto_lab`: the laboratory's commands, where the package is not installed."""

from typing import Any

from tenuto.cli import run


def command() -> Any:
    from tenuto_lab.cli import app

    return app(prog_name="tenuto lab", standalone_mode=False)


if __name__ == "__main__":
    run(command)
