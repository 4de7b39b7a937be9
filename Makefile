# The same few commands everywhere: make demo, make test, make test-all, make check, make bench.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-all check docs bench

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

demo: $(READY)       ## train one model on four learners through kills and a freeze
	$(BIN)/diloco run deploy/recipes/demo.toml --fresh

# Two workers. The tests on Ray, but for those of the examples, are in one of the two: see tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -q --numprocesses=2 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0

test: $(READY)       ## what a newcomer runs: every room, the proofs in small, two real runs on Ray, one more through faults
	$(PYTEST) -m "not full" --hypothesis-profile=small --faults=kill,freeze,kill-syncer,freeze-syncer,stop

test-all: $(READY)   ## what `make test` leaves out: the long tests, all examples of property tests, the other faults, the gate
	$(PYTEST) --ignore tests/gate -m "full or hypothesis"
	$(BIN)/python -m pytest -q chaos/suite --faults=link,slow,straggle,corrupt,non_finite,wrong_config,kill-orchestrator -k "not to_the_bit"
	$(BIN)/python -m pytest -q tests/gate

check: $(READY)      ## format, lint, types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(READY)       ## write anew what the docs take from the code and the tests
	$(BIN)/python -m docs.renew

bench: $(READY)      ## the measurements that docs/benchmarks.md reports; about half an hour
	$(BIN)/python benchmarks/standby.py --only without
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/elastic.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/replay.py
	$(BIN)/python benchmarks/reach.py --write
