# For those who like make; each target is one command of scripts/.

.PHONY: help install check lint types test docs

help:  ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

install:  ## neusight and its tools, into the Python at hand
	python3 -m pip install 'setuptools>=77' && python3 -m pip install -e '.[test]'

check:  ## lint, types and tests
	scripts/check

lint:  ## ruff
	scripts/check lint

types:  ## mypy
	scripts/check types

test:  ## pytest
	scripts/check tests

docs:  ## the reference of the Python API, into build/docs
	scripts/docs
