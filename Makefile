# `make demo` and `make test` do everything on a fresh machine: Python 3.11 or newer, make, and a network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STDLIB = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('stdlib'))")
# Debian's packages for the tests that need a real Slurm cluster and a real browser.
DEBIAN := slurm-wlm slurmdbd munge mariadb-server chromium chromium-driver
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)

.PHONY: demo test check soak system clean

demo: $(VENV)/ready data/text.parquet
	$(BIN)/runner launch experiments/backends.yaml
	$(BIN)/runner collect
	@echo; echo "The report:"; $(BIN)/runner report backends

# Two at a time, each with a cluster of its own: half of what the tests do is to wait.
test: $(VENV)/ready system check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# A study of 200 runs on the test cluster while faults strike at random: about a quarter of an hour on two cores.
soak: $(VENV)/ready system
	$(BIN)/python -m tests.faults.soak

check: $(VENV)/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The whole environment, pinned; made again when what it is made of changes. The CPU build of torch is
# pinned by constraints-cpu.txt; on a GPU machine install the package into an environment of yours instead.
$(VENV)/ready: pyproject.toml constraints-cpu.txt
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints-cpu.txt --editable ".[dev]"
	touch $@

# Real text without a download: the sources of Python's own standard library.
data/text.parquet: | $(VENV)/ready
	$(BIN)/runner data $(STDLIB) --out $@ --match '*.py' --exclude site-packages

# Installs Debian's packages where it may; where it may not, the tests that need them say so and are skipped.
system:
	@missing=""; for p in $(DEBIAN); do dpkg -s $$p >/dev/null 2>&1 || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  echo "installing$$missing"; \
	  { $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null \
	  || echo "could not install$$missing: tests that need them will be skipped"; \
	fi

clean:
	rm -rf $(VENV) data runs reports/build
