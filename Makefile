# `make` lists the targets. Every target first brings .venv/ up to date, from nothing if need be.

PYTHON ?= python3
PREFIX ?= $(HOME)/.local
ARGS ?=

venv := .venv
bin := $(venv)/bin
pip := $(bin)/python -m pip --disable-pip-version-check -q
created := $(venv)/.created
tools := $(venv)/.tools
built := $(venv)/.built
pages := $(venv)/.pages
installed := $(venv)/.installed
extras := dev,torch,trace,zarr,hdf5,remote,ray,jax,onnx,learned,llm,lightning,plot,metrics,service,ui
native := CMakeLists.txt $(wildcard cmake/*) $(shell find csrc -type f)
formatted := $(filter %.h %.cpp %.cu %.cuh,$(native)) $(wildcard tests/tensora/emulator/*.h tests/tensora/emulator/*.cpp) \
    $(wildcard tests/native/*.h tests/native/*.cpp tests/faults/*.cpp)

# The tests start hundreds of processes: without files of bytecode each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo ui test test-native fuzz faults sanitize coverage check test-services test-install lint format bench docs reference api pictures cuda gpu-check install install-bin clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

demo: $(built) ## two matrix files multiplied inside a budget a fraction of their size
	$(bin)/python examples/demo.py $(ARGS)

ui: $(pages) ## the Copilot in a browser, until Ctrl-C; ARGS="--ui-port 8501" and so on
	@$(bin)/accelera serve --ui $(ARGS)

test: test-native ## every test; ARGS goes to pytest
	$(bin)/python -m pytest $(ARGS)

test-native: $(installed) ## the C++ tests, built in the folder of the extension modules; ARGS goes to them only here
	@build=$$(dirname "$$(ls build/cp*/CMakeCache.txt | head -n 1)") && \
	    $(bin)/cmake --build "$$build" --target accelera_tests && \
	    "$$build/accelera_tests" $(if $(filter test-native,$(MAKECMDGOALS)),$(ARGS))

faults: $(installed) ## operations in which each allocation, read, write or start of a thread fails once
	ACCELERA_TEST_EVERY=1 $(bin)/python -m pytest tests/faults $(ARGS)

sanitize: $(installed) ## C++ tests and some of Python's under the sanitizers; ARGS="--only thread" for one
	PATH="$(abspath $(bin)):$$PATH" $(bin)/python tools/instrumented.py sanitize $(ARGS)

coverage: $(installed) ## lines and branches of csrc that the tests execute
	PATH="$(abspath $(bin)):$$PATH" $(bin)/python tools/instrumented.py coverage $(ARGS)

fuzz: $(installed) ## damaged files for every reader; ARGS="--seconds 3600 TARGET ...", or --list
	$(pip) install --only-binary :all: 'atheris>=2.3' || echo "no Atheris for this Python: using Hypothesis" >&2
	$(bin)/python -m tests.fuzz $(ARGS)

check: lint ## for daily work: lint, and the quickest tests of each part
	$(bin)/python -m pytest -q $(shell cat tests/fast.txt) $(ARGS)

test-services: ## Chromium and PostgreSQL from Debian's packages, for the tests of the service and its pages
	@tools/test_services.sh

test-install: $(tools) ## the wheel in fresh environments, with extras and lowest versions; ARGS="--only core" and so on
	PATH="$(abspath $(bin)):$$PATH" $(bin)/python -m tools.install_check $(ARGS)

lint: $(installed) ## style, types, layers
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/clang-format --dry-run -Werror $(formatted)
	PATH="$(abspath $(bin)):$$PATH" $(bin)/python tools/clang_tidy.py

format: $(installed) ## rewrite the sources as lint wants them
	$(bin)/ruff check --fix
	$(bin)/ruff format
	$(bin)/clang-format -i $(formatted)

bench: $(installed) ## the benchmarks; ARGS="matmul --small" and so on
	$(bin)/python -m benchmarks $(ARGS)

docs: reference ## the documentation as HTML, in site/
	NO_MKDOCS_2_WARNING=1 $(bin)/python -m mkdocs build --strict --quiet

reference: $(installed) ## tables in docs/interception.md and docs/tensora_index.md; the rest is made by `make docs`
	$(bin)/python tools/operator_table.py
	$(bin)/python tools/tensora_index.py

api: $(installed) ## the public names with their signatures, in api/
	$(bin)/python tools/api_surface.py

pictures: $(installed) ## the pictures of docs/, from runs and saved benchmarks; ARGS="overview" for one
	$(bin)/python -m tools.pictures $(ARGS)

cuda: $(built) ## compile the CUDA kernels with nvcc; needs no GPU
	@command -v nvcc >/dev/null || { echo "nvcc is not on the PATH: install the CUDA toolkit" >&2; exit 1; }
	$(bin)/cmake -S . -B build/cuda -G Ninja -DACCELERA_CUDA=ON -DCMAKE_BUILD_TYPE=Release \
	    -DCMAKE_MAKE_PROGRAM=$(abspath $(bin)/ninja) -DPython_EXECUTABLE=$(abspath $(bin)/python)
	$(bin)/cmake --build build/cuda

gpu-check: ## on a machine with a GPU: build, CUDA tests and GPU benchmarks with the torch of PYTHON
	@$(PYTHON) tools/gpu_check.py $(ARGS)

install: ## the library, into the environment of PYTHON; EXTRAS="torch,trace" and so on
	$(PYTHON) -m pip install -c constraints.txt '.$(if $(EXTRAS),[$(EXTRAS)])'

install-bin: $(installed) ## `accelera` and `accelera-python`, linked from PREFIX/bin to this checkout
	mkdir -p $(PREFIX)/bin
	ln -sf $(abspath $(bin)/accelera) $(abspath $(bin)/accelera-python) $(PREFIX)/bin/
	@case ":$$PATH:" in *":$(PREFIX)/bin:"*) ;; *) echo "add $(PREFIX)/bin to your PATH" ;; esac

clean: ## remove .venv/ and everything that was built
	rm -rf $(venv) build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(created):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "Python 3.10 or newer is needed; name one with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "This Python cannot make virtual environments; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	    { echo "A C++ compiler is needed; on Debian or Ubuntu: apt install g++" >&2; exit 1; }
	$(PYTHON) -m venv $(venv)
	touch $@

# The build tools live in .venv, not in a throw-away environment, so that rebuilding is incremental.
$(tools): $(created) constraints.txt
	$(pip) install -c constraints.txt cmake nanobind ninja scikit-build-core
	touch $@

# The core: what `make demo` needs. The tensor library takes minutes to compile and comes with the rest; once it is
# there it is kept. The pip that comes with Python 3.10 does not know --config-settings by its short name.
tensora = --config-settings=cmake.define.ACCELERA_TENSORA=$(if $(wildcard $(installed)),ON,OFF)
$(built): $(native) pyproject.toml constraints.txt | $(tools)
	$(pip) install -c constraints.txt --no-build-isolation $(tensora) -e .
	touch $@

# What the service and its pages need.
$(pages): pyproject.toml constraints.txt | $(built)
	$(pip) install -c constraints.txt --no-build-isolation $(tensora) -e '.[service,ui]'
	touch $@

# Everything that the tests need, and then the shim for the torch that has come with it.
$(installed): pyproject.toml constraints.txt | $(built)
	$(pip) install --no-compile -c constraints.txt --no-build-isolation --config-settings=cmake.define.ACCELERA_TENSORA=OFF -e '.[$(extras)]'
	$(bin)/python -m compileall -q -j 0 $(venv)/lib src/accelera >/dev/null || true  # pip would do so on one processor
	$(pip) install --no-build-isolation --no-deps --config-settings=cmake.define.ACCELERA_TENSORA=ON -e .
	-$(pip) install -c constraints.txt --only-binary :all: libcachesim  # an oracle of the tests, where there is one
	-$(pip) install --only-binary :all: nvidia-cuda-nvrtc  # compiles the kernels of CUDA in the tests, without a GPU
	touch $@
