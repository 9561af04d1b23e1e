# `make demo` and `make test` need only Python 3.11+, gcc and make: each builds .venv when it is missing.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One thread per test worker; idle threads must not spin on shared machines.
QUIET_THREADS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

# As a processor without wide vectors would run, on two threads.
OTHER_PROCESSOR := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=PASSIVE

.PHONY: demo test test-all lint types clean

demo: $(READY)
	@echo "== shardgym demo: measure, fit, train, plan, evaluate; results under runs/demo/"
	$(BIN)/shardgym demo

test: lint types
	@echo "== pytest: everything but the slow tests (make test-all runs those too)"
	$(QUIET_THREADS) $(BIN)/python -m pytest -n 2 -m "not slow"
	@echo "== pytest: what promises equality to the last digit, on other instruction sets and two threads"
	$(OTHER_PROCESSOR) $(BIN)/python -m pytest -n 2 -m "exact and not slow"

test-all: lint types
	@echo "== pytest: everything"
	$(QUIET_THREADS) $(BIN)/python -m pytest -n 2

lint: $(READY)
	@echo "== ruff: style and format"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy does not follow editable installs of mapped folders, so it reads an ordinary install.
types: $(READY)
	@echo "== mypy: types, on an ordinary install under build/types"
	rm -rf build/types build/lib
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target build/types .
	cd build/types && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../setup.cfg -p shardgym

$(READY): setup.cfg pyproject.toml constraints.txt
	@echo "== installing pinned versions into $(VENV)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[cpu,sessions,rllib,torchrec,test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt torchrec
	touch $(READY)

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache *.egg-info src/*.egg-info
