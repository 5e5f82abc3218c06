# Two commands matter: `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Vision code of llama.cpp is not used; without it the build is a quarter shorter.
export CMAKE_ARGS ?= -DLLAVA_BUILD=OFF

.PHONY: setup demo test check docs clean

setup: $(READY)

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[llama,ann,mcp,dev]'
	$(BIN)/isovist model add smollm2
	touch $@

demo: $(READY)
	$(BIN)/isovist demo

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/python -m isovist.syscalls.reference --check
	$(BIN)/python -m pytest -q tests/test_floors.py tests/test_promises.py

docs: $(READY)
	$(BIN)/python -m isovist.syscalls.reference

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
