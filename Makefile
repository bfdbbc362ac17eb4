# `make`, `make demo` and `make test` work on a fresh machine with Python 3.11 or newer, make, and network access.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STDLIB = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('stdlib'))")
# Debian packages for the tests that need a real Slurm cluster, a real browser, and TeX (192 MB).
DEBIAN := slurm-wlm slurmdbd munge mariadb-server chromium chromium-driver \
	texlive-latex-recommended lmodern poppler-utils
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)

.PHONY: ready demo test tools suite check docs pictures published soak system clean

# Plain `make`: the environment, with the runner command in .venv/bin.
ready: $(VENV)/ready

demo: $(VENV)/ready data/text.parquet
	$(BIN)/runner launch experiments/backends.yaml
	$(BIN)/runner collect
	@echo; echo "The report:"; $(BIN)/runner report backends

# Two things at once, twice: what one waits for, a network or a cluster, leaves a core to the other.
test:
	+@$(MAKE) --no-print-directory -j 2 tools
	+@$(MAKE) --no-print-directory -j 2 check suite

tools: $(VENV)/ready system

# More workers than cores, each with its own Slurm cluster: the tests spend much of their time waiting.
# Python may keep what it compiles, whatever the caller's environment says: each worker starts hundreds of processes.
suite: $(VENV)/ready
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 6

# Runs a study of 200 runs on the test cluster under random faults; takes about 15 minutes on two cores.
soak: $(VENV)/ready system
	$(BIN)/python -m tests.faults.soak

# The pages that are made of the code: the database's comments, questions with their answers, and versions of torch.
docs: $(VENV)/ready
	$(BIN)/runner schema database > docs/schema.md
	$(BIN)/python docs/questions.py
	$(BIN)/python docs/versions.py

# The published reports, from the records that they carry, after a change to what pages say.
published: $(VENV)/ready
	$(BIN)/python docs/published.py

# The README's picture, of the published report as it is.
pictures: $(VENV)/ready system
	$(BIN)/python docs/pictures.py

check: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The complete, pinned environment; rebuilt when its inputs change. constraints-cpu.txt pins the CPU build of
# torch; on a GPU machine, install the package into your own environment instead.
$(VENV)/ready: pyproject.toml constraints-cpu.txt
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints-cpu.txt --editable ".[dev]"
	touch $@

# Real text without a download: the sources of Python's standard library.
data/text.parquet: | $(VENV)/ready
	$(BIN)/runner data $(STDLIB) --out $@ --match '*.py' --exclude site-packages

# Installs the Debian packages if permitted; otherwise the tests that need them are skipped with a message.
system:
	@missing=""; for p in $(DEBIAN); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  echo "installing$$missing"; \
	  { $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null \
	  || echo "could not install$$missing: tests that need them will be skipped"; \
	fi

clean:
	rm -rf $(VENV) data runs reports/build
