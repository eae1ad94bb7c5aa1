# Two commands on a fresh machine do everything: `make demo` and `make test`.
#
#   PYTHON           the interpreter that the environment is made from (3.11 or newer)
#   TORCH_INDEX_URL  package index for a CPU build of torch (see pytorch.org); empty = the default build
#   PYTEST_ARGS      passed to pytest:  make test PYTEST_ARGS="tests/device_sdk -x"
#   WORKERS          processes that run the tests [2]; 0: none beside pytest's own, for a debugger
#   FAULTS_ARGS      promises that `make test-faults` tries, and how long:  FAULTS_ARGS="S3 S8 --fuzz-minutes 10 --soak-minutes 30"
#   BENCH            which measurements `make bench` runs (default: all);  BENCH_ARGS: e.g. --quick

PYTHON ?= python3
TORCH_INDEX_URL ?=
PYTEST_ARGS ?=
WORKERS ?= 2
FAULTS_ARGS ?=
BENCH ?=
BENCH_ARGS ?=

VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: help demo test test-all platforms test-kotlin test-android test-app test-arm apk test-faults lint format bench

help:
	@echo "make demo          package a small network, serve it, adapt it to three simulated devices (about 2 minutes)"
	@echo "make test          the quick tests of Python; PYTEST_ARGS: only these"
	@echo "make test-android  Kotlin's tests: 5 minutes, and a JDK and Maven"
	@echo "make test-app      runs the Android app on the JVM; needs a JDK, Maven and aapt2"
	@echo "make apk           a signed debug APK of the app, without Android's SDK; needs aapt2, zipalign and apksigner"
	@echo "make test-arm      the device SDK on an emulated ARM processor; needs Debian's packages"
	@echo "make test-all      all tests of both languages, the slow ones as well, as CI does"
	@echo "make test-faults   the 18 promises, tried with real faults (8 minutes); FAULTS_ARGS: only these, or for longer"
	@echo "make lint          ruff, mypy, import arrows"
	@echo "make format        let ruff format and fix"
	@echo "make bench         all measurements, or BENCH=end-to-end; BENCH_ARGS=--quick"

demo: $(INSTALLED)
	$(VENV)/bin/pathweave demo

test: MARKED := not slow
ifeq ($(PYTEST_ARGS),)
test-all: platforms
endif
test test-all: $(INSTALLED)
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "$(MARKED)" $(PYTEST_ARGS)

# What is not Python on this processor, two at a time: Maven's steps are one after the other, QEMU runs one core.
platforms: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 --output-sync=target test-kotlin test-arm

test-kotlin:
	@android_demo/test.sh
	@android_demo/test.sh app
	@android_demo/apk.sh

test-android:
	@android_demo/test.sh

test-app:
	@android_demo/test.sh app

apk:
	@android_demo/apk.sh

test-arm: $(INSTALLED)
	@tests/arm/run.sh

test-faults: $(INSTALLED)
	$(VENV)/bin/python -m pytest tests/faults
	$(VENV)/bin/python -m benchmarks.faults $(FAULTS_ARGS)

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(INSTALLED)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(INSTALLED)
	@set -e; names="$(BENCH)"; \
	test -n "$$names" || names=$$($(VENV)/bin/python -m benchmarks list | cut -d' ' -f1); \
	for name in $$names; do $(VENV)/bin/python -m benchmarks $$name $(BENCH_ARGS); done; \
	$(VENV)/bin/python -m benchmarks report

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Pathweave needs Python 3.11 or newer; '$(PYTHON)' is" \
			"$$($(PYTHON) --version 2>/dev/null || echo not there). Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
ifeq ($(TORCH_INDEX_URL),)
	@echo "Making $(VENV). torch's default build is downloaded: about 3 GB, 6 GB once installed."
	@echo "A CPU build is about 200 MB: set TORCH_INDEX_URL to its index (see pytorch.org)."
else
	@echo "Making $(VENV). torch is downloaded from TORCH_INDEX_URL (a CPU build: about 200 MB), the rest is about 150 MB."
endif
	$(PYTHON) -m venv $(VENV)
ifneq ($(TORCH_INDEX_URL),)
	$(VENV)/bin/python -m pip install torch torchvision --index-url "$(TORCH_INDEX_URL)"
endif
	$(VENV)/bin/python -m pip install --editable '.[dev]'
	@touch $@
