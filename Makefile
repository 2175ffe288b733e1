# Two commands: `make demo` runs the main job on a rehearsal cluster, `make test` runs the tests.
# Both first install what they need into .venv; a second call reuses it.

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(CURDIR)/$(VENV)/bin
DEMO   := $(CURDIR)/.demo
ORCH   := ORCH_PROJECT=$(DEMO) $(BIN)/orch
JOBS   ?= 2
# What make demo trains.
MODEL  ?= resnet50
# The servers of a real Kubernetes, once they are built.
CLUSTER ?= $(CURDIR)/.kubernetes
# Tests wait more than they compute: for leases, timeouts and programs that sleep. More workers than cores.
WORKERS ?= 5
UNIT_WORKERS ?= 3

# make lint types: what mypy finds is said beside what ruff finds, and so is what ruff finds of the format.
MAKEFLAGS += --keep-going

.PHONY: help demo test unit removal frameworks scaling screenshots faults kubernetes machines check bytecode lint ruff-check ruff-format format types man docs dist image clean

help:
	@echo "make demo     install, start a lab of four nodes, benchmark ResNet-50 on 1, 2 and 4 of them, print the table (MODEL=gpt-tiny for another model)"
	@echo "make test     install, lint, check types, run every test"
	@echo "make unit     the tests that need no root, lab or long process, in five minutes on two cores, without installing anything"
	@echo "make removal  delete each feature's folder in a copy, run the unit tests of the rest (FEATURES=\"hang explain\" for some)"
	@echo "make frameworks  also install TensorFlow, Paddle and DALI (4 GB), and run the tests that train with them"
	@echo "make scaling  install the same, print scaling tables of all trainers on 1, 2 and 4 nodes of a lab (15 minutes or more)"
	@echo "make screenshots BENCH=runs/…  make the pictures of docs/img that show a bench (needs Chromium)"
	@echo "make faults   break a lab in every way listed in docs/results/reliability.md, as often as listed (hours; ROWS=\"N1 P\" TRIALS=2 for less)"
	@echo "make kubernetes  build a Kubernetes 1.20 from Debian's sources, start it with four nodes here, break benches in its pods (an hour; TRIALS=1 CASES=\"killed cut\" for less)"
	@echo "make machines  boot machines with kernels of their own by emulation, and run the tests that need some (five minutes)"
	@echo "make check    lint, types and every test, without installing anything"
	@echo "make man      build/orch.1, the manual page"
	@echo "make docs     build/site, the documentation as a site; every link is checked"
	@echo "make dist     dist/, a wheel and an archive of the sources, both checked"
	@echo "make image    an image of the controller, with podman or docker"
	@echo "make clean    remove .venv, the demo, a built Kubernetes and build output"

demo: $(VENV)/.demo
	@echo "== orch lab up: four nodes on this machine"
	@mkdir -p $(DEMO)
	@$(ORCH) lab down 2>/dev/null; $(ORCH) lab up --nodes 4
	@trap '$(ORCH) lab down >/dev/null 2>&1' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; set -e; \
	echo "== orch deploy";    $(ORCH) lab exec -- $(BIN)/orch deploy; \
	echo "== orch bench $(MODEL) --nodes 1,2,4 --repeats 3"; \
	                          $(ORCH) lab exec -- $(BIN)/orch bench $(MODEL) --nodes 1,2,4 --repeats 3 >/dev/null; \
	echo "== orch collect";   $(ORCH) lab exec -- $(BIN)/orch collect; \
	echo "== orch summarize"; $(ORCH) summarize; \
	echo "The run directories are in $(DEMO)/runs. CPU slots of one machine show that everything works, not how fast it is."

test: $(VENV)/.test
	@$(MAKE) --no-print-directory check

# Versions that install together; a test that needs one of them is skipped by make test.
FRAMEWORKS := $(TORCH) numpy Pillow paddlepaddle==3.3.1 tensorflow-cpu==2.21.0 nvidia-dali-cuda120==2.4.0 jax==0.10.2 \
	transformers==5.23.0 accelerate==1.15.0 deepspeed==0.19.8 ninja==1.13.2

# The interpreter that has them. One that is named, as in make scaling TRAINER=/opt/venv/bin/python, is taken as it is.
TRAINER ?= $(CURDIR)/$(VENV)/frameworks/bin/python
INSTALLED := $(if $(filter file,$(origin TRAINER)),$(VENV)/.frameworks)

$(VENV)/.frameworks: $(VENV)/.demo
	@test -x $(TRAINER) || $(PYTHON) -m venv $(VENV)/frameworks
	@echo "== pip install into $(VENV)/frameworks: $(FRAMEWORKS) (long)"
	@$(TRAINER) -m pip install --quiet $(FRAMEWORKS)
	@touch $@

frameworks: $(VENV)/.test $(INSTALLED)
	ORCH_TEST_PYTHON=$(TRAINER) $(BIN)/python -m pytest -q \
		tests/remote/test_trainers_paddle.py tests/remote/test_trainers_tensorflow.py tests/remote/test_trainers_jax.py \
		tests/remote/test_trainers_hf.py tests/remote/test_trainers_deepspeed.py tests/remote/test_loaders.py

scaling: $(VENV)/.demo $(INSTALLED)
	@benchmarks/scaling.sh $(BIN)/orch $(TRAINER) $(DEMO)/scaling

# BENCH: its directory in runs/.
screenshots: $(VENV)/.test
	$(BIN)/python docs/screenshots.py $(BENCH) docs/img

# ROWS: names of rows, or how they begin; TRIALS: in place of each row's own number.
faults: $(VENV)/.test
	$(BIN)/python -m tests.faults $(ROWS) $(if $(TRIALS),--trials $(TRIALS)) --jobs $(JOBS)

# TRIALS: how often each case; CASES: names of cases in tests/kubernetes/trials.py.
kubernetes: $(VENV)/.test
	@test -x $(CLUSTER)/kubelet || tests/kubernetes/build.sh $(CLUSTER)
	@tests/kubernetes/up.sh $(CLUSTER) 4 $(BIN)/python tests/kubernetes/trials.py $(CLUSTER) -n $(or $(TRIALS),3) $(CASES)

machines: $(VENV)/.test
	$(call install_packages,$(MACHINE_PACKAGES))
	$(download_kernel)
	$(BIN)/python -m pytest -q tests/lab/test_lab_machines.py tests/e2e/test_machines_in_a_lab.py

# The tests start a thousand interpreters, each of which would compile what it imports where nothing may keep that.
check unit bytecode: export PYTHONDONTWRITEBYTECODE :=
# They write and sync thousands of small files: in memory where the system offers it.
unit: export TMPDIR := $(or $(TMPDIR),$(wildcard /dev/shm),/tmp)

check: lint
	@$(MAKE) --no-print-directory --jobs 2 types bytecode
	$(BIN)/python -m pytest -n $(WORKERS) -q

# Otherwise each worker compiles all tests for itself. What cannot be collected is said by the run.
bytecode:
	-@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1

lint: ruff-check ruff-format

ruff-check:
	$(BIN)/ruff check .

ruff-format:
	$(BIN)/ruff format --check --quiet .

format:
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

types:
	$(BIN)/mypy

unit:
	$(BIN)/python -m pytest --unit -n $(UNIT_WORKERS) -q

removal:
	$(BIN)/python -m tests.removal $(FEATURES)

# The date of the last change, so that the same sources give the same page.
man:
	@mkdir -p build
	$(BIN)/python docs/reference.py man "$$(git log -1 --format=%cs 2>/dev/null)" > build/orch.1

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

$(VENV)/.docs: $(VENV)/.demo
	@$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

dist: $(VENV)/.dist
	rm -rf build/lib dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

$(VENV)/.dist: $(VENV)/.demo
	@$(BIN)/pip install --quiet build twine
	@touch $@

image:
	$(or $(shell command -v podman),docker) build --tag orch --file Containerfile .

# Debian and Ubuntu packages: an ssh server for the lab's nodes, the tools that make its network, venv for Python.
# Only as root, and only where something is missing; without them the lab takes a server written in Python.
DEMO_PACKAGES := openssh-server openssh-client iproute2
TEST_PACKAGES := $(DEMO_PACKAGES) nftables procps csh tcsh zsh fish chromium fio libpam-google-authenticator openssl \
	krb5-kdc krb5-admin-server krb5-user libssl-dev \
	slurmctld slurmd slurm-client munge podman runc
MACHINE_PACKAGES := $(DEMO_PACKAGES) qemu-system-x86 busybox-static cpio kmod nfs-kernel-server nfs-common rdma-core ibverbs-utils perftest

define install_packages
	@missing=$$(for name in $(1); do dpkg -s $$name >/dev/null 2>&1 || echo $$name; done); \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== apt-get install" $$missing; \
		DEBIAN_FRONTEND=noninteractive apt-get -qq update && \
		DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y $$missing >/dev/null; \
	elif [ -n "$$missing" ]; then \
		echo "== not installed, and not root:" $$missing "(doing without)"; \
	fi
endef

# The kernel of a lab's machines, 70 MB, only unpacked: installed, it would want an initramfs and a boot loader.
define download_kernel
	@name=$$(apt-cache depends -i linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: //p'); \
	if [ -n "$$name" ] && [ "$$(id -u)" = 0 ] && [ -z "$$(ls $(VENV)/kernel/*.deb 2>/dev/null)" ]; then \
		echo "== apt-get download $$name"; \
		mkdir -p $(VENV)/kernel && (cd $(VENV)/kernel && apt-get -qq -o APT::Sandbox::User=root download $$name) || true; \
	fi
endef

$(VENV)/.demo: setup.cfg
	$(call install_packages,$(DEMO_PACKAGES))
	@echo "== pip install into $(VENV): orch and what it needs, asyncssh, matplotlib, $(TORCH) (long)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --editable '.[lab,plots]'
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --progress-bar on $(TORCH)
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(call install_packages,$(TEST_PACKAGES))
	@echo "== pip install into $(VENV): pytest, hypothesis, ruff, mypy and their plugins"
	@$(BIN)/pip install --quiet --editable '.[test]'
	@touch $@

clean:
	-@$(ORCH) lab down 2>/dev/null; $(SHOTS) lab down 2>/dev/null; ORCH_PROJECT=$(DEMO)/scaling $(BIN)/orch lab down 2>/dev/null
	find orchestrator remote tests -name __pycache__ -prune -exec rm -rf {} +
	rm -rf $(VENV) $(DEMO) .kubernetes build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
