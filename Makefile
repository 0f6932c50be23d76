# SPDX-License-Identifier: Apache-2.0
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint bench coverage format clean
SHELL := /bin/bash
unexport PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTEST_ADDOPTS

PYTHON := .venv/bin/python
TESTS := tests/test_repo.py tests/unit tests/bpf tests/e2e
C_FILES = $(shell find bpf tests -name '*.[ch]' -not -path 'bpf/uapi/*')
SHELL_FILES = $(shell grep -rlI '^\#!/bin/.*sh$$' .ci tests ebpflb)

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: ## Build a small cluster out of namespaces and send real traffic through it (root)
	@.ci/setup demo
	@$(PYTHON) -m ebpflb.lab.demo

test: ## Run all tests; ARGS='-k name' goes to pytest (root)
	@.ci/setup test
	@$(PYTHON) -m pytest $(TESTS) $(ARGS)

lint: ## Check style, types, layers, spelling and scripts
	@.ci/setup lint
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/clang-format --dry-run -Werror $(C_FILES)
	.venv/bin/codespell
	shellcheck $(SHELL_FILES)
	.venv/bin/validate-pyproject pyproject.toml

bench: ## Measure speed and size; prints tables, takes minutes (root)
	@.ci/setup bench
	@$(PYTHON) -m tests.bench $(ARGS)

coverage: ## Run the unit tests under branch coverage; the model must be covered completely
	@.ci/setup lint
	@$(PYTHON) -m pytest -q --cov --cov-report=
	@.venv/bin/coverage report
	@.venv/bin/coverage report --include='ebpflb/model/*' --fail-under=100

format: ## Format Python and C
	@.ci/setup lint
	@.venv/bin/ruff check --fix
	@.venv/bin/ruff format
	@.venv/bin/clang-format -i $(C_FILES)

clean: ## Remove everything that the other targets made, .venv/ too
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf .coverage build dist *.egg-info
	@find . -name __pycache__ -prune -exec rm -rf {} +
