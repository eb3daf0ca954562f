"""ComfyUI itself, with the node in its graph: runs a workflow in the browser and takes the picture for the docs.

    python -m benchmarks.comfy_screenshot ../ComfyUI     # writes docs/images/comfyui.png

Needs ComfyUI's requirements, playwright and chromium.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.places import ROOT
from scripts.command_line import run

PORT = 8199
PICTURE = ROOT / "docs" / "images" / "comfyui.png"
FLAGS = ["--no-sandbox", "--disable-gpu"]


def graph() -> dict[str, Any]:
    """The workflow in ComfyUI's own file format: tiny-sdxl → Tenuto → KSampler → picture."""

    def node(number: int, kind: str, at: tuple[int, int], size: tuple[int, int], **more: Any) -> dict[str, Any]:
        return {"id": number, "type": kind, "pos": list(at), "size": list(size), "flags": {}, "order": number,
                "mode": 0, "properties": {"Node name for S&R": kind}, **more}  # fmt: skip

    def takes(name: str, kind: str, link: int) -> dict[str, Any]:
        return {"name": name, "type": kind, "link": link}

    def gives(name: str, kind: str, *links: int) -> dict[str, Any]:
        return {"name": name, "type": kind, "links": list(links)}

    words = "CONDITIONING"
    model = [
        gives("model", "MODEL", 1),
        gives("positive", words, 2),
        gives("negative", words, 3),
        gives("latent", "LATENT", 4),
    ]
    sampler = [
        takes("model", "MODEL", 5),
        takes("positive", words, 2),
        takes("negative", words, 3),
        takes("latent_image", "LATENT", 4),
    ]
    nodes = [
        node(1, "TenutoTinyModel", (40, 160), (240, 140), inputs=[], outputs=model, widgets_values=[4]),
        node(2, "Tenuto", (340, 60), (330, 190), inputs=[takes("model", "MODEL", 1)],
             outputs=[gives("MODEL", "MODEL", 5)],
             widgets_values=[0.3, 0, 0]),
        node(3, "KSampler", (720, 100), (300, 270), inputs=sampler, outputs=[gives("LATENT", "LATENT", 6)],
             widgets_values=[5, "fixed", 30, 3.0, "dpmpp_2m", "karras", 1.0]),
        node(4, "TenutoLatentAsPicture", (1070, 100), (220, 60), inputs=[takes("samples", "LATENT", 6)],
             outputs=[gives("IMAGE", "IMAGE", 7)], widgets_values=[]),
        node(5, "PreviewImage", (1070, 220), (320, 320), inputs=[takes("images", "IMAGE", 7)], outputs=[],
             widgets_values=[]),
    ]  # fmt: skip
    links = [[1, 1, 0, 2, 0, "MODEL"], [2, 1, 1, 3, 1, words], [3, 1, 2, 3, 2, words], [4, 1, 3, 3, 3, "LATENT"],
             [5, 2, 0, 3, 0, "MODEL"], [6, 3, 0, 4, 0, "LATENT"], [7, 4, 0, 5, 0, "IMAGE"]]  # fmt: skip
    return {"last_node_id": 5, "last_link_id": 7, "nodes": nodes, "links": links, "groups": [], "config": {},
            "extra": {},
            "version": 0.4}  # fmt: skip


def answered(seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/object_info/Tenuto", timeout=5) as reply:
                return "Tenuto" in json.load(reply)
        except OSError:
            time.sleep(1)
    return False


def shot(out: Path, seconds: float) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": 760})
        page.goto(f"http://127.0.0.1:{PORT}", timeout=120_000)
        page.wait_for_function("window.app && window.app.graph && window.app.canvas", timeout=120_000)
        page.wait_for_timeout(4000)
        page.keyboard.press("Escape")
        page.evaluate("workflow => window.app.loadGraphData(workflow)", graph())
        page.wait_for_timeout(2000)
        page.evaluate("window.app.queuePrompt(0)")
        page.wait_for_function("Object.keys(window.app.nodeOutputs || {}).length > 0", timeout=seconds * 1000)
        page.wait_for_timeout(3000)
        page.evaluate("() => { const view = window.app.canvas.ds; view.scale = 1; view.offset = [40, 60]; }")
        page.evaluate("window.app.graph.setDirtyCanvas(true, true)")
        page.wait_for_timeout(1500)
        page.screenshot(path=str(out), clip={"x": 60, "y": 40, "width": 1440, "height": 640})
        browser.close()


def main(
    checkout: Annotated[Path, typer.Argument(help="a checkout of ComfyUI")],
    out: Annotated[Path, typer.Option(help="where the picture goes")] = PICTURE,
    seconds: Annotated[float, typer.Option(help="time limit for the generation")] = 240,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        for part in ("custom_nodes", "models", "input", "output", "temp", "user"):
            (base / part).mkdir()
        settings = {"Comfy.TutorialCompleted": True, "Comfy.Minimap.Visible": False, "Comfy.Graph.CanvasInfo": False}
        (base / "user" / "default").mkdir()
        (base / "user" / "default" / "comfy.settings.json").write_text(json.dumps(settings))
        (base / "custom_nodes" / "tenuto").symlink_to(ROOT / "integrations" / "comfyui")
        (base / "custom_nodes" / "tenuto_demonstration").symlink_to(ROOT / "benchmarks" / "comfy_demo")
        command = [sys.executable, "main.py", "--cpu", "--port", str(PORT), "--base-directory", folder]
        log = base / "log"
        with log.open("w") as sink:
            server = subprocess.Popen(
                [*command, "--disable-api-nodes", "--disable-metadata"], cwd=checkout, stdout=sink, stderr=sink
            )
        try:
            if not answered(180):
                raise SystemExit(log.read_text()[-3000:])
            shot(out, seconds)
        finally:
            server.terminate()
            server.wait()
            print("\n".join(line for line in log.read_text().splitlines() if "Tenuto" in line))


if __name__ == "__main__":
    run(main)
