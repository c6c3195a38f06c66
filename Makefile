# The manual of this repository: `make` lists what there is to do.

.DEFAULT_GOAL := help
.PHONY: help setup demo check pure-tests test lint format bench soak planted docs matrix site dist hooks clean

BIN := .venv/bin
STAMP := .venv/.setup-done
WORKERS ?= 2
# Rooms that need no other process, no Java and no network, without the tests that try every point of a crash.
PURE_TESTS := $(addprefix tests/,model records coordination storage $(addprefix dialects/,day1 fluxgo flymq kafka minikafka \
	rustlog) test_docs.py test_limits.py test_packaging.py) $(patsubst %,--ignore tests/%.py,dialects/flymq/test_kills \
	dialects/flymq/test_session $(addprefix storage/test_,bit_flips crash_points legacy_swap power_cuts swap torn_tails))

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the product and its test tools

$(STAMP): pyproject.toml constraints.txt scripts/setup
	@scripts/setup
	@touch $@

demo: setup ## orders in by three protocols, revenue out by Spark, two kills, nothing lost
	@$(BIN)/python examples/demo.py

check: setup ## lint and the tests of the pure rooms: no Java, no network
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint pure-tests

pure-tests:
	PENSTOCK_HYPOTHESIS=brief env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -q -n $(WORKERS) $(PURE_TESTS)

test: setup ## run the tests
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(WORKERS)

lint: setup ## ruff, mypy --strict, and the borders between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff format and mend the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## measure this machine; results go to bench/results
	$(BIN)/python -m bench

soak: setup ## the long runs at full length
	PENSTOCK_SOAK=1 $(BIN)/python -m pytest -m soak --timeout 7200

planted: setup ## plant bugs in copies of the tree; the tests must catch each
	$(BIN)/python scripts/planted-bugs

docs: setup ## write docs/config.md from the config's own descriptions
	$(BIN)/python -m penstock.server.config_doc docs/config.md

matrix: setup ## run every client against every feature and write docs/compatibility.md
	$(BIN)/python -m tests.compatibility.document

site: ## build the documentation site into site/
	@scripts/tools site mkdocs-material
	.venv-site/bin/mkdocs build --strict

dist: ## build sdist and wheel into dist/ and run the broker from the wheel
	@scripts/tools dist build hatchling
	rm -rf dist
	.venv-dist/bin/python -m build --no-isolation
	.venv-dist/bin/python scripts/check-dist

hooks: setup ## run every pre-commit hook on every file
	@scripts/tools hooks pre-commit codespell
	.venv-hooks/bin/pre-commit run --all-files

clean: ## remove environments, caches and everything built
	rm -rf .venv .venv-* build dist site reports .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
