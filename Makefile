# Everything that this repository builds, from a clean clone to a graded class.
# `make help` lists the targets. Works with GNU make 3.81 (macOS) and newer.

SHELL := /bin/sh
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

ifneq ($(words $(CURDIR)),1)
$(error This folder's path has a space in it, which make can't handle: move or clone the course to a path without one)
endif

VENV ?= .venv
PY := $(VENV)/bin/python
STEP := @tools/step
# For steps that run beside the book, whose progress the terminal shows: BESIDE=1 prints only their end.
STEP_BESIDE = @STEP_BRIEF=$(BESIDE) tools/step
STAMPS := _build/.stamps
SITE := _build/html/index.html
CLASS := _build/class

# Programs started from here find the environment's own commands and Jupyter kernels first.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export JUPYTER_PREFER_ENV_PATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without compiled modules in __pycache__, each test process and each page would compile all again.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.PHONY: all plan help setup model labs book pdf gettext release grade summary lab bench budgets test test-all records lint gpu clean distclean FORCE

# ---------------------------------------------------------------- dependencies

files = $(sort $(shell find $(1) -type f ! -name '*.pyc' ! -name '.*' ! -path '*/.ipynb_checkpoints/*' 2>/dev/null))

PACKAGE := $(call files,course_pkg)
PAGES := $(call files,book) $(wildcard exercises/*/*.ipynb) _config.yml _toc.yml
ASSIGNMENTS := $(sort $(patsubst solutions/%/,%,$(dir $(wildcard solutions/*/*.ipynb))))
SOURCES := $(call files,solutions) nbgrader_config.py

# Deleting a file makes no other file newer, so make also remembers the lists of files:
# $(call list,NAME,FILES) rewrites _build/.stamps/NAME.list only if the list has changed.
list = $(shell mkdir -p $(STAMPS) && printf '%s\n' $(2) >$(STAMPS)/$(1).new.$$$$ && \
  if cmp -s $(STAMPS)/$(1).new.$$$$ $(STAMPS)/$(1).list; then rm $(STAMPS)/$(1).new.$$$$; \
  else mv $(STAMPS)/$(1).new.$$$$ $(STAMPS)/$(1).list; fi)
ifneq ($(filter-out help clean distclean lint lab,$(or $(MAKECMDGOALS),all)),)
$(call list,book,$(PACKAGE) $(PAGES))
$(call list,grade,$(PACKAGE) $(SOURCES))
endif

# Outputs that you delete by hand are built again.
FORCE: ;
missing = $(if $(wildcard $(1)),,FORCE)
# An environment stops working if its folder moves or its Python is removed.
VENV_LOST := $(shell $(PY) -c '' 2>/dev/null && [ "$$(cat $(VENV)/.place 2>/dev/null)" = "$(CURDIR)" ] || echo FORCE)
MODEL_LOST := $(shell [ "$$(sed -n 1p $(STAMPS)/model 2>/dev/null)" = "cache: $$COURSE_CACHE $$XDG_CACHE_HOME" ] && \
  [ -f "$$(sed -n 2p $(STAMPS)/model)/manifest.json" ] || echo FORCE)

# A target named on the command line prints where its result is.
SAY := $(MAKECMDGOALS)
say = @$(if $(filter $@,$(SAY)),echo "$(1)",:)

# STRICT=1 makes every warning of the book an error, as in .ci/run. Otherwise only a page that can't
# be built is one.
STRICT ?=

# ---------------------------------------------------------------- the main job

# For `make` alone, the steps to come are listed first, so that it can say how long they take.
ifeq ($(or $(MAKECMDGOALS),all),all)
export COURSE_PLAN := $(CURDIR)/_build/logs/plan
all: plan
plan:
	@mkdir -p _build/logs; rm -f $(COURSE_PLAN).done; \
	  $(MAKE) --no-print-directory -n book 2>/dev/null | tools/plan >$(COURSE_PLAN)
endif

# Each part is tried even if another failed; the summary names what failed, and so does the exit code.
# The exercises and the class are made beside the book.
all: $(VENV)/.package ## set up, build the book, release the exercises, grade the sample class
	@$(MAKE) --no-print-directory -k -j 2 book release grade SAY= BESIDE=1 && status=0 || status=$$?; \
	  tools/summary $(SITE) $(CLASS) $$status; exit $$status

help: ## list these targets
	@echo 'make             $(shell sed -n 's/^all:.*## //p' Makefile)'
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | grep -v '^all' | \
	  awk -F '	' '{ printf "make %-11s %s\n", $$1, $$2 }'

# ---------------------------------------------------------------- environment and model

setup: $(VENV)/.package ## make .venv and install requirements.txt into it
	@echo 'setup    ready: source $(VENV)/bin/activate, then course doctor'

# pip itself, setuptools and wheel come first, so that a source package builds with them. pip would
# compile the modules on one core, which takes half of its time. Some packages hold files that are not
# for this Python, so compileall's exit code says nothing. Tests and the folders of single models, a third
# of all code, are left out: a module that somebody imports is compiled then.
# The torch step adds packages that torch's metadata requires and requirements.txt can't pin:
# none for a CPU build, NVIDIA's libraries for the CUDA build.
$(VENV)/.lock: requirements.txt $(VENV_LOST)
	@tools/make-venv $(VENV)
	$(STEP) pip "pip, setuptools and wheel" "pip failed for the reason above; fix it and run make again" \
	  $(PY) -m pip install $$(grep -E '^(pip|setuptools|wheel)==' requirements.txt)
	$(STEP) packages "$$(grep -c '==' requirements.txt) packages of requirements.txt" "pip failed for the reason above; fix it and run make again" \
	  $(PY) -m pip install --no-compile --no-deps --no-build-isolation -r requirements.txt
	$(STEP) compile "their modules, on every core" "" sh -c '$(PY) -m compileall -q -j 0 -x "/(tests?|testing|models)/" $(VENV)/lib || :'
	$(STEP) torch "torch, with what its build asks for" "pip failed for the reason above; fix it and run make again" \
	  $(PY) -m pip install -c requirements.txt $$(grep '^torch==' requirements.txt)
	@echo "$(CURDIR)" >$(VENV)/.place
	@touch $@

$(VENV)/.package: pyproject.toml $(VENV)/.lock
	$(STEP) course "course_pkg and the command course" "pip failed for the reason above; fix it and run make again" \
	  $(PY) -m pip install --no-deps --no-build-isolation --editable .
	@touch $@

model: $(STAMPS)/model ## prepare the model in its cache folder ($COURSE_CACHE)
	$(call say,model    $$(sed -n 2p $(STAMPS)/model))

$(STAMPS)/model: $(call files,course_pkg/lm) $(VENV)/.lock $(MODEL_LOST) | $(VENV)/.package
	@mkdir -p $(STAMPS)
	$(STEP) model "SmolLM2-135M-Instruct in the cache" "run \`$(VENV)/bin/course doctor\` to see what is missing" \
	  $(VENV)/bin/course model
	@echo "cache: $$COURSE_CACHE $$XDG_CACHE_HOME" >$@
	@$(PY) -c 'from course_pkg.lm.smollm2 import cached_folder; print(cached_folder())' >>$@

gpu: $(VENV)/.package ## add flash-attn, on a machine with CUDA and nvcc (see requirements-gpu.txt)
	@command -v nvcc >/dev/null || { echo 'gpu: nvcc is not on the PATH: install a CUDA toolkit of the version that torch was built for, then run make gpu again' >&2; exit 1; }
	$(STEP) gpu "flash-attn" "flash-attn did not compile: requirements-gpu.txt says what it needs" \
	  $(PY) -m pip install --no-deps --no-build-isolation -r requirements-gpu.txt

# ---------------------------------------------------------------- book, exercises, grades

book: $(STAMPS)/book ## run every page and build the site (STRICT=1: warnings are errors)
	$(call say,book     $(SITE))

labs: $(STAMPS)/labs ## build what runs in the reader's browser (needs npm; without it the book has no labs)

# Where they could not be built, the next make tries again; the stamp changes only with what there is.
$(STAMPS)/labs: $(call files,book/_labs) tools/build-labs $(call missing,_build/labs/dist/built.txt)
	@mkdir -p $(STAMPS)
	@tools/build-labs $(if $(STRICT),--strict)
	@if [ -f _build/labs/dist/built.txt ]; then cp _build/labs/dist/built.txt $@; \
	  elif ! grep -qx none $@ 2>/dev/null; then echo none >$@; fi

# A build that failed reads every page again next time, and runs those that failed: Sphinx passes over
# a page whose doctree it has, even if there were warnings.
$(STAMPS)/book: $(PACKAGE) $(PAGES) $(STAMPS)/book.list $(STAMPS)/labs $(VENV)/.lock $(call missing,$(SITE)) | $(VENV)/.package $(STAMPS)/model
	$(STEP) book "$(SITE)" "the log has the reason, and _build/html/reports the tracebacks; then run make again" \
	  tools/build-book $(VENV)/bin/jupyter-book $(if $(STRICT),-W -n)
	@touch $@

pdf: book ## print the whole book as _build/course.pdf (needs Chromium)
	$(STEP) pdf "_build/course.pdf" "the log names the page" $(PY) tools/book_pdf.py
	@sed -n 's/^note: /pdf      /p' "$${STEP_LOGS:-_build/logs}/pdf.log"

gettext: book ## extract the text of every page for translators
	$(STEP) gettext "_build/gettext" "the log names the page" $(PY) tools/translatable.py

# Each assignment is released only when its source has changed, and one at a time, because
# all of them write to the same gradebook.
define RELEASE
RELEASED += $(STAMPS)/release-$(1)
$(STAMPS)/release-$(1): $(call files,solutions/$(1)) nbgrader_config.py $(VENV)/.lock $(call missing,exercises/$(1)) | $(2) $(VENV)/.package
	@mkdir -p $(STAMPS)
	$(STEP_BESIDE) release "exercises/$(1)" "nbgrader could not release solutions/$(1); the log names the notebook and cell" \
	  $(VENV)/bin/course release $(1)
	@touch $$@
endef
RELEASED :=
$(foreach name,$(ASSIGNMENTS),$(eval $(call RELEASE,$(name),$(lastword $(RELEASED)))))

# A students' copy of the course has no solutions/: nothing to release, and nothing to grade.
release: $(RELEASED) ## make the students' notebooks in exercises/ from solutions/
	$(call say,release  $(or $(addprefix exercises/,$(ASSIGNMENTS)),skipped: there is no solutions/ here))

grade: $(if $(ASSIGNMENTS),$(STAMPS)/grade) ## grade the sample class: four students, from full marks to a broken file
	$(if $(ASSIGNMENTS),$(call say,grade    $(CLASS)),@echo 'grade    skipped: there is no solutions/ here')

# If this machine can't grade, `course sample-class` says why, writes no grades and ends with 3.
# There is then no stamp, so the next make tries again.
$(STAMPS)/grade: $(PACKAGE) $(SOURCES) $(STAMPS)/grade.list $(VENV)/.lock $(call missing,$(CLASS)/grades.csv) | $(VENV)/.package $(RELEASED) $(STAMPS)/model
	$(STEP_BESIDE) grade "the sample class" "run \`$(VENV)/bin/course doctor\` to see what is missing" \
	  sh -c '$(VENV)/bin/course sample-class || [ $$? -eq 3 ]'
	@if [ -f $(CLASS)/grades.csv ]; then touch $@; fi

# ---------------------------------------------------------------- working on the course

lab: $(VENV)/.package ## open JupyterLab with the course
	@$(PY) -m jupyterlab --notebook-dir=. $(if $(filter 0,$(shell id -u)),--allow-root)

bench: $(VENV)/.package | $(STAMPS)/model ## compare the speed of course_pkg with other libraries
	@$(PY) -m benchmarks

# Two processes with one thread each, because more threads slow each other down.
TESTS := env OMP_NUM_THREADS=1 $(PY) tools/run_tests.py
# What computes by kernels that torch chooses by the CPU's instructions.
NUMERIC := $(addprefix tests/,adapters attention lm parity quantization)

test: $(VENV)/.package | $(STAMPS)/model ## run the tests (PYTEST="-m 'not slow' -x" to choose)
	@$(TESTS) $(PYTEST)

test-all: $(VENV)/.package | $(STAMPS)/model ## run every test, the numeric ones with each kind of CPU instructions
	@$(TESTS) --exhaustive $(PYTEST)
	$(if $(PYTEST),,@$(TESTS) --other-cpu-instructions $(NUMERIC))

budgets: $(VENV)/.package ## print what the last build and tests took, beside what they may take
	@$(PY) tools/budgets.py

records: $(VENV)/.package | $(STAMPS)/model ## list recorded experiments whose code has changed, and repeat a short row of each
	@env OMP_NUM_THREADS=1 $(PY) book/experiments/confirm.py --run

lint: $(VENV)/.package ## check style with ruff, and spelling with codespell
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m codespell_lib

clean: ## remove what was built; keeps exercises/, .venv and the model
	@rm -rf _build .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	@find . -name .ipynb_checkpoints -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv too
	@rm -rf $(VENV) course_pkg.egg-info
