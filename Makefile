# Two commands do everything on a machine with Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
# Files in their own order: sorted by their number of tests, the slowest would come last and alone.
PYTEST := $(RUN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-long test-torch durations lint types hooks docs pages results-page reproduce-quick
.PHONY: benchmark peers clean

demo: $(VENV)/.installed
	$(RUN)/posterity demo demo

test: $(VENV)/.installed-test
	$(PYTEST) -m "not long"

test-long: $(VENV)/.installed-test
	$(PYTEST) -m long --junitxml=.pytest_cache/long.xml

# Networks of PyTorch modules, in an environment that has it.
test-torch: .torch-venv/.installed
	.torch-venv/bin/python -m pytest tests/networks/test_torch_graph.py tests/networks/test_torch_modules.py
	.torch-venv/bin/python examples/pytorch.py

# A run of the long tests tells .ci/share.py how to cut them into shares of about ten minutes.
durations: $(VENV)/bin/python
	$(RUN)/python .ci/share.py record .pytest_cache/long.xml

lint: $(VENV)/.installed-dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(RUN)/pyright

# From then on git runs the checks of style and types before each commit.
hooks: $(VENV)/.installed-dev
	$(RUN)/pre-commit install

docs: $(VENV)/.installed-docs results-page pages
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

# The lists of methods in README.md, docs/ and mkdocs.yml, from their cards, and their settings from their docstrings.
pages: $(VENV)/.installed
	$(RUN)/python -m posterity.cli.pages

# The pages of published results, of findings and of speed, from results/*.json.
results-page: $(VENV)/.installed
	$(RUN)/python -m posterity.studies.page results docs/results.md
	$(RUN)/python -m posterity.studies.questions.findings results docs
	$(RUN)/python benchmarks/page.py results docs/speed.md

# Every published experiment in its two-minute form; the full ones are `posterity reproduce NAME`.
DATA ?= $(or $(POSTERITY_DATA),../shared/data)
reproduce-quick: $(VENV)/.installed
	for name in $$($(RUN)/python -c "from posterity.studies.study import STUDIES; print(*STUDIES)"); do $(RUN)/posterity reproduce $$name --quick --data $(DATA) --out results-quick || exit 1; done

benchmark: $(VENV)/.installed .benchmark-venv/.installed
	status=0; for part in core samplers networks; do $(RUN)/python benchmarks/$$part.py || status=1; done; exit $$status

# Peers of the estimators that are no dependencies of ours, on the same rows.
peers: .peers-venv/.installed
	.peers-venv/bin/python benchmarks/estimators.py NGBoost CatBoost "CatBoost, own"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(RUN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(RUN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-test
	$(RUN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(RUN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	touch $@

# Other libraries, to be measured against: never in the environment of the package.
.benchmark-venv/.installed: benchmarks/requirements.txt
	$(PYTHON) -m venv .benchmark-venv
	.benchmark-venv/bin/python -m pip install -q -r $<
	touch $@

.peers-venv/.installed: benchmarks/peers.txt
	$(PYTHON) -m venv .peers-venv
	.peers-venv/bin/python -m pip install -q -r $<
	touch $@

# PyTorch, which the environment of the package does without, and laplace-torch to compare with.
.torch-venv/.installed: pyproject.toml constraints.txt tests/networks/laplace_torch.txt
	$(PYTHON) -m venv .torch-venv
	.torch-venv/bin/python -m pip install -q -c constraints.txt -e '.[test,torch]'
	.torch-venv/bin/python -m pip install -q --no-deps -r tests/networks/laplace_torch.txt
	touch $@

clean:
	rm -rf $(VENV) .benchmark-venv .peers-venv .torch-venv site .pytest_cache .ruff_cache demo
