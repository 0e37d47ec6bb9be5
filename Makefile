# make demo | test | test-fast | test-slow | test-all | web-test | site | regold | check | format | bench | mutants | fuzz | docs | dist | clean
# Everything is installed into .venv; a stamp file there keeps a second run from installing again.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The interpreter's own pip installs into the environment, which gets its own pip with the rest; where there is none, or an old one, venv makes one.
# Bytecode is made of what is imported, not of all that is installed.
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
OUTSIDE := import sys; from importlib.metadata import version; sys.exit(int(version("pip").split(".")[0]) < 23)

# The package is installed in place, so that sources edited later need no new install.
# Its one part in C is compiled by the install (hatch_build.py), and again where it has changed.
BUILT  := pyproject.toml constraints.txt hatch_build.py src/memsheet/allocator/compiled/play.c
CORE   := $(VENV)/.installed-core
DEV    := $(VENV)/.installed-dev
DOCS   := $(VENV)/.installed-docs
WEB    := $(VENV)/.installed-web
RELEASE := $(VENV)/.installed-release
# Python for browsers, as npm has it; its checksum is that of the registry.
PYODIDE_VERSION := 314.0.7
PYODIDE_SHA256  := 66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0
PYODIDE         := $(VENV)/pyodide-$(PYODIDE_VERSION)
CHROMIUM        ?= /usr/bin/chromium

# The production question, whole: does it train there? No: then which plans do, at what price, and what else would.
DEMO_JOB := llama-3-70b --gpus 8xA100-80GB --seq-len 2048
DEMO     := memsheet train $(DEMO_JOB) --engine fsdp2 --zero 3 --microbatch 4
PLANNED  := memsheet plan train $(DEMO_JOB) --global-batch 32
# One file a core at a time: files share what they trace. One thread each, so that cores are not fought over.
# In the order of tests/conftest.py, long files first; xdist would begin with those of most tests.
# Bytecode is kept, whatever the shell says: every process that tests start would compile the package anew.
PYTEST := HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-slow test-all web-test site regold check format bench mutants fuzz docs dist clean

help:
	@echo "make demo      does Llama-3 70B train on 8 A100? If not, what does? (the core only, no torch)"
	@echo "make test      the tests that need no GPU and no patience"
	@echo "make test-fast one case of each test that needs no torch: for the loop of work"
	@echo "make test-slow the slow sweeps alone: real code traced in every place, real steps on the processor"
	@echo "make test-all  both"
	@echo "make web-test  the page in a real browser, with a server and without one (installs Chromium where there is none)"
	@echo "make site      the page without a server, as a folder of files: site/"
	@echo "make regold    golden files and computed pages, written again; read the difference before you keep it"
	@echo "make check     ruff, mypy, import-linter"
	@echo "make format    let ruff rewrite the layout"
	@echo "make bench     accuracy, printed, and docs/accuracy.md and docs/speed.md written again (DATA=FILE: of other cases)"
	@echo "make mutants   one constant or operator of the formulas changed at a time: which do no tests notice? (SAMPLE=20 SEED=0 OF=formulas)"
	@echo "make fuzz      wrong questions of every kind, made again from their numbers: flags, files, models, Python, messages, snapshots, jobs, requests (SECONDS=60 each, FIRST=0)"
	@echo "make docs      the documentation, into docs/_build/html"
	@echo "make dist      wheel and sdist of the commit, built twice and compared, with checksums and a bill of materials (TRIED='python3.11 python3.13': installed there)"
	@echo "Choose an interpreter with PYTHON=python3.12; it must be 3.11 or newer."

# 10 (does not fit) and 11 (uncertain) are answers, not failures.
define asked
@echo '$$ $(1)'
@$(BIN)/$(1); code=$$?; echo "(exit code $$code: 0 fits, 10 does not fit, 11 uncertain)"; echo; \
case $$code in 0|10|11) ;; *) exit $$code ;; esac
endef

demo: export PYTHONDONTWRITEBYTECODE =
demo: $(CORE)
	$(call asked,$(DEMO))
	$(call asked,$(PLANNED))

test: $(DEV)
	$(PYTEST) -m "not slow and not gpu and not web"

test-fast: $(DEV)
	$(PYTEST) --quick -m "not slow and not gpu and not web" tests/unit tests/contracts tests/golden

test-slow: $(DEV)
	$(PYTEST) -m "slow and not gpu and not web"

test-all: $(DEV)
	$(PYTEST) -m "not gpu and not web"

web-test: $(WEB) $(PYODIDE)
	@test -x "$(CHROMIUM)" || apt-get install -y --no-install-recommends chromium fonts-dejavu-core
	CHROMIUM=$(CHROMIUM) PYODIDE=$(PYODIDE) HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m web tests/web

site: $(CORE) $(PYODIDE)
	$(BIN)/python -m memsheet.web.site site $(PYODIDE)
	@echo "site/index.html, for any file server: python3 -m http.server --directory site"

regold: $(DEV)
	HF_HUB_OFFLINE=1 $(BIN)/python tests/golden/regold.py

check: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# DATA: another file of measured cases (memsheet/cases/1); PAGE: the folder that docs/accuracy.md and its plot are written to.
PAGE   ?= docs
bench: export PYTHONDONTWRITEBYTECODE =
bench: $(DEV)
	$(BIN)/python benchmarks/accuracy.py $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/accuracy.py $(if $(DATA),--data $(DATA)) --page $(PAGE)
	$(BIN)/python benchmarks/speed.py --page $(PAGE)

# A sample of changed constants and operators, each run against the tests that import its module; OF: a folder below src/memsheet.
SAMPLE ?= 20
SEED   ?= 0
mutants: $(DEV)
	$(BIN)/python benchmarks/mutants.py --sample $(SAMPLE) --seed $(SEED) $(addprefix --of ,$(OF))

# Each kind for so long, from the question of number FIRST on; what is found is in faults.jsonl, and fails.
SECONDS ?= 60
FIRST   ?= 0
KINDS   := flags files models python messages snapshots jobs requests
fuzz: $(DEV)
	@failed=0; for kind in $(KINDS); do HF_HUB_OFFLINE=1 $(BIN)/python tests/security/fuzzing.py \
	  --seconds $(SECONDS) --first $(FIRST) --kinds $$kind || failed=1; done; exit $$failed

docs: $(DOCS)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# TRIED: interpreters that the wheel is installed with, each in an environment of its own.
TRIED ?=
dist: $(RELEASE)
	$(BIN)/python packaging/man_page.py
	$(BIN)/python packaging/release.py $(TRIED)

clean:
	rm -rf $(VENV) docs/_build site dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "memsheet needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "  hint: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12" >&2; exit 1; }
	@if $(PYTHON) -c '$(OUTSIDE)' 2>/dev/null; then \
	  $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $@ install --quiet --disable-pip-version-check --no-compile pip || { rm -rf $(VENV); exit 1; }; \
	else $(PYTHON) -m venv $(VENV); fi

$(CORE): $(BUILT) | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(DEV): $(BUILT) | $(BIN)/python
	$(PIP) -e '.[trace,web,mcp,dev]'
	@touch $(CORE) $@

$(RELEASE): $(BUILT) | $(BIN)/python
	$(PIP) -e '.[release]'
	@touch $(CORE) $@

$(WEB): $(BUILT) | $(BIN)/python
	$(PIP) -e '.[web,browser,dev]'
	@touch $(CORE) $@

$(PYODIDE): | $(BIN)/python
	cd $(VENV) && npm pack --silent pyodide@$(PYODIDE_VERSION)
	cd $(VENV) && echo "$(PYODIDE_SHA256)  pyodide-$(PYODIDE_VERSION).tgz" | sha256sum --check --quiet
	cd $(VENV) && tar xzf pyodide-$(PYODIDE_VERSION).tgz && rm pyodide-$(PYODIDE_VERSION).tgz && mv package pyodide-$(PYODIDE_VERSION)

$(DOCS): $(BUILT) | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $(CORE) $@
