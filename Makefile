# make demo: a real model, with and without speculation. make test: everything that must hold.
PYTHON ?= python3
VENV ?= .venv
# TORCH is what pip is asked for: another version, or a wheel's path.
TORCH ?= torch==2.13.0
CUDA_TORCH ?= torch==2.14.1

BIN := $(VENV)/bin
REQUIREMENTS := requirements/dev.txt
ENVIRONMENT := $(VENV)/.has-$(notdir $(TORCH))
EXTENSION := specfast/_C.abi3.so
# Newer than its sources when the extension has the CUDA kernels, wherever nvcc is to build them.
WITH_CUDA := build/.with-cuda
SOURCES := CMakeLists.txt setup.py pyproject.toml $(wildcard csrc/*.h csrc/*/*)
INSTALL := -m pip install -q --no-build-isolation --no-deps -e .
GPU := $(wildcard /dev/nvidia[0-9]*)$(shell nvidia-smi -L 2>/dev/null)
NVCC := $(shell command -v nvcc)
CPP := $(shell find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
export PYTHON
MAKEFLAGS += --no-print-directory

.PHONY: demo test build lint types cpp-test cuda-resources check-cuda-torch format wheel clean
.DELETE_ON_ERROR:

# Its build leaves the CUDA kernels out unless a GPU is here to run them: they take minutes.
demo: $(EXTENSION)
	@$(BIN)/specfast bench demo --quick

# pytest comes last: its closing line is the suite's.
test: build
	@$(MAKE) lint
	@$(MAKE) types
	@$(MAKE) cpp-test
	@$(if $(NVCC)$(filter true,$(CI)),$(MAKE) cuda-resources)
	$(BIN)/python -m pytest

build: $(WITH_CUDA)

$(ENVIRONMENT): $(REQUIREMENTS)
	@tools/preflight.sh
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r $(REQUIREMENTS) $(TORCH)
	@touch $@

$(EXTENSION): $(ENVIRONMENT) $(SOURCES)
	SPECFAST_CUDA=$(if $(GPU),AUTO,OFF) $(BIN)/python $(INSTALL)
	@touch $@

$(WITH_CUDA): $(ENVIRONMENT) $(SOURCES)
	SPECFAST_CUDA=AUTO $(BIN)/python $(INSTALL)
	@touch $(EXTENSION) $@

lint: $(ENVIRONMENT)
	$(BIN)/ruff check -q .
	$(BIN)/ruff format -q --check .
	@$(BIN)/clang-format --dry-run -Werror $(CPP)

types: $(ENVIRONMENT)
	$(BIN)/mypy --no-error-summary

cpp-test: $(ENVIRONMENT)
	PYTHON=$(BIN)/python tools/cpp_tests.sh

# What the kernels take of a GPU, against the record; RECORD=1 makes it anew.
cuda-resources: build
	$(BIN)/python tools/cuda_resources.py $(if $(RECORD),--record)

# Builds and tests a copy of this tree against a CUDA build of torch (some 6 GB), without a GPU.
check-cuda-torch:
	PYTHON=$(PYTHON) TORCH=$(CUDA_TORCH) tools/check_cuda_torch.sh build/cuda-torch

format: $(ENVIRONMENT)
	$(BIN)/ruff check -q --fix .
	$(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $(CPP)

# The sdist, and a wheel built from that sdist.
wheel: $(ENVIRONMENT)
	$(BIN)/python -m build --no-isolation

clean:
	rm -rf build dist *.egg-info specfast/*.so .mypy_cache .pytest_cache .ruff_cache
