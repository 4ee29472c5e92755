# Every target first creates .venv and installs what it needs.
#
# make run         compare the methods on the digits, with two seeds, and write a report
# make readme      run every command of the README, with what make run has installed
# make flower      run the tests of integrations/flower, in an environment of its own
# make package     build the wheel and the source archive, install both in new environments, and use them
# make test        run the tests
# make check       lint, check format and types, run the tests: what CI runs
# make robustness  run the slow tests of failures: many peers, many kills, full disks
# make format      fix lint and format where ruff can
# make docs        build the documentation under site/
# make clean       delete .venv and everything that was built

PYTHON ?= python3
BIN := .venv/bin
# One process more than there are cores: many tests wait for other processes and for timeouts.
TESTS := -m pytest --numprocesses $(shell expr `getconf _NPROCESSORS_ONLN` + 1) --dist worksteal
# In a variable: call would take the commas for the ends of its arguments.
RUN_EXTRAS := .[learn,relay,report]
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Flower pins other versions than constraints.txt of packages that the relay needs.
FLOWER := integrations/flower

.PHONY: run readme flower package test robustness check lint format docs clean

run: FOLDER := runs/$(shell date +%Y%m%d-%H%M%S)-make-run
run: .venv/run
	$(BIN)/consilience compare --seeds 2 --out $(FOLDER)
	$(BIN)/consilience report $(FOLDER) --out report.html
	@echo
	@echo "The command is $(BIN)/consilience; 'source $(BIN)/activate' puts it on the path of this shell."
	@echo "Open report.html in a browser. Next: $(BIN)/consilience run --method consilience --rounds 20 --out runs/first"

readme: .venv/run
	$(BIN)/python tests/docs/readme_commands.py

flower: $(FLOWER)/.venv/test
	cd $(FLOWER) && .venv/bin/python -m mypy && .venv/bin/python -m pytest

package: .venv/dev
	bash .ci/package

test: .venv/dev
	$(BIN)/python $(TESTS)

robustness: .venv/dev
	CONSILIENCE_ROBUSTNESS=1 $(BIN)/python -m pytest tests/robustness tests/adversarial/test_relay_machine.py tests/exchanges/test_similarity.py

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

# The files .venv/run and .venv/dev record what is installed, so that nothing is installed twice.
# The development tools include everything that a run needs.
define install
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --constraint constraints.txt torch==2.13.0
	$(PIP) install --constraint constraints.txt --editable '$(1)'
endef

.venv/run: pyproject.toml constraints.txt
	$(call install,$(RUN_EXTRAS))
	touch .venv/run

.venv/dev: pyproject.toml constraints.txt
	$(call install,.[dev])
	touch .venv/run .venv/dev

$(FLOWER)/.venv/test: pyproject.toml $(FLOWER)/pyproject.toml
	test -x $(FLOWER)/.venv/bin/python || $(PYTHON) -m venv $(FLOWER)/.venv
	$(FLOWER)/.venv/bin/python -m pip --quiet --disable-pip-version-check install torch==2.13.0
	$(FLOWER)/.venv/bin/python -m pip --quiet --disable-pip-version-check install --editable . --editable '$(FLOWER)[test]'
	touch $@

clean:
	rm -rf .venv $(FLOWER)/.venv build site .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
