# Two commands for newcomers: `make train` and `make test`. Each sets everything up in a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MINUTES ?= 10
SEED    ?= 0

.PHONY: help setup train test check format evidence learn-check soak bench fuzz docs clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.installed  ## Make .venv with the pinned packages

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

train: setup  ## Train SAC on Pendulum-v1 (a minute or two) and say where the result lies
	$(BIN)/rl-training train sac/pendulum

test: check  ## Format, lint and type checks, then the whole quick suite
	$(BIN)/pytest -n auto --dist loadgroup

check: setup  ## Formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup  ## Put the code in shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

evidence: setup  ## Run what is missing of the benchmark suite, then rewrite its tables and reports; SUITE=online_classic
	$(BIN)/python benchmarks/evidence.py $(SUITE)

learn-check: setup  ## Fresh runs of the quick suites, three seeds each, against thresholds
	$(BIN)/python benchmarks/evidence.py --check

soak: setup  ## Faults on purpose: kill, fill the disk, damage, resume, compare; MINUTES=10 SEED=0
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) --seed $(SEED) --output benchmarks/results/soak.json
	$(BIN)/python benchmarks/reliability_tables.py

bench: setup  ## Speed beside other libraries, in one interleaved run (about an hour)
	$(BIN)/python benchmarks/speed.py

fuzz: setup  ## 20,000 cases of wild input (CASES=, SEED=): each must succeed or be refused
	$(BIN)/python -m tests.fuzz.run --cases $(or $(CASES),20000) --seed $(or $(SEED),0) --json benchmarks/results/fuzz.json
	$(BIN)/python benchmarks/reliability_tables.py

docs: setup  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

clean:  ## Remove what the other commands made, except runs/
	rm -rf $(VENV) site build .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
