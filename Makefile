# make run    the main job on the embedded data, from nothing
# make test   the tests, from nothing
# make check  lint, format, types, tests
# make robustness  the tests of what goes wrong, in full: many peers, many kills, full disks
# make docs   the documentation as pages under site/

PYTHON ?= python3
BIN := .venv/bin
TESTS := -m pytest --numprocesses auto --dist worksteal
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: run test robustness check lint format docs clean

run: .venv/run
	$(BIN)/consilience compare --seeds 2

test: .venv/dev
	$(BIN)/python $(TESTS)

robustness: .venv/dev
	CONSILIENCE_ROBUSTNESS=1 $(BIN)/python -m pytest tests/robustness

check: .venv/dev lint
	$(BIN)/mypy
	$(BIN)/python $(TESTS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The stamps say what is installed: neither command installs twice, and the tools bring all that a run needs.
define install
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --constraint constraints.txt torch==2.13.0
	$(PIP) install --constraint constraints.txt --editable '$(1)'
endef

.venv/run: pyproject.toml constraints.txt
	$(call install,.[learn])
	touch .venv/run

.venv/dev: pyproject.toml constraints.txt
	$(call install,.[dev])
	touch .venv/run .venv/dev

clean:
	rm -rf .venv build site .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
