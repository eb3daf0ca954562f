"""`import tenuto` and `tenuto --help` bring in nothing heavy. (How long they take: benchmarks/importing.py.)"""

import subprocess
import sys

import pytest

HEAVY = ("torch", "diffusers", "transformers", "matplotlib", "numpy", "huggingface_hub", "gradio", "PIL")


def loaded_after(code):
    """Which of the heavy packages a fresh interpreter has loaded after this."""
    told = f"{code}\nimport sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].split()


def test_importing_the_package_imports_nothing_heavy():
    assert loaded_after("import tenuto; tenuto.__version__; dir(tenuto)") == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ui", "--help"], ["push", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    code = f"import sys; sys.argv = ['tenuto', *{arguments}]\nfrom tenuto.cli import main\n"
    assert loaded_after(f"{code}try: main()\nexcept SystemExit as end: assert not end.code") == []


def test_a_name_brings_in_its_home():
    assert "torch" in loaded_after("import tenuto; tenuto.load")
