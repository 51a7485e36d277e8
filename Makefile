# make quickstart   sets up .venv with what tokentar needs, then writes shards of real text and trains on two processes
# make test         adds the tools of development, then runs the whole gate: ruff, mypy, pytest, the docs
# make docs         builds docs/ into build/docs
PYTHON ?= python3
BIN := .venv/bin
WORK := build/quickstart
STDLIB = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

.PHONY: quickstart test format clean

quickstart: .venv/core
	$(BIN)/python recipes/train_tokenizer.py --input "$(STDLIB)/*.py" --vocab_size 4096 --output $(WORK)/tokenizer
	$(BIN)/tokentar write --config recipes/quickstart.yaml --input "$(STDLIB)/*.py" "$(STDLIB)/[!s]*/**/*.py" --overwrite
	$(BIN)/tokentar show $(WORK)/shards --rows 1
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 -m tokentar.train --config recipes/quickstart.yaml

test: .venv/dev build/packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile
	$(MAKE) docs

.PHONY: docs
docs: .venv/dev
	$(BIN)/python -m sphinx -W --keep-going --quiet docs build/docs

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and by its exact version: what depends on it would otherwise bring another build
.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[report]'
	touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[report,dev]'
	touch $@

# the folders by the names that they have when installed, for mypy
build/packages:
	mkdir -p $@/tokentar
	ln -s ../../../shard_writer ../../../train ../../../train/tokentar/__init__.py ../../../train/tokentar/__main__.py ../../../train/tokentar/py.typed $@/tokentar

clean:
	rm -rf .venv build dist *.egg-info
