# Every target sets up what it needs first: an environment in .venv, pinned packages, the base model.
# A second run finds them and goes straight on.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV := .venv
RUN := $(VENV)/bin/python
# Spinning threads steal the cores from the other services; it must be set before torch starts.
export OMP_WAIT_POLICY ?= passive
export PYTHONUNBUFFERED ?= 1
ARGS ?=

.PHONY: help env setup demo test check bench experiment chaos load clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

env:
	@$(PYTHON) -I libs/cli/bootstrap.py --env-only

setup: ## environment, packages and base model
	@$(PYTHON) -I libs/cli/bootstrap.py

demo: setup ## the homework experiment on a local stack (ARGS="--seed 1 --no-tags ...")
	@$(RUN) -m libs.cli demo $(ARGS)

test: setup ## all tests (ARGS="tests/unit -k ...")
	@$(RUN) -m pytest $(ARGS)

check: env ## format, lint, types, architecture
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy
	@$(RUN) -m pytest -q tests/architecture

bench: setup ## every benchmark, gathered in runs/bench.json
	@$(RUN) -m tests.bench $(ARGS)

experiment: setup ## all arms and seeds of the homework experiment; resumes (ARGS="--seeds 5")
	@$(RUN) -m experiments.homework.study $(ARGS)

chaos: setup ## kill services at random under traffic; runs/chaos.json
	@$(RUN) -m tests.bench.chaos $(ARGS)

load: setup ## traffic at the rate of many people; runs/load.json
	@$(RUN) -m tests.bench.load $(ARGS)

clean: ## remove the environment and local state; runs/ stays
	rm -rf $(VENV) .clawback
