# Two commands do everything on a machine with Python >= 3.11, pip and venv:
#   make lab    install, then start the lab and open it in the browser
#   make test   install, then lint, types and tests
# The rest is for people who work on shardlab; CONTRIBUTING.md explains it.

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
  $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DOCS   := $(VENV)/.docs-installed
PIP    := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints-dev.txt

.PHONY: lab tour test test-all bench lint types format docs clean conformance library-tests public-programs corpus fixes mutants planner-accuracy tpu-memory screenshots web

lab: $(STAMP)
	@$(BIN)/shardlab serve $(ARGS)

# The same ideas as text, for a terminal without a browser.
tour: $(STAMP)
	@$(BIN)/python examples/tour.py

# What a newcomer runs: complete for correctness, on the installed JAX.
test: $(STAMP)
	@$(BIN)/python tools/run_tests.py

# Also long searches, soak tests, and everything again on the newest JAX.
test-all: $(STAMP)
	@$(BIN)/python tools/run_tests.py --all

bench: $(STAMP)
	@$(BIN)/python -m benchmarks $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

# The documentation as a site: build/docs/index.html
docs: $(DOCS)
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs
	@echo "Open build/docs/index.html"

# JAX's own tests, rerouted to the simulator: make conformance JAX_REPO=path/to/jax
conformance: $(STAMP)
	@$(BIN)/python tools/conformance.py $(JAX_REPO)

# JAX's, Flax's and Optax's sharding tests on virtual devices: make library-tests CLONES=folder/of/clones
library-tests: $(STAMP)
	@$(BIN)/python tools/library_tests.py $(CLONES)

# Public programs on real and on virtual devices: make public-programs CLONES=folder/of/clones
public-programs: $(STAMP)
	@$(BIN)/python tools/public_programs.py $(CLONES)

# How many bugs of training programs are found, with which cause.
corpus: $(STAMP)
	@$(BIN)/python tools/corpus_report.py

# For how many wrong programs `check --fix` proves an edit, compared with the right twins.
fixes: $(STAMP)
	@$(BIN)/python tools/fix_report.py $(ARGS)

# Which mutants of each problem's reference its hidden cases kill.
mutants: $(STAMP)
	@$(BIN)/python -m shardlab catalogue mutants

# docs/planner-accuracy.md: estimated step times beside published ones.
planner-accuracy: $(STAMP)
	@$(BIN)/python -m benchmarks.planner_report

# benchmarks/data/tpu_memory.json: memory of train steps, by the compiler of shardlab[tpu].
tpu-memory: $(STAMP)
	@$(BIN)/python -m benchmarks.tpu_memory.measure $(ARGS)

# The screenshots of README.md and docs/, made by the browser tests.
screenshots: $(STAMP)
	@SHARDLAB_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest -q tests/browser -m screenshot

# The browser code: web/ to src/shardlab/server/static/build.
web:
	@cd web && npm ci --silent && npm run --silent build

$(STAMP): pyproject.toml constraints-dev.txt
	@echo "Installing shardlab and its tools into $(VENV) (once; a minute or two) ..."
	@test -n "$(PYTHON)" || \
	  { echo "shardlab needs Python >= 3.11 with venv; set PYTHON=path/to/python" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable ".[dev]"
	@$(BIN)/python -c "import jax; print('Installed: jax', jax.__version__)"
	@touch $@

$(DOCS): $(STAMP)
	@$(PIP) --editable ".[docs]"
	@touch $@

clean:
	rm -rf .venv .venv-* build .pytest_cache .mypy_cache .ruff_cache .hypothesis
