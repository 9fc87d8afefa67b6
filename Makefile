# Two commands: `make run` and `make test`. Each does all set-up on a fresh Debian or Ubuntu machine with Python 3.11
# or newer; what is set up once (.venv, the model) is kept.

VENV := .venv
BIN := $(VENV)/bin
MODELS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lane-mlir/models
MODEL ?= $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
# A text to continue: the model of the demonstration answers a bare question with nothing.
PROMPT ?= Once upon a time
# The first Python that is new enough; `make PYTHON=…` chooses another.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11, \
	$(if $(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print(1)' 2>/dev/null),$(p))))
# With an NVIDIA card, what drives it as well.
EXTRAS := dev$(if $(shell nvidia-smi -L 2>/dev/null | grep GPU),$(comma)cuda)
comma := ,

.PHONY: run test test-kernels docs models clean

run: $(BIN)/.installed models
	@mkdir -p build
	$(BIN)/lane-import $(MODEL) --rows 1 --context 2048 -o build/step.mlir
	$(BIN)/lane-opt --pass-pipeline=fuse,link,plan build/step.mlir -o build/planned.mlir
	$(BIN)/lane-report build/step.mlir
	$(BIN)/lane-run $(MODEL) --prompt "$(PROMPT)" -n 64

# Every kind of test runs even if one before it failed; the tests of the style (basedpyright, ruff) are in pytest. A
# process a core, and so one thread of BLAS each.
test: $(BIN)/.installed
	@$(BIN)/python -m lane_mlir.tools.get_models >/dev/null || echo "without the model: its tests are skipped" >&2
	@failed=; \
	$(BIN)/lit -v test/lit || failed="$$failed lit"; \
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto test --ignore test/cuda || failed="$$failed pytest"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

# The CUDA kernels, compiled by NVRTC and, for an emulator on this machine, by g++: it takes as long as all the others.
test-kernels: $(BIN)/.installed
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto test/cuda

# What is written from the code; a test says whether it is current.
docs: $(BIN)/.installed
	$(BIN)/python -m lane_mlir.tools.document_rules test/data/models -o docs/rules.md

models: $(BIN)/.installed
	@test -f "$(MODEL)" || $(BIN)/python -m lane_mlir.tools.get_models

# The environment is made once, and brought up to date when pyproject.toml changes.
$(BIN)/.installed: pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "lane-mlir needs Python 3.11 or newer (python3 is $$(python3 -V 2>&1 | cut -d' ' -f2)):" \
			"sudo apt install python3.11 python3.11-venv" >&2; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "lane-mlir needs the venv module of $(PYTHON): sudo apt install" \
			"$$($(PYTHON) -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')" >&2; exit 1; }
	@echo "setting up $(VENV) with $$($(PYTHON) -V)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
