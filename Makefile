# `make lab` opens JupyterLab, `make test` runs the tests; both set .venv up first where need be.
# PYTHON=python3.12 chooses an interpreter, HFTA_NB_NO_BROWSER=1 leaves the browser tests out, WORKERS=4 runs the tests
# in four processes, AVX2=1 as on a processor without AVX-512.

# The environment is installed without bytecode, and the tests start a hundred processes: where this variable is set, as
# in many containers, each of them would compile torch and all else anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
NOTEBOOK := notebooks/01_quickstart.ipynb
# AVX2=1: as on a processor with AVX2 and without AVX-512, torch's kernels, oneDNN's and this package's own.
ifdef AVX2
export ATEN_CPU_CAPABILITY := avx2
export ONEDNN_MAX_CPU_ISA := AVX2
export HFTA_NB_NATIVE_MARCH := x86-64-v3
endif
CODE := $(wildcard hfta_nb tests benchmarks notebooks docs .ci)
NOTEBOOKS := $(wildcard notebooks/*.ipynb)
NBVAL := --nbval --nbval-cell-timeout=500 -p tests.pictures $(addprefix --nbval-sanitize-with=,$(wildcard notebooks/sanitize.cfg))
WORKERS ?= 2
PYTEST_ARGS ?=
# OMP_NUM_THREADS: with torch's default pool a busy machine of two cores stalls (the threads spin at a barrier); tests
# that are about threads choose for themselves.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=$(WORKERS)
# In the order of collection, which begins with the browser (tests/tiers.py). Importing nbval takes each process seconds.
TESTS := $(PYTEST) --dist loadgroup --no-loadscope-reorder -p no:nbval tests
# Belongs to the lock's torch (a test compares them).
TORCHVISION := torchvision==0.28.0
# Checks the types of the front end. It runs on the Node.js that Playwright brings, as the front end's tests do, and comes
# from npm's registry by JupyterLab's own client; so does axe-core, by which the browser tests look for barriers.
TYPESCRIPT := 7.0.2
TSC := $(VENV)/typescript-$(TYPESCRIPT)
AXE := 4.14.1
AXE_CORE := $(VENV)/axe-core-$(AXE)
NODE = PATH="$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages/playwright/driver):$$PATH"
# The oldest release of Optuna that pyproject.toml allows, and the last of its major version: both have to do.
OPTUNA4 ?= 'optuna==4.*'
TRACKERS := wandb trackio brotli gradio_client orjson pillow python-multipart websockets
# Where Sphinx and what it needs lie, beside the environment, which `make lab` and `make test` need not wait for.
DOCS := $(VENV)/docs
BROWSER := $(if $(HFTA_NB_NO_BROWSER),,chromium $(AXE_CORE)/installed)
# What the package's own kernels are compiled with where the sanitizers watch them; torch's memory is watched as well.
SANITIZERS := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
KERNEL_TESTS := $(wildcard tests/core/test_own_*.py) $(addprefix tests/core/test_,$(addsuffix .py,conv images native norm product rows))

.PHONY: help lab test nbval-pytest test-all test-share checks-all lint types front format nbval nbval-all pytest pytest-all sanitize zoo optuna4 trackers wheels docs \
	coverage chromium lock clean venv notebooks coverage-page performance-page

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

lab: venv ## open JupyterLab at the quickstart notebook
	@echo "starting JupyterLab at $(NOTEBOOK): the browser opens, and the address is in the lines below"
	$(BIN)/python -m jupyterlab --LabApp.default_url=/lab/tree/$(NOTEBOOK) $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_ARGS)

test: venv $(BROWSER) lint ## lint, types, the quickstart, and the tests: one row of each long table
	@$(MAKE) --no-print-directory --jobs 2 types nbval-pytest

# The tests wait for browsers and processes a fifth of their time: there is room for mypy beside them.
nbval-pytest:
	@$(MAKE) --no-print-directory nbval
	@$(MAKE) --no-print-directory pytest

test-all: docs checks-all pytest-all zoo trackers sanitize ## lint, types, all notebooks, every row of every test, and sanitizers

test-share: venv $(BROWSER) ## one eighth of what `make test` leaves out; SHARE=3/8 says which
	$(TESTS) -m long --share $(or $(SHARE),0/8) $(PYTEST_ARGS)

# Side by side: none of these makes use of two processors on its own.
checks-all: venv
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint types nbval-all

lint: venv ## ruff's rules and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: venv front ## mypy, strict, and tsc for the front end
	nice $(BIN)/mypy

front: venv $(TSC)/installed ## tsc, strict, for the front end
	$(NODE) node $(TSC)/node_modules/typescript/bin/tsc

$(TSC)/installed: NPM = typescript@$(TYPESCRIPT)
$(AXE_CORE)/installed: NPM = axe-core@$(AXE)
$(TSC)/installed $(AXE_CORE)/installed: | venv
	rm -rf $(@D)
	mkdir $(@D)
	cd $(@D) && touch yarn.lock && $(NODE) YARN_NODE_LINKER=node-modules YARN_ENABLE_TELEMETRY=0 \
		../bin/jlpm add --exact $(NPM) >install.log || { cat install.log; exit 1; }
	touch $@

pytest: venv $(BROWSER) ## the tests of `make test`; PYTEST_ARGS="-k name"
	$(TESTS) -m "not long" $(PYTEST_ARGS)

pytest-all: venv $(BROWSER) ## every row of every test; PYTEST_ARGS="-k name"
	$(TESTS) $(PYTEST_ARGS)

coverage: venv $(BROWSER) ## what the tests of `make test` run through
	$(TESTS) -m "not long" --cov --cov-report=term $(PYTEST_ARGS)

# The environment has no torchvision: the one of the package index is often built for another torch. Here it lies in a
# folder of its own, and only its models, which are plain Python, are used.
zoo: venv ## torchvision's models, which the other tests skip
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --upgrade --target $(VENV)/zoo $(TORCHVISION)
	PYTHONPATH=$(VENV)/zoo $(PYTEST) -p tests.contract.zoo.operators -k torchvision \
		tests/contract/test_zoo.py tests/core/test_constructors.py $(PYTEST_ARGS)

# The environment has the newest release. This one lies in a folder of its own, with what it alone needs.
optuna4: venv ## the tests of searches with Optuna 4
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $(VENV)/optuna4 $(OPTUNA4)
	PYTHONPATH=$(VENV)/optuna4 $(PYTEST) tests/search $(PYTEST_ARGS)

# Tools that are large, and what the tests of their callbacks need of their requirements.
trackers: venv ## the tests of callbacks for Weights & Biases and Trackio
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $(VENV)/trackers $(TRACKERS)
	PYTHONPATH=$(VENV)/trackers $(PYTEST) -p no:nbval tests/core/test_fit.py $(PYTEST_ARGS)

# Zig's C compiler takes 400 MB: it lies in a folder of its own.
wheels: venv ## the wheels, into dist: for any platform, and with compiled kernels for Linux and macOS
	$(BIN)/python -m pip install --quiet --no-compile --upgrade --target $(VENV)/zig ziglang
	PYTHONPATH=$(VENV)/zig $(BIN)/python .ci/wheels.py dist

docs: venv $(DOCS)/installed ## the documentation site, into build/site
	PYTHONPATH=$(CURDIR):$(DOCS) OMP_NUM_THREADS=1 $(BIN)/python -m docs._site build/site

# The stamp is written last, so that an install that was interrupted is done again.
$(DOCS)/installed: requirements-docs.lock | venv
	rm -rf $(DOCS)
	$(BIN)/python -m pip install --quiet --no-deps --no-compile --target $(DOCS) --requirement requirements-docs.lock
	touch $@

nbval: venv ## the quickstart: run it, and compare its outputs with those saved
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(NOTEBOOK) $(NBVAL)

nbval-all: venv ## all notebooks
	$(PYTEST) --dist loadfile $(NOTEBOOKS) $(NBVAL)

# What a sanitizer says before it ends the process goes to the file descriptor, which pytest would swallow.
sanitize: venv ## tests of the C kernels under AddressSanitizer and UBSan (GCC on Linux)
	libraries="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)"; \
	OMP_NUM_THREADS=1 CC=gcc HFTA_NB_NATIVE_FLAGS="$(SANITIZERS)" LD_PRELOAD="$$libraries" ASAN_OPTIONS=detect_leaks=0 \
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) -p no:nbval $(KERNEL_TESTS) -m "not long" --capture=sys $(PYTEST_ARGS)

chromium: venv ## find a Chromium for the browser test, or install one
	$(BIN)/python tests/browser/chromium.py --install

notebooks: venv ## run the notebooks and keep their outputs in them
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.store_widget_state=False notebooks/*.ipynb
	rm -rf notebooks/hfta_runs

coverage-page: venv ## write docs/coverage.md: what is fused, and how
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.coverage_page

performance-page: venv ## write docs/performance.md and its figures from the benchmarks' results
	$(BIN)/python -m benchmarks.performance_page

format: venv ## put the code into ruff's format and mend what it can
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

lock: ## resolve the newest versions that pyproject.toml allows and write requirements.lock
	python=$$(bash .ci/venv.sh --python) && $$python .ci/lock.py

venv: ## create .venv at the locked versions; does nothing where that is done
	@bash .ci/venv.sh $(VENV)

clean: ## remove .venv and everything that a tool left behind
	rm -rf $(VENV) build dist htmlcov artifacts .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
