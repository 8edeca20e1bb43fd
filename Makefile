# Everything happens in .venv; nothing is installed into the system but, for `make test` as root on Debian,
# the shells that the tests type into.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip-audit and uv, apart from what is tested.
TOOLS := $(VENV)-tools
# Many tests wait for processes, so a few run beside each other. 0: one after the other, in this process.
TEST_PROCESSES ?= 4

.DEFAULT_GOAL := help
# make chaos: histories with processes, with containers and with pods, on each database; SEED is the first of them, KILLS how
# often a training is killed.
HISTORIES ?= 200
DOCKER_HISTORIES ?= 50
KUBERNETES_HISTORIES ?= 100
KILLS ?= 20
SEED ?=
# make fuzz
MINUTES ?= 10

# The time of every file in a distribution: of the last commit, or hatchling's own outside of a checkout.
COMMITTED = $(or $(shell git log -1 --format=%ct 2>/dev/null),1580601600)

# Hundreds of processes start in the tests: without their bytecode each of them compiles our sources anew.
unexport PYTHONDONTWRITEBYTECODE
XDIST = --numprocesses $(TEST_PROCESSES) --dist loadgroup --no-loadscope-reorder

.PHONY: help dist demo test test-all test-fast chaos fuzz check lint format types imports docs bench bench-quick site screenshots recording lock audit clean

help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## train the digits on this machine, end to end
	@scripts/demo.sh

test: $(VENV)/.dev ## show every promise once, on every engine: a quarter of an hour
	@scripts/test-tools.sh
	@PYTHONPATH=tests $(BIN)/python -m beds.kubernetes.build
	$(BIN)/python -m pytest $(XDIST) -m "not long" $(PYTEST_ARGS)

test-all: $(VENV)/.dev ## run every test that this machine can run
	@scripts/test-tools.sh
	@PYTHONPATH=tests $(BIN)/python -m beds.installed.frameworks
	@PYTHONPATH=tests $(BIN)/python -m beds.installed.google_clients
	@PYTHONPATH=tests $(BIN)/python -m beds.kubernetes.build
	$(BIN)/python -m pytest $(XDIST) $(PYTEST_ARGS)

test-fast: $(VENV)/.dev ## run the tests for every change: less than three minutes
	@echo "Left out (make test runs them): PostgreSQL, containers, Kubernetes, Slurm, the installed program, browser, training, other slow tests"
	$(BIN)/python -m pytest $(XDIST) -m "not slow" tests/unit tests/contract tests/property tests/integration/api tests/capabilities $(PYTEST_ARGS)

chaos: $(VENV)/.dev ## many random histories of the real service, and one training killed again and again
	@scripts/test-tools.sh
	$(BIN)/python -m pytest tests/chaos -v -rN --tb=short --timeout 0 --chaos-histories $(HISTORIES) \
		--chaos-docker-histories $(DOCKER_HISTORIES) --chaos-kubernetes-histories $(KUBERNETES_HISTORIES) --chaos-kills $(KILLS) $(if $(SEED),--chaos-seed $(SEED)) \
		$(PYTEST_ARGS)

fuzz: $(VENV)/.dev ## call every route as the API's descriptions say, and as they do not, for MINUTES
	PYTHONPATH=tests:trainer_library/tests $(BIN)/python -m attacks.schema_fuzzing --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

check: lint types imports test ## lint, format, types, import contracts, `make test`

lint: $(VENV)/.dev ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev ## rewrite the sources in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## the strict type checker, of the packages and of the tests
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/mypy trainer_library/tests
	$(BIN)/mypy trainer_template/tests

imports: $(VENV)/.dev ## the contracts of ARCHITECTURE.md
	$(BIN)/lint-imports

screenshots: $(VENV)/.dev ## take the pictures of README.md anew, with Chromium
	@scripts/test-tools.sh
	SCREENSHOTS=build/screenshots $(BIN)/python -m pytest -q tests/browser/test_showcase.py
	mkdir -p docs/images
	cp build/screenshots/jobs-light.png docs/images/ # the whole table
	for picture in job-failed-light compare-dark; do \
		cp build/screenshots/window/$$picture.png docs/images/$$picture.png; done

recording: $(VENV)/.dev ## record the first job on a terminal of 80 x 24 anew, for docs/how-to/follow-jobs.md
	$(BIN)/python scripts/record.py

lock: $(TOOLS)/.tools ## write requirements/ anew, after a change of pyproject.toml or constraints.txt
	$(TOOLS)/bin/python scripts/lock.py

audit: $(TOOLS)/.tools ## look for known vulnerabilities in what is installed
	@PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(TOOLS)/bin/python scripts/audit.py $(AUDIT_ARGS)

bench: $(VENV)/.dev ## run the benchmarks and write docs/explanation/performance.md; the machine must be idle
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/.dev ## run the part of the benchmarks that fits into five minutes
	$(BIN)/python -m benchmarks --quick

site: $(VENV)/.dev ## build the site into build/site, without a network; open build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Built: build/site/index.html"

docs: $(VENV)/.dev ## write the pages that come from the code
	$(BIN)/python scripts/docs.py

dist: $(VENV)/.dev ## build wheels and source distributions into dist/, the same bytes from the same commit
	@rm -rf dist
	SOURCE_DATE_EPOCH=$(COMMITTED) $(BIN)/python -m hatchling build --directory dist
	cd trainer_library && SOURCE_DATE_EPOCH=$(COMMITTED) ../$(BIN)/python -m hatchling build --directory ../dist
	@cd dist && sha256sum *

clean: ## remove what make has made (not the state directory)
	rm -rf $(VENV) $(TOOLS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/.demo: pyproject.toml trainer_library/pyproject.toml requirements/demo.txt
	@scripts/setup.sh $(PYTHON) $(VENV) demo
	@touch $@

$(VENV)/.dev: pyproject.toml trainer_library/pyproject.toml requirements/demo.txt requirements/dev.txt
	@scripts/setup.sh $(PYTHON) $(VENV) dev
	@touch $@ $(VENV)/.demo

$(TOOLS)/.tools: requirements/tools.txt
	@scripts/setup.sh $(PYTHON) $(TOOLS) tools
	@touch $@
