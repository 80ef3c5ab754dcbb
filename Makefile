# Every target creates what it needs: the virtual environment comes first.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
LOCAL  := $(VENV)/.installed-local
DOCS   := $(VENV)/.installed-docs
NODES  ?= 20
# One more than the two cores that this is for: stories wait for kubectl and for intervals most of their time.
JOBS   ?= 3

MUTANTS ?= 100
CASES   ?= 1000
LIVES   ?= 20
SEED    ?= 0
BASE    ?= main

# uvloop swallows the timeout of a test that runs a loop of its own: then its worker ends instead.
HANGS  := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

# Tests that need neither root nor other programs.
ALONE  := "not kernel and not real and not runtime and not abuse and not clients and not yarn"

# Tests start some hundred processes: compiled once, each begins half a second of CPU earlier.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo demo-node up quick test test-oldest test-slow test-kernel test-clients test-real test-plugins test-reference test-lives test-requests test-runtime test-abuse test-yarn test-mutation coverage lint docs manifests images bench clean

help: ## show this text
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(LOCAL)

# What a cluster needs, without tools for developers: the first `make up` shows what it fetches.
$(LOCAL): pyproject.toml | $(BIN)/python
	@echo "Installing what a local cluster needs into $(VENV), once:"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[local]'
	@touch $@

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

demo: $(STAMP) ## a day of a cluster without and with co-location; prints a table, writes report.html
	$(BIN)/koordinator demo --figures docs/figures/demo.json

demo-node: $(STAMP) ## a service and batch on this machine, really run and measured (root); writes report-node.html
	$(BIN)/koordinator demo-node

up: $(LOCAL) ## a whole cluster in one process; kubectl works on it (NODES=20)
	$(BIN)/koordinator up --nodes $(NODES)

quick: $(STAMP) ## lint and the tests that matter for what changed since main, under a minute (BASE=main)
	$(BIN)/python -m tests.quick --base $(BASE)

test: $(STAMP) ## lint and all tests that need no root (JOBS=3 files at a time)
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -p tests.quick.seconds -m $(ALONE) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(HANGS)

test-oldest: ## all tests that need no root, with the oldest libraries that pyproject.toml admits (in .venv-oldest)
	$(PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct -e '.[dev]'
	.venv-oldest/bin/python -m pytest -m $(ALONE) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(HANGS)

test-slow: $(STAMP) ## the random searches again, the longest of them ten times as long
	KOORDINATOR_TEST_SEARCH=10 $(BIN)/python -m pytest -m "hypothesis and not kernel and not real and not runtime and not abuse and not yarn" -n $(JOBS) --timeout 1200

test-kernel: $(STAMP) ## tests on real cgroups (root): this machine's, then cgroup v2 in a small virtual machine
	$(BIN)/python -m pytest -m kernel -rs tests/kernel tests/e2e/test_process_node.py
	$(BIN)/python -m tests.kernel.vm

test-clients: $(STAMP) ## programs in Go (built where Go is): typed clients, also in Python, against `koordinator up`; packages of Kubernetes, the descheduler's plugins and Koordinator's functions against ours
	$(BIN)/python -m pytest -m clients -rs tests/e2e/test_typed_clients.py tests/api/test_like_kubernetes.py tests/descheduler/test_like_stock_plugins.py tests/reference

test-real: $(STAMP) ## tests and stories on a real Kubernetes (found, or built once where Go is: a quarter of an hour)
ifdef KOORDINATOR_TEST_KUBECONFIG
	$(BIN)/python -m pytest -rs tests/real
else
	$(BIN)/python -m tests.real.binaries
	KOORDINATOR_TEST_SERVERS=real $(BIN)/python -m pytest -m "not kernel" -rs tests/real tests/e2e tests/install/test_chart.py
	KOORDINATOR_TEST_SERVERS=real $(BIN)/python -m pytest -m kernel -rs tests/e2e/test_process_node.py
endif

test-plugins: $(STAMP) ## random cases through our stock plugins and kube-scheduler's own (built once where Go is) (CASES=1000, SEED=0)
	$(BIN)/python -m tests.real.plugins --cases $(CASES) --seed $(SEED)

test-reference: $(STAMP) ## random questions to Koordinator's own functions (Go, built once) and to ours, and whole scheduling cycles (AREAS=all, CASES=1000, SEED=0)
	$(BIN)/python -m tests.reference --cases $(CASES) --seed $(SEED) $(AREAS)
	$(BIN)/python -m tests.reference.cycles --cases $(CASES) --seed $(SEED)

test-lives: $(STAMP) ## random lives of workloads and pods under Kubernetes' controllers and scheduler and ours (LIVES=20 of each kind, SEED=0)
	$(BIN)/python -m tests.real.binaries
	$(BIN)/python -m tests.real.lives --cases $(LIVES) --seed $(SEED)

test-requests: $(STAMP) ## random requests to our API server and kube-apiserver (built once where Go is) (CASES=1000, SEED=0)
	$(BIN)/python -m tests.real.requests --cases $(CASES) --seed $(SEED)

test-runtime: $(STAMP) ## pods by a real containerd and runc, as their first instruction sees them (root; built once where Go is)
	$(BIN)/python -m tests.runtime.binaries || true
	$(BIN)/python -m tests.runtime.docker || true
	$(BIN)/python -m tests.real.binaries kubelet || true
	$(BIN)/python -m pytest -m runtime -rs tests/runtime

test-abuse: $(STAMP) ## damaged requests, kills, bombs, churn, in some 40 minutes (REQUESTS=, KILLS=, CHURN_MINUTES=, WATCHES=)
	$(BIN)/python -m pytest -m abuse -s tests/abuse

test-yarn: $(STAMP) ## tests on a real Hadoop YARN: ResourceManagers and NodeManagers on this machine (Java; fetched once by Maven)
	$(BIN)/python -m tests.yarn.hadoop.jars
	$(BIN)/python -m pytest -m yarn -rs tests/yarn

test-mutation: $(STAMP) ## random faults in decision modules, which their tests must find; records first what tests run (MUTANTS=100, SEED=, AGAIN=FILE)
	$(BIN)/python -m tests.mutation $(if $(AGAIN),--again $(AGAIN),--count $(MUTANTS) --seed $(SEED))

coverage: $(STAMP) ## which lines all tests run, as a report in build/coverage; gates nothing
	rm -rf build/coverage && mkdir -p build/coverage
	-COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	    $(BIN)/python -m coverage run -m pytest -m $(ALONE) \
	    -n $(JOBS) --dist loadfile --no-loadscope-reorder --timeout=400
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet
	$(BIN)/python -m coverage report --skip-covered --skip-empty --sort=cover > build/coverage/report.txt
	@head -40 build/coverage/report.txt; tail -4 build/coverage/report.txt; echo "all files: build/coverage/report.txt, lines: build/coverage/html/index.html"

lint: $(STAMP) ## format, style, types, import directions
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DOCS) ## the docs as a site with search, in build/docs; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/docs/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs"

manifests: $(STAMP) ## write what is generated in deploy/
	$(BIN)/python -m koordinator.install deploy

images: $(STAMP) ## koordlet's image without a registry (root, debootstrap), in build/images: for `ctr images import`, `docker load` (ARCHITECTURE=arm64: by emulation)
	$(BIN)/python -m tools.images build/images/koordlet$(addprefix -,$(filter-out amd64,$(ARCHITECTURE))).tar $(ARCHITECTURE)

bench: $(STAMP) ## every benchmark, one after the other
	$(BIN)/python -m benchmarks

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .venv-oldest .mypy_cache .ruff_cache .pytest_cache .hypothesis
