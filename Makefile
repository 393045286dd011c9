# Everything runs in a virtual environment that make creates: Python 3.11+, make and git are all it needs.

PYTHON ?= python3
JOBS ?= 2
EXAMPLES ?= 20000
SECONDS ?= 600
SEED ?= 0
RULES ?=
fuzz-rules: SECONDS = 1800

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
PEERS := .venv-peers

# The onnx package ships the graph of this network; models/network.py gives it weights.
DEMO := densenet121
INPUT ?=
OUT ?= models/build/demo.onnx
MODEL ?=
OPTIONS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv browser demo models test docs pages pictures fuzz fuzz-hostile fuzz-load fuzz-rules lint types format bench bench-all bench-forms bench-judge bench-latency bench-macs bench-onnxsim bench-peers bench-scale clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## create .venv and install onnxopt with its development tools

# Installed again only when the dependencies may have changed; the package itself is used in place.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	  "onnxopt needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12")'
	@echo "Setting up $(VENV), once ..." >&2
	@$(PYTHON) -m venv $(VENV) || { echo "hint: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # dependency groups
	@$(BIN)/python -m pip install --quiet -e '.[dask]' --group dev
	@$(BIN)/python -m compileall -q onnxopt
	@touch $@

demo: $(READY) ## optimize a real network and show what changed (INPUT=in.onnx OUT=out.onnx)
	@mkdir -p "$$(dirname "$(OUT)")"
	@input="$(INPUT)"; \
	if [ -z "$$input" ]; then \
	  input=models/build/$(DEMO).onnx; $(BIN)/python models/network.py $(DEMO) $$input; \
	fi; \
	$(BIN)/onnxopt optimize "$$input" "$(OUT)" && $(BIN)/onnxopt stats "$$input" "$(OUT)"

models: $(READY) ## build the sample models into models/build/
	@$(BIN)/python models/build.py

browser: ## find Chromium, which tests open the report page in, or install it (Debian, as root)
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  command -v $$name > /dev/null && exit 0; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "Installing Chromium, once ..." >&2; \
	  apt-get update -qq > /dev/null \
	    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium > /dev/null && exit 0; \
	fi; \
	echo "no browser for the tests of the report page: install Chromium (Debian: sudo apt install chromium)" >&2; exit 1

# Without a browser its tests fail and say so; the others run.
test: $(READY) ## run the test suite (JOBS=2)
	@$(MAKE) --no-print-directory --silent browser || true
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal  # tests are rewritten once

docs: $(READY) ## build the documentation into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo build/site/index.html

pages: $(READY) ## open report pages of many models in Chromium: none blank, cut off or with an error (MODEL=folder)
	@$(BIN)/python models/build.py > /dev/null
	@$(BIN)/python -m tests.cli.report.pages $(if $(MODEL),"$(MODEL)",models/build) $(OPTIONS)

pictures: $(READY) ## make the pictures of the documentation in Chromium (docs/images/)
	@$(BIN)/python -m tests.docs.pictures

fuzz: $(READY) ## optimize many random graphs, and what the suite has a sample of (EXAMPLES=20000)
	@ONNXOPT_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest tests/test_fuzz.py tests/graph tests/cases/test_mutants.py tests/cases/test_odd_operands.py tests/cases/test_levels.py tests/test_operators.py -q
	@ONNXOPT_FUZZ=1 $(BIN)/python -m pytest tests/cli/test_optimize.py -k packaged -q

fuzz-hostile: $(READY) ## run 5,800 hostile files and calls, and end commands at 100 moments (JOBS=2 SEED=0)
	@seq 0 $$(( $(JOBS) - 1 )) | xargs -I{} -P $(JOBS) $(BIN)/python -m tests.hostile --seed $(SEED) --part {}/$(JOBS)
	@$(BIN)/python -m tests.hostile.odd_calls 500 --seed $(SEED) | tail -1
	@ONNXOPT_MOMENTS=100 $(BIN)/python -m pytest tests/hostile/test_faults.py -q -n $(JOBS)

fuzz-load: $(READY) ## load, optimize and save what a fuzzer makes, guided by coverage (SECONDS=600)
	@$(BIN)/python -m pip install --quiet atheris 2> /dev/null || echo "no atheris here" >&2
	@$(BIN)/python -m tests.hostile.load_fuzzer --seconds $(SECONDS)

fuzz-rules: $(READY) ## run each rule and graph pass alone on 200 models that nobody wrote (RULES="name …" SECONDS=1800 SEED=0)
	@$(BIN)/python -m tests.rules $(RULES) --seconds $(SECONDS) --jobs $(JOBS) --first $(SEED)
	@[ -n "$(RULES)" ] || $(BIN)/python -m tests.rules.chains --seconds $(SECONDS) --first $(SEED)

lint: $(READY) ## check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## check types, as they are on Linux, macOS and Windows
	@for platform in linux darwin win32; do \
	  $(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform || exit 1; \
	done

format: $(READY) ## fix style and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## time long chains, and start-up against load and save (MODEL=in.onnx)
	@$(BIN)/python benchmarks/chain.py
	@$(BIN)/python benchmarks/chain.py --verify --nodes 2000 20000 --runs 2
	@$(BIN)/python benchmarks/partition.py
	@$(BIN)/python benchmarks/startup.py $(if $(MODEL),"$(MODEL)")

bench-all: $(READY) $(PEERS)/.installed ## run all tables, for hours, and write docs/benchmarks.md (MODEL=folder OPTIONS=--sparse)
	@$(BIN)/python benchmarks/page.py $(if $(MODEL),--models $(MODEL)) $(OPTIONS)

bench-judge: $(READY) ## break results on purpose, and count what verification finds (MODEL=folder)
	@$(BIN)/python benchmarks/judge.py --jobs $(JOBS) $(if $(MODEL),--models $(MODEL))

bench-onnxsim: $(READY) $(PEERS)/.installed ## time against onnxsim, installed in .venv-peers (MODEL=in.onnx)
	@$(BIN)/python benchmarks/against_onnxsim.py $(if $(MODEL),"$(MODEL)")

bench-macs: $(READY) $(PEERS)/.installed ## compare MACs with onnx-tool, installed in .venv-peers (MODEL=in.onnx)
	@$(BIN)/python benchmarks/against_onnx_tool.py $(MODEL)

bench-peers: $(READY) $(PEERS)/.installed ## nodes, time and speed beside the other optimizers; is a result slower? (MODEL=folder OPTIONS="--keep DIR")
	@$(BIN)/python benchmarks/peers.py $(MODEL) $(OPTIONS)

bench-latency: $(READY) ## how fast results run at -O2, -O3 and for the target, beside the others, worst first (MODEL=folder OPTIONS="--dims FILE --keep DIR")
	@$(BIN)/python benchmarks/latency.py $(MODEL) $(OPTIONS)

bench-forms: $(READY) ## measure what forms cost in onnxruntime, and write docs/forms.md (OPTIONS="--onnxruntime FOLDER …")
	@$(BIN)/python benchmarks/forms.py $(OPTIONS)

bench-scale: $(READY) ## one table: large graphs, commands on them, weights of 20 GiB, beside cp and onnxruntime (OPTIONS=--sparse)
	@$(BIN)/python benchmarks/scale.py $(OPTIONS)

$(PEERS)/.installed: benchmarks/peers.txt
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet -r benchmarks/peers.txt
	@touch $@

clean: ## remove everything that make made, the virtual environments too
	rm -rf models/build build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache $(VENV) $(PEERS)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
