# Each target is all you need to type: the first one makes .venv and installs what is pinned in constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-matrix check clean

help:
	@echo "make demo      a fleet on a PostgreSQL of its own: a crash, a takeover, a resume"
	@echo "make test      the tests, without the slow ones"
	@echo "make test-all  all tests"
	@echo "make test-matrix  the tests on PostgreSQL 14 to 18; MATRIX='14 18' and TESTS=tests/plans for less"
	@echo "make check     format, lint, import rules, types"
	@echo "make clean     remove all that make and the tools made"

demo: $(INSTALLED)
	$(BIN)/runqueue demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 -q

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 -q --slow

MATRIX ?= 14 15 16 17 18
TESTS ?= tests
test-matrix: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m support.matrix $(MATRIX) -- -n 2 -q $(TESTS)

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@
