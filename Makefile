# The same few commands everywhere: make demo, make test, make check, make bench.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-real test-rest check docs bench

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)       ## train one model on four learners through kills and a freeze
	$(BIN)/diloco run deploy/recipes/demo.toml --fresh

test: $(READY)       ## every test, real Ray actors included: those in one process, all others beside it
	+$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-real test-rest

test-real: $(READY)  ## the tests with real Ray actors, but for those that take processes away from under a run
	$(BIN)/python -m pytest -q tests/runtime --ignore tests/runtime/test_durability.py

test-rest: $(READY)  ## all others, and then these
	$(BIN)/python -m pytest -q --ignore tests/runtime
	$(BIN)/python -m pytest -q tests/runtime/test_durability.py

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
