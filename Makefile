# The commands of the project. Nothing needs root or a running service; the first command makes .venv.
PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= dev
ARGS   ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# The demo needs the web console and none of the tools of development; it has its own small environment unless those are installed.
DEMO_VENV ?= .venv-demo
DEMO      := $(if $(wildcard $(STAMP)),$(VENV),$(DEMO_VENV))

# Every test process, and every program that a test or a benchmark starts, would compile Holdfast and the tests again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long check format bench bench-full simulate chaos constraints docs soak clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

# The stamp is written last, so an installation that broke off is made again.
define install
	@echo "Installing holdfast[$(2)] into $(1)"
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(2)]'
	@touch $@
endef

$(STAMP): pyproject.toml constraints.txt src/holdfast/_version.py
	$(call install,$(VENV),$(EXTRAS))

$(DEMO_VENV)/.installed: pyproject.toml constraints.txt src/holdfast/_version.py
	$(call install,$(DEMO_VENV),console)

demo: $(DEMO)/.installed ## run the demo: a shop, its failures, and what holds (ARGS="--seconds 20")
	@$(DEMO)/bin/holdfast demo $(ARGS)

test: $(STAMP) ## run the tests in three processes, without the long and the soak tests (ARGS="-k claim")
	@$(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

test-long: $(STAMP) ## run what make test leaves to CI: crash runs, killed processes, mutants, PostgreSQL 16, Apache Kafka
	@$(BIN)/python -m pytest -n 3 --dist worksteal -m "long and not soak" $(ARGS)

check: $(STAMP) ## check format, lint, types, import layers and spelling
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src

format: $(STAMP) ## format the code and fix what the linter can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## compare with peers and the bare database, in short (ARGS="--suite drain")
	@$(BIN)/python -m bench $(ARGS)

bench-full: $(STAMP) ## measure all of it, up to 90 minutes, into bench.json
	@$(BIN)/python -m bench --full --json bench.json $(ARGS)

simulate: $(STAMP) ## run the deterministic simulation (ARGS="--seeds 1000", "--seed 42", "--planted")
	@$(BIN)/python -m simulation $(ARGS)

chaos: $(STAMP) ## run the fault lab, about ten minutes, into chaos-report/ (ARGS="--seconds 120", "--only sqlite", "--list")
	@$(BIN)/python -m chaos $(ARGS)

constraints: ## write the newest versions of all dependencies into constraints.txt; then run the tests
	@rm -rf $(VENV)-new && $(PYTHON) -m venv $(VENV)-new
	@$(VENV)-new/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@grep '^#' constraints.txt > constraints.new
	@$(VENV)-new/bin/python -m pip freeze --exclude-editable --disable-pip-version-check >> constraints.new
	@mv constraints.new constraints.txt && rm -rf $(VENV)-new

docs: $(STAMP) ## build the documentation into site/, refusing broken links
	@$(BIN)/zensical build --strict --clean
	@echo "Documentation is in site/index.html"

soak: $(STAMP) ## run the full sizes and the long runs (hours may pass)
	@$(BIN)/python -m pytest -m soak --timeout 0 $(ARGS)

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) $(DEMO_VENV) build dist site chaos-report .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests docs bench chaos simulation -name __pycache__ -type d -prune -exec rm -rf {} +
