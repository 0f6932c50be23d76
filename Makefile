# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: lock help demo check test fuzz test-cluster test-cni test-matrix test-kernels conformance lint bench image release cluster pictures coverage format clean
SHELL := /bin/bash
unexport PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTEST_ADDOPTS
# What depends on the order of hashes is the same each time; make fuzz plays with other orders, too.
export PYTHONHASHSEED ?= 0

PYTHON := .venv/bin/python
C_FILES = $(shell find bpf tests -name '*.[ch]' -not -path 'bpf/uapi/*')
SHELL_FILES = $(shell find .ci tests ebpflb -type f ! -name '*.pyc' -exec awk \
	'FNR == 1 && /^\#!\/bin\/.*sh$$/ { print FILENAME } { nextfile }' {} +)

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## Build a small cluster of network namespaces and send real traffic through it (root)
	@.ci/setup demo
	@$(PYTHON) -m ebpflb.lab.demo

check: lint coverage ## Run what needs no root: lint, types, unit tests, the model's coverage

test: ## Run unit tests, the programs in this kernel, agents in a lab, a browser; ARGS='-k name' (root)
	@.ci/setup test
	@.ci/test host $(ARGS)

fuzz: ## Look for faults with fresh seeds, ten minutes; ARGS='packets --seconds 60' (root)
	@.ci/setup fuzz
	@$(PYTHON) -m tests.fuzz $(ARGS)

test-cluster: ## Test image and chart in a real Kubernetes, which is built first (root)
	@.ci/setup test-cluster
	@$(PYTHON) -m tests.cluster build
	@.ci/test cluster $(ARGS)

test-cni: ## Test one CNI in a real Kubernetes; CNI=flannel-vxlan, or another of docs/compatibility.md (root)
	@.ci/setup test-cni
	@$(PYTHON) -m tests.cluster build
	@$(PYTHON) -m pytest tests/cni --cni "$(CNI)" $(ARGS)

test-matrix: ## Test agents in every mode (XDP, DSR, scheduler, ejection), hours; ARGS='--only dsr=all' (root)
	@.ci/setup test
	@$(PYTHON) -m tests.e2e.modes $(ARGS)

test-kernels: ## Load and test the programs on Linux 5.10 to the newest in qemu; ARGS='6.1 --long' (root)
	@.ci/setup kernels
	@$(PYTHON) -m tests.kernels $(ARGS)

conformance: ## Run the tests that prove kube-proxy's rules; write docs/development/conformance.md (root)
	@.ci/setup test-cluster
	@$(PYTHON) -m tests.cluster build
	@$(PYTHON) -m pytest --renew-conformance $$($(PYTHON) -m tests.conformance) $(ARGS)

lint: ## Check style, types, layers, spelling and scripts
	@.ci/setup lint
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/clang-format --dry-run -Werror $(C_FILES)
	.venv/bin/codespell
	.venv/bin/oxlint ebpflb/kubectl/ui/static
	shellcheck $(SHELL_FILES)
	.venv/bin/validate-pyproject pyproject.toml

bench: ## Measure speed and size; prints tables, takes minutes (root)
	@.ci/setup bench
	@$(PYTHON) -m tests.bench $(ARGS)

image: ## Build the container image with buildah or docker; IMAGE=name:tag
	@.ci/image $(IMAGE)

lock: ## Lock what the image installs from PyPI to the newest versions, each file by its hash
	@.ci/setup release
	@.ci/lock

release: ## Build sdist, wheel, chart and checksums in dist/; publish nothing; URL=, IMAGE=: of a real release
	@.ci/setup release
	@.ci/release $(URL) $(IMAGE)

cluster: ## Start a real two-node Kubernetes with ebpflb installed, for experiments (root)
	@.ci/setup test-cluster
	@$(PYTHON) -m tests.cluster up --ebpflb $(ARGS)

pictures: ## Redraw docs/pictures: commands under real traffic in a lab, the page in a browser (root)
	@.ci/setup test
	@$(PYTHON) -m tests.pictures
	@$(PYTHON) -m tests.ui.pictures

coverage: ## Run the unit tests; the model must be fully covered, every branch
	@.ci/setup lint
	@$(PYTHON) -m pytest -q --cov --cov-report=
	@.venv/bin/coverage report --fail-under=100 || { \
		.venv/bin/coverage report | \
		sed -n 's/^ebpflb/again: make coverage  # not covered: ebpflb/p'; exit 1; }

format: ## Format Python and C
	@.ci/setup lint
	@.venv/bin/ruff check --fix
	@.venv/bin/ruff format
	@.venv/bin/clang-format -i $(C_FILES)

clean: ## Remove everything that the other targets created, including .venv/
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf .coverage build dist *.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +
