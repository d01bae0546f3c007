# SPDX-License-Identifier: Apache-2.0
# make demo       the shipped model from checkpoint to emulated board
# make test       everything that takes seconds; what this machine cannot check is listed at the end
# make test-long  and what takes minutes
# make lint       style and types; make format mends the style
# make sizes      measures tests/limits.json and docs/sizes.md again (REASON='...' when one moved)
# make pictures   runs the commands of the README again and keeps what they print
# Needs python3 (3.11 or newer), gcc, cmake. Everything else goes to .venv with pip.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find sdk/c sdk/python/src -name '*.[ch]' -o -name '*.cpp' -o -name CMakeLists.txt)

.PHONY: all venv build demo test test-long lint format sizes pictures wheel clean
all: build

venv: $(VENV)/.made
$(VENV)/.made: pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip scikit-build-core nanobind cmake ninja
	@rm -f $(VENV)/.built
	@touch $@

build: $(VENV)/.built
$(VENV)/.built: $(VENV)/.made CMakeLists.txt $(SOURCES)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	@touch $@

demo: build
	$(BIN)/colibri demo

test: build
	$(BIN)/python -m pytest

test-long: build
	$(BIN)/python -m pytest --long

lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sizes: build
	$(BIN)/python tests/python/runtime_sizes.py $(if $(REASON),--reason "$(REASON)")

pictures: build
	$(BIN)/python docs/pictures/make.py

wheel: build
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

clean:
	rm -rf build dist $(VENV)/.built
