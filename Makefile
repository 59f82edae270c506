# make demo: a real model, with and without speculation. make test: everything that must hold.
PYTHON ?= python3
VENV ?= .venv
# TORCH is what pip is asked for: another version, or a wheel's path.
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
REQUIREMENTS := requirements/dev.txt
ENVIRONMENT := $(VENV)/.has-$(notdir $(TORCH))
EXTENSION := specfast/_C.abi3.so
CPP := $(shell find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
export PYTHON
MAKEFLAGS += --no-print-directory

.PHONY: demo test build lint types cpp-test format wheel clean
.DELETE_ON_ERROR:

demo: build
	@$(BIN)/specfast bench demo --quick

# pytest comes last: its closing line is the suite's.
test: build
	@$(MAKE) lint
	@$(MAKE) types
	@$(MAKE) cpp-test
	$(BIN)/python -m pytest

build: $(EXTENSION)

$(ENVIRONMENT): $(REQUIREMENTS)
	@tools/preflight.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r $(REQUIREMENTS) $(TORCH)
	@touch $@

$(EXTENSION): $(ENVIRONMENT) CMakeLists.txt setup.py pyproject.toml $(wildcard csrc/*.h csrc/*/*)
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	@touch $@

lint: $(ENVIRONMENT)
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	@$(BIN)/clang-format --dry-run -Werror $(CPP)

types: $(ENVIRONMENT)
	$(BIN)/mypy --no-error-summary

cpp-test: $(ENVIRONMENT)
	PYTHON=$(BIN)/python tools/cpp_tests.sh

format: $(ENVIRONMENT)
	$(BIN)/ruff check -q --fix .
	$(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $(CPP)

# The sdist, and a wheel built from that sdist.
wheel: $(ENVIRONMENT)
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf build dist *.egg-info specfast/*.so .mypy_cache .pytest_cache .ruff_cache
