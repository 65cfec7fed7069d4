# Two commands do everything on a machine with Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin
PYTEST := $(RUN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test test-long lint types benchmark clean

demo: $(VENV)/.installed
	$(RUN)/python examples/demo.py

test: $(VENV)/.installed-test
	$(PYTEST) -m "not long"

test-long: $(VENV)/.installed-test
	$(PYTEST) -m long

lint: $(VENV)/.installed-dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(RUN)/pyright

benchmark: $(VENV)/.installed
	$(RUN)/python benchmarks/core.py

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

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache demo
