# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up its own .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format docs wheel setup clean

demo: setup
	$(BIN)/tenuto demo --out demo

test: lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Builds both, installs the wheel by itself into an empty folder, and asks it for its version.
wheel: setup
	$(BIN)/pip install --quiet --disable-pip-version-check build hatchling
	rm -rf dist build/wheel
	$(BIN)/python -m build --no-isolation
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target build/wheel dist/*.whl
	cd build/wheel && PYTHONPATH=. ../../$(BIN)/python -c 'from tenuto.cli import main; main()' --version

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Tenuto needs Python 3.11 or newer; run: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo dist build site .pytest_cache .ruff_cache .mypy_cache .hypothesis
