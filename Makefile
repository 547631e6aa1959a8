# make demo | make test | make test-all | make test-adapters | make clusters | make smoke | make docs; nothing else needs to be set up.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Each worker goes on with half of the tests, in order, and takes over from the other at the end.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# With byte code kept, checked signatures included, a suite that runs again starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

# Two workers on two cores: a second thread in each only waits for the first.
export OMP_NUM_THREADS := 1

.PHONY: setup test gate test-all test-adapters clusters demo docs smoke docs-findings docs-bibliography docs-picture lint bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[papers,dev]'
	touch $@

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Types are checked on a core that the tests leave free at their start and end.
test: setup
	$(MAKE) --jobs=2 --no-print-directory lint gate

gate: setup
	$(PYTEST) -m "not slow"

# Everything, with the shapes that signatures state checked at every call.
test-all: lint
	$(PYTEST) --shapes

# The trainers of others, with their own libraries: Lightning, transformers, accelerate, peft, notebooks.
test-adapters: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[papers,dev,lightning,huggingface,adapters]'
	$(PYTEST) tests/integrations tests/captures/test_scripts.py tests/captures/test_verdicts.py tests/reports/test_notebook.py tests/reports/test_faces.py

# A race on a Dask and on a Ray cluster, both started on this machine.
clusters: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[papers,dev,dask,ray]'
	$(BIN)/python examples/cluster.py dask
	$(BIN)/python examples/cluster.py ray

# diagnose leaves with 1 because the example is ill on purpose; treat must leave with 0.
demo: setup
	$(BIN)/theta0 diagnose examples/deep_sigmoid.py; test $$? -eq 1
	$(BIN)/theta0 treat examples/deep_sigmoid.py --out build/start.safetensors --html build/report.html
	@echo "The treated start is in build/start.safetensors, the report in build/report.html."

# The rules are the source of the findings' pages, the results' types that of the JSON schema; tests hold both to them.
docs-findings: setup
	mkdir -p build
	$(BIN)/python -m theta0.reports.finding_pages docs/findings
	$(BIN)/python -m theta0.reports.schema > build/schema.json && mv build/schema.json src/theta0/reports/diagnosis.schema.json

docs-bibliography: setup
	$(BIN)/python -m theta0.reports.bibliography > docs/bibliography.md

# The picture of a report that the README shows, from the page that `make demo` writes.
docs-picture: demo
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=1 --window-size=1100,1050 \
		--screenshot=docs/report.png file://$(CURDIR)/build/report.html

# The site, in build/site. Strict: a broken link or a page without a place is an error. The gallery's scripts run.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[papers,dev,docs]'
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict --quiet

# The package as a user gets it: a source archive, the wheel built from it, alone in a fresh environment, outside the checkout.
smoke: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build
	rm -rf build/dist build/smoke && mkdir -p build/smoke/outside
	$(BIN)/python -m build --outdir build/dist . > build/smoke/build.log
	$(BIN)/python -m venv build/smoke/venv
	build/smoke/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build/dist/*.whl
	cp tests/release/smoke.py build/smoke/outside
	cd build/smoke/outside && OMP_NUM_THREADS=1 ../venv/bin/python -P smoke.py ../../dist/*.tar.gz

bench: setup
	$(BIN)/python benchmarks/bench_lcw.py --out benchmarks/results/lcw.json
	$(BIN)/python benchmarks/bench_diagnose.py --out benchmarks/results/diagnose.json

clean:
	rm -rf .venv build
