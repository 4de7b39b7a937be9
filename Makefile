# The same few commands everywhere: make demo, make test, make test-all, make check, make bench.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-real test-rest test-all test-all-real test-all-rest check docs bench

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)       ## train one model on four learners through kills and a freeze
	$(BIN)/diloco run deploy/recipes/demo.toml --fresh

test: $(READY)       ## what a newcomer runs: every room, the proofs in small, a few real runs on Ray; about a quarter of an hour
	+$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-real test-rest

# Run after the tests that start Ray, so that the two halves of `make test` take about as long.
AFTER_RAY := $(addprefix tests/,architecture benchmarks deploy docs examples replay)

test-real: $(READY)  ## of these, the tests that start Ray, and some others
	$(BIN)/python -m pytest -q tests/runtime $(AFTER_RAY) -m "not full" --hypothesis-profile=small

test-rest: $(READY)  ## and all others
	$(BIN)/python -m pytest -q $(addprefix --ignore=,tests/runtime $(AFTER_RAY)) -m "not full" --hypothesis-profile=small

test-all: $(READY)   ## everything else: the long tests, property tests with all their examples, the regression gate
	+$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-all-real test-all-rest
	$(BIN)/python -m pytest -q tests/gate

test-all-real: $(READY)
	$(BIN)/python -m pytest -q tests/runtime -m full

test-all-rest: $(READY)
	$(BIN)/python -m pytest -q --ignore tests/runtime --ignore tests/gate -m "full or hypothesis"

check: $(READY)      ## format, lint, types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)       ## write anew what the docs take from the code and the tests
	$(BIN)/python -m docs.renew

bench: $(READY)      ## the measurements that docs/benchmarks.md reports; about half an hour
	$(BIN)/python benchmarks/isolation.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/elastic.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/reach.py --write
