# Two commands do everything on a fresh machine: `make demo` and `make test`. Each sets up its own .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-gpu floors fuzz lint format docs wheel setup clean

demo: $(VENV)/.ready
	$(BIN)/tenuto demo --out demo

test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

# On a machine with a GPU: runs every GPU test and records the run in results/gpu_tests.
test-gpu: setup
	$(BIN)/python -m tests.gpu_run

# Tries the lowest versions that pyproject.toml allows, in an environment of their own, and records the outcome.
floors:
	$(PYTHON) -m scripts.floors

# Mutated files, random commands, thousands of generations, killed workers: about half an hour, recorded in results/fuzz.
fuzz: setup
	$(BIN)/python -m tests.fuzz.run

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Builds both, installs the wheel by itself into an empty folder, and asks it for its version.
wheel: setup
	$(PIP) build hatchling
	rm -rf dist build/wheel
	$(BIN)/python -m build --no-isolation
	$(PIP) --no-deps --target build/wheel dist/*.whl
	cd build/wheel && PYTHONPATH=. ../../$(BIN)/python -c 'from tenuto.cli import main; main()' --version

# With all that the tests, the documentation and the page in the browser need.
setup: $(VENV)/.ready-dev

$(VENV)/.ready-dev: $(VENV)/.ready
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

# What the program itself needs.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Tenuto needs Python 3.11 or newer; run: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --editable .
	touch $@

clean:
	rm -rf $(VENV) demo dist build site .pytest_cache .ruff_cache .mypy_cache .hypothesis
