# Every command a person needs; `make help` lists them.
# A Python compiled by hand, as pyenv does it, comes without profile-guided optimisation unless asked for and is slower by
# a fifth; the system's own is built with it. `make setup PYTHON=…` takes another.
PLAIN := import sys, sysconfig; sys.exit("--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")))
USABLE := import ensurepip, sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell python3 -c '$(PLAIN)' && /usr/bin/python3 -c '$(USABLE)' 2>/dev/null && echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-$(shell cat requirements.lock pyproject.toml | cksum | tr -d ' ')

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(STAMP) ## Prepare .venv with everything that the project needs

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing dependencies into $(VENV) with $$($(BIN)/python -VV | head -1) (about a minute the first time) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@rm -f $(VENV)/.stamp-* && touch $@

.PHONY: start
start: setup ## Set up, start the platform and let a first agent do a small task
	@exec $(BIN)/managed-agents demo --serve

.PHONY: up
up: setup ## Start the platform and nothing else
	@exec $(BIN)/managed-agents up

LEGACY := .venv-legacy/.stamp
NODE_MODULES := tests/clients/typescript/node_modules/.package-lock.json

$(LEGACY): tests/clients/legacy/requirements.lock
	@$(PYTHON) -m venv .venv-legacy
	@.venv-legacy/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(NODE_MODULES): tests/clients/typescript/package-lock.json | setup
	@cd tests/clients/typescript && PATH="$(abspath $(BIN)):$$PATH" npm ci --loglevel error --no-audit --no-fund --no-update-notifier

BROWSER := tests/clients/chromium/node_modules/.browser/chromium

$(BROWSER): tests/clients/chromium/package-lock.json tests/clients/chromium/unpack.mjs | setup
	@cd tests/clients/chromium && PATH="$(abspath $(BIN)):$$PATH" npm ci --ignore-scripts --loglevel error --no-audit --no-fund --no-update-notifier
	@mkdir -p $(@D) && PATH="$(abspath $(BIN)):$$PATH" TMPDIR="$(abspath $(@D))" node tests/clients/chromium/unpack.mjs
	@touch $@

.PHONY: clients
clients: $(LEGACY) $(NODE_MODULES) $(BROWSER) ## Prepare the published clients and the browser that the tests drive

FAILED := .pytest_cache/v/cache/lastfailed

.PHONY: test
test: setup clients lint ## Run every check and test
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not long" tests || { code=$$?; \
		test $$code -eq 1 && test $$(grep -c ': true' $(FAILED)) -le 3 || exit $$code; \
		echo "Once more, by itself, what failed beside others: on a busy machine it may be nothing but a time limit."; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m "not long" tests; }

.PHONY: test-unit
test-unit: setup ## Run the tests that need no server
	@$(BIN)/python -m pytest tests/unit

.PHONY: faults
faults: setup ## Kill and pause everything 200 times under 50 sessions, take each server away for a minute
	@$(BIN)/python -m pytest tests/faults tests/integration/sandbox/test_as_user.py --kills 200 --sessions 50 --outage 60 --work-items 1500

.PHONY: document
document: setup ## Try every bound of every field that the API document names, a few minutes
	@$(BIN)/python -m pytest tests/integration/gateway/test_document_holds.py --whole-document

.PHONY: bench
bench: setup ## Measure a platform of its own (ARGS="--runs 3", "--quick", "--growth")
	@$(BIN)/python -m bench $(ARGS)

.PHONY: lint
lint: setup ## Check style, imports and contracts
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache | tail -n 3
	@$(BIN)/buf lint

.PHONY: types
types: setup ## Check types
	@$(BIN)/basedpyright

.PHONY: fmt
fmt: setup ## Format the code
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format --quiet .

.PHONY: proto
proto: setup ## Regenerate gen/ from protos/
	@rm -rf gen/managed_agents && mkdir -p gen
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I protos --python_out=gen --grpc_python_out=gen --mypy_out=gen --mypy_grpc_out=gen $$(find protos -name '*.proto' | sort)
	@find gen/managed_agents -type d -exec touch {}/__init__.py \;

.PHONY: clean
clean: ## Remove what make and the tests made
	@rm -rf $(VENV) .venv-* .pytest_cache .ruff_cache .hypothesis .managed-agents
