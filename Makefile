# All set-up happens here: Python 3.11 to 3.13 and make are enough, no compiler, no headers. Where
# there is a C compiler, it makes the arithmetic of training/kernels/, and numpy does it elsewhere.
#
#   PYTHON=python3.12       makes .venv with this interpreter, not with the first that fits
#   TORCH=torch==2.13.0     the torch to install where .venv has none in range
#   ARGS='--rounds 5'       further arguments of the command behind a target

PYTHON ?=
TORCH ?= torch==2.13.0
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.barnraise-installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start some hundred interpreters: each would compile this tree anew where this is set.
unexport PYTHONDONTWRITEBYTECODE

# Some systems ship Python without venv or ensurepip; such an interpreter does not fit either.
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# Whether the environment holds a torch in the range that pyproject.toml admits.
HAS_TORCH := import sys; from importlib.metadata import version; \
	sys.exit(not (2, 4) <= tuple(map(int, version("torch").split(".")[:2])) < (3,))

.PHONY: help install demo test test-all test-nat test-slow test-wheel test-gpu hunt fuzz sweep compiled explore structure soak soak-peers chaos lint clean

help:
	@echo "make demo       train a small model with four real nodes on this machine"
	@echo "make test       the quick suite: one of each kind of test; three minutes"
	@echo "make test-all   the quick suite and all cases that it leaves out; ten minutes"
	@echo "make test-slow  the tests that start real processes, build or install"
	@echo "make test-wheel the tests of protocol/ against an installed wheel; ARGS=tests/dht for others"
	@echo "make test-nat   homes behind routers, in network namespaces that the tests make; Linux, root"
	@echo "make test-gpu   the tests that need a CUDA or MPS device"
	@echo "make hunt       the tests of test-all with one random seed after the other, until one fails"
	@echo "make fuzz       ten minutes of libFuzzer over every decoder; Linux"
	@echo "make sweep      200 simulated worlds with mixed faults; every promise is checked"
	@echo "make compiled   native code for sweeps; needs a C compiler and the headers of Python; minutes"
	@echo "make explore    every order of events in small rounds of the real machines; minutes"
	@echo "make structure  the figures of the tree: lines, files, rooms, cycles, the trip of a gradient"
	@echo "make soak       half an hour of three nodes; what they hold must not grow"
	@echo "make soak-peers ten minutes of 64 peers connected to one node, with traffic"
	@echo "make chaos      a quarter of an hour of twelve nodes, a victim every ten seconds"
	@echo "make lint       formatting, lint, types"
	@echo "make install    only make the environment in .venv"
	@echo "make clean      remove the environment and all caches"

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/barnraise demo --peers 4 $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadgroup $(ARGS)

test-all: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow" $(ARGS)

hunt: $(STAMP)
	while $(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow" --seed -1 $(ARGS); do :; done

# Not in the lock: there are wheels of it for Linux alone.
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps 'atheris>=3,<4'
	$(BIN)/python -m tests.fuzz.atheris_main $(ARGS)

# Needs root, `ip` and iptables; says which of them is missing.
test-nat: $(STAMP)
	$(BIN)/python -m pytest -m "slow or not slow" -rs \
		tests/e2e/test_nat.py tests/e2e/test_lan.py tests/e2e/test_ip6.py $(ARGS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow $(ARGS)

test-wheel: $(STAMP)
	$(BIN)/python -m tests.wheel $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(ARGS)

sweep: $(STAMP)
	$(BIN)/barnraise sim sweep mixed --seeds 0..199 $(ARGS)

compiled: $(STAMP)
	$(BIN)/python -m sim.compiled $(ARGS)

explore: $(STAMP)
	$(BIN)/python -m sim.explorer $(ARGS)

structure: $(STAMP)
	$(BIN)/python -m tests.structure.figures $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m tests.e2e.soak $(ARGS)

soak-peers: $(STAMP)
	PEERS_MINUTES=10 $(BIN)/python -m pytest -m slow -s tests/dht/transport/test_libp2p_soak.py $(ARGS)

chaos: $(STAMP)
	CHAOS_S=600 CALM_S=300 $(BIN)/python -m pytest -m slow -s tests/e2e/test_chaos.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes with its own dependencies, because they differ by platform. All else comes from the
# lock without them: libp2p names a fastecdsa that needs a compiler, the lock one that does not.
# Only the last line makes the stamp, so an interrupted installation is taken up again.
$(STAMP): pyproject.toml requirements.lock $(wildcard training/kernels/*.[ch])
	@set -e; \
	if $(BIN)/python -c 'import pip; $(FITS)' 2>/dev/null; then exit 0; fi; \
	for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
		if "$$python" -c '$(FITS)' 2>/dev/null; then \
			echo "making .venv with $$("$$python" --version)"; \
			exec "$$python" -m venv --clear .venv; \
		fi; \
	done; \
	echo "Barnraise needs Python 3.11, 3.12 or 3.13 with venv (tried:" \
		"$(or $(PYTHON),python3 python3.13 python3.12 python3.11))." >&2; \
	echo "Name one with: make PYTHON=/path/to/python3" >&2; \
	exit 1
	@$(BIN)/python -c '$(HAS_TORCH)' 2>/dev/null || { \
		echo "installing $(TORCH): up to some gigabytes where it brings CUDA"; \
		$(BIN)/python -m pip install "$(TORCH)"; }
	@echo "installing the pinned packages of requirements.lock"
	@$(BIN)/python -m pip install --quiet --no-deps -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -P -c 'from training.kernels import arithmetic; print("arithmetic:", arithmetic())'
	@touch $(STAMP)
