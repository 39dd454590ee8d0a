# Everything here works on Linux and macOS (GNU make 3.81 and later), with no server and no Docker.
# `make` alone lists what there is.

VENV ?= .venv
BIN := $(VENV)/bin

# The first Python that is new enough and can make a virtual environment; `make PYTHON=...` decides otherwise.
FITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
ifndef PYTHON
PYTHON := $(shell for python in python3.14 python3.13 python3.12 python3.11 python3; do \
	if $$python -c '$(FITS)' >/dev/null 2>&1; then echo $$python; break; fi; done)
endif

# They wait more than they compute, so more of them than cores run side by side.
JOBS ?= 3

MINUTES ?= 60

TESTS ?= tests/unit tests/contract tests/property tests/integration tests/test_readme.py

.DEFAULT_GOAL := help
.PHONY: help demo test check chaos soak format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo '  VENV=dir    the virtual environment, made when needed (now: $(VENV))'
	@echo '  PYTHON=exe  the Python to make it with, 3.11 or later (now: $(if $(PYTHON),$(PYTHON),none found))'
	@echo '  TESTS=...   only these tests, as in: make test TESTS=tests/unit/keys'
	@echo '  JOBS=n      how many tests run side by side (now: $(JOBS))'
	@echo '  SEED=n      play one round again: make chaos SEED=123 FAULTS=F2+F6; or where a soak begins'
	@echo '  MINUTES=n   how long a soak lasts (now: $(MINUTES))'
	@echo '  ARGS=...    more arguments for pytest, as in: make test ARGS="-k chord -x"'

demo: $(VENV)/.ready-for-demo ## See duplicate work fenced off, with real workers (about half a minute)
	@PYTHONUNBUFFERED=1 $(BIN)/python -m example_app.demo

test: $(VENV)/.ready-for-dev ## Run the tests; what needs a service that isn't there is skipped, and says so
	$(BIN)/python -m pytest $(TESTS) -n $(JOBS) --dist loadfile --durations=15 $(ARGS)

check: $(VENV)/.ready-for-dev ## Lint, formatting, types and the import rings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(VENV)/.ready-for-dev ## Real workers under faults, the protocol model, the negative controls (about five minutes)
ifdef SEED
	PYTHONPATH=tests/chaos $(BIN)/python -m rig round --seed $(SEED) $(if $(FAULTS),--faults $(FAULTS)) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(CONTROL),--control $(CONTROL)) $(if $(RETENTION),--retention)
else
	$(BIN)/python -m pytest tests/chaos -n 4 --dist worksteal --durations=15 $(ARGS)
endif

soak: $(VENV)/.ready-for-dev ## Random rounds for MINUTES=n; adds what they found to docs/evidence.md
	PYTHONPATH=tests/chaos $(BIN)/python -m rig soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

format: $(VENV)/.ready-for-dev ## Format the code and mend what ruff can mend safely
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## Remove the virtual environment and everything that was built
	rm -rf .venv build dist celery_fence.egg-info htmlcov .coverage
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp per set of packages. An environment that is there already is used; one whose Python is gone is mended.
$(VENV)/.ready-for-demo: setup.cfg pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=demo
	@touch $@

$(VENV)/.ready-for-dev: setup.cfg pyproject.toml
	@$(MAKE) --no-print-directory install EXTRA=dev
	@touch $(VENV)/.ready-for-demo $@

.PHONY: install
install:
	@if ! $(BIN)/python -c '$(FITS)' >/dev/null 2>&1; then \
		if test -z '$(PYTHON)'; then \
			echo 'celery-fence needs Python 3.11 or later with its venv module, and none was found.' >&2; \
			echo 'Install one (macOS: brew install python; Debian: apt-get install python3-venv),' >&2; \
			echo 'or name yours: make PYTHON=/path/to/python3' >&2; \
			exit 1; \
		fi; \
		echo 'Making $(VENV) with $(PYTHON)'; \
		$(PYTHON) -m venv '$(VENV)' || exit 1; \
	fi
	@echo 'Installing celery-fence[$(EXTRA)] into $(VENV) (once; again when setup.cfg changes)'
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA)]'
