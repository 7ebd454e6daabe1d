# SPDX-License-Identifier: MIT
# zrecord.  `make help` lists the targets.

BUILD   ?= build
PREFIX  ?= /usr/local
VENV    ?= .venv
PYTHON  := $(VENV)/bin/python
CC      ?= gcc
AR      ?= ar
VERSION := $(shell sed -n 's/^\#define ZR_VERSION_STRING "\(.*\)"/\1/p' engine/zrecord.h)

# Flavours live in their own folders: make BUILD=build/asan SANITIZE=address,undefined
SANITIZE ?=
OPT      ?= -O2
WARN     := -Wall -Wextra -Wshadow -Wvla -Wmissing-prototypes -Wstrict-prototypes
CFLAGS   ?= -g
ZR_CFLAGS := -std=gnu11 $(OPT) $(WARN) -fPIC -fvisibility=hidden -pthread \
             -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -MMD -MP
ZR_LDFLAGS := -pthread
ifneq ($(SANITIZE),)
ZR_CFLAGS  += -fsanitize=$(SANITIZE) -fno-sanitize-recover=undefined -fno-omit-frame-pointer
ZR_LDFLAGS += -fsanitize=$(SANITIZE)
endif

# Debian 12 names msgpack-c's pkg-config file msgpack, later ones msgpack-c.
MSGPACK := $(shell pkg-config --exists msgpack-c 2>/dev/null && echo msgpack-c || echo msgpack)
pkg_cflags = $(shell pkg-config --cflags $(1) 2>/dev/null)
pkg_libs   = $(shell pkg-config --libs $(1) 2>/dev/null)
ENGINE_PKGS := libzstd $(MSGPACK) jansson libdeflate liblzma
FS_PKGS     := fuse3 jansson liburing libdeflate
ENGINE_LIBS  = $(call pkg_libs,$(ENGINE_PKGS)) -lbz2

EXAMPLE    := engine/example.c
ENGINE_SRC := $(filter-out $(EXAMPLE),$(wildcard engine/*.c))
FS_SRC     := $(wildcard fs/*.c)
TOOLS_SRC  := $(wildcard tools/*.c)
UNIT_SRC   := $(wildcard tests/unit/test_*.c)
FUZZ_SRC   := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC  := $(wildcard tests/bench/*.c)

objs = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
ENGINE_OBJ := $(call objs,$(ENGINE_SRC))
FS_OBJ     := $(call objs,$(FS_SRC))
TOOLS_OBJ  := $(call objs,$(TOOLS_SRC))
UNIT_BIN   := $(patsubst tests/unit/%.c,$(BUILD)/unit/%,$(UNIT_SRC))
FUZZ_BIN   := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRC))
BENCH_BIN  := $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(BENCH_SRC))

.PHONY: all lib programs python venv setup check check-unit check-py check-mount check-interop check-fuzz \
        check-asan check-tsan check-valgrind setup-tests demo bench fuzz lint format wheel install uninstall clean help
.DELETE_ON_ERROR:

all: lib programs ## build the library and the programs
lib: $(BUILD)/libzrecord.a $(BUILD)/libzrecord.so $(BUILD)/zrecord.pc
programs: $(BUILD)/zrecord $(BUILD)/zrecordfs

$(BUILD)/obj/engine/%.o: engine/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) $(call pkg_cflags,$(ENGINE_PKGS)) $(CFLAGS) -c -o $@ $<
$(BUILD)/obj/fs/%.o: fs/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine $(call pkg_cflags,$(FS_PKGS)) $(CFLAGS) -c -o $@ $<
$(BUILD)/obj/tools/%.o: tools/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine $(call pkg_cflags,jansson) $(CFLAGS) -c -o $@ $<

$(BUILD)/libzrecord.a: $(ENGINE_OBJ)
	rm -f $@ && $(AR) rcs $@ $^
$(BUILD)/libzrecord.so: $(ENGINE_OBJ)
	$(CC) $(ZR_LDFLAGS) $(LDFLAGS) -shared -Wl,-soname,libzrecord.so.0 -o $@ $^ $(ENGINE_LIBS)
$(BUILD)/zrecord.pc: Makefile engine/zrecord.h
	@mkdir -p $(@D)
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' \
	  'Name: zrecord' 'Description: compact containers of machine-learning records' 'Version: $(VERSION)' \
	  'Libs: -L$${libdir} -lzrecord' 'Libs.private: -lbz2 -pthread' \
	  'Requires.private: $(ENGINE_PKGS)' 'Cflags: -I$${includedir}' > $@

# The programs carry the engine inside, so a copied binary works.
$(BUILD)/zrecord: $(TOOLS_OBJ) $(BUILD)/libzrecord.a
	$(CC) $(ZR_LDFLAGS) $(LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(call pkg_libs,jansson)
$(BUILD)/zrecordfs: $(FS_OBJ) $(BUILD)/libzrecord.a
	$(CC) $(ZR_LDFLAGS) $(LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(call pkg_libs,$(FS_PKGS))

# Unit tests see private headers and the objects of fs except its main.
$(BUILD)/unit/%: tests/unit/%.c $(BUILD)/libzrecord.a $(filter-out %/main.o,$(FS_OBJ))
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine -Ifs $(call pkg_cflags,check $(FS_PKGS) $(ENGINE_PKGS)) $(CFLAGS) -o $@ $< \
	  $(filter-out %/main.o,$(FS_OBJ)) $(BUILD)/libzrecord.a $(ZR_LDFLAGS) $(call pkg_libs,check $(FS_PKGS)) $(ENGINE_LIBS)
$(BUILD)/fuzz/%: tests/fuzz/%.c tests/fuzz/replay.c $(BUILD)/libzrecord.a $(filter-out %/main.o,$(FS_OBJ))
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine -Ifs $(call pkg_cflags,$(FS_PKGS)) $(CFLAGS) -o $@ $< tests/fuzz/replay.c \
	  $(filter-out %/main.o,$(FS_OBJ)) $(BUILD)/libzrecord.a $(ZR_LDFLAGS) $(call pkg_libs,$(FS_PKGS)) $(ENGINE_LIBS)
$(BUILD)/bench/%: tests/bench/%.c $(BUILD)/libzrecord.a
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine $(CFLAGS) -o $@ $< $(BUILD)/libzrecord.a $(ZR_LDFLAGS) $(ENGINE_LIBS)

-include $(shell find $(BUILD)/obj $(BUILD)/unit $(BUILD)/fuzz $(BUILD)/bench -name '*.d' 2>/dev/null)

# ------------------------------------------------------------------ set-up, tests, packaging
# What the rules above read from pkg-config is fixed when make starts, so whatever needs set-up
# does that first and then calls make again.  Tests run one after the other under any -j.

AGAIN  := $(MAKE) --no-print-directory
PIP    := $(PYTHON) -m pip --disable-pip-version-check
PYTEST := $(PYTHON) -m pytest -q -p no:cacheprovider

PYTHON_SRC := $(wildcard python/*.toml python/*.py python/*.in python/src/*.[ch] python/zrecord/*.py* python/zrecord/*/*.py*) \
              python/zrecord/py.typed engine/zrecord.h
PYTHON_INSTALLED := $(VENV)/.zrecord

$(VENV)/bin/python:
	@VENV=$(VENV) tools/setup.sh
setup venv: ## install what is missing: Debian packages (as root) and .venv
	@tools/setup.sh
setup-tests: ## the same, and the frameworks that only the tests need (torch, jax: 1.5 GB)
	@tools/setup.sh tests

python: $(PYTHON_INSTALLED) ## install the Python package into .venv
$(PYTHON_INSTALLED): $(PYTHON_SRC) $(BUILD)/libzrecord.a | $(filter $(VENV)/%,$(PYTHON))
	$(PIP) install -q --no-build-isolation --no-deps --force-reinstall ./python
	@touch $@

demo: setup ## set up, build, and show what zrecord does on real data
	@$(AGAIN) -s all python
	@tools/demo.sh

check: setup-tests ## set up, build, and run every test
	@$(AGAIN) all
	@$(AGAIN) check-unit
	@$(AGAIN) check-fuzz
	@$(AGAIN) check-py

check-unit: $(UNIT_BIN) ## unit tests of engine and mount (Check)
	@status=0; for test in $(UNIT_BIN); do \
	  if $$test >$$test.log 2>&1; then echo "$${test##*/}: $$(tail -n 1 $$test.log)"; \
	  else cat $$test.log; status=1; fi; done; exit $$status

check-fuzz: $(FUZZ_BIN) ## replay the fuzzers' corpora
	@for fuzz in $(FUZZ_BIN); do $$fuzz tests/fuzz/corpus/$${fuzz##*/fuzz_} || exit 1; done

# Each target explores on its own from the corpus; what it finds is kept in build/fuzz-live.
FUZZ_SECONDS ?= 60
fuzz: $(FUZZ_SRC) ## let clang's libFuzzer explore each target for FUZZ_SECONDS
	@$(call need,clang); for source in $(FUZZ_SRC); do \
	  name=$${source#tests/fuzz/fuzz_}; name=$${name%.c}; \
	  live=build/fuzz-live/$$name; mkdir -p $$live/found; \
	  clang -std=gnu11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
	    -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -pthread -Iengine -Ifs \
	    $(call pkg_cflags,$(FS_PKGS) $(ENGINE_PKGS)) -o $$live/fuzz $$source $(ENGINE_SRC) \
	    $(filter-out fs/main.c,$(FS_SRC)) $(call pkg_libs,$(FS_PKGS)) $(ENGINE_LIBS) && \
	  $$live/fuzz -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -artifact_prefix=$$live/ \
	    -print_final_stats=1 $$live/found tests/fuzz/corpus/$$name || exit 1; done

check-py: all python ## everything under tests/py: package, tools, mounts, interchange
	@$(PYTEST) tests/py

check-mount: all python ## only the tests of real mounts
	@$(PYTEST) tests/py/test_mount*.py

# SOAK is for more arguments: make soak SOAK="--option transport=uring"
soak: all python ## ten minutes of mixed load on a mount, every byte compared
	@$(PYTHON) tests/soak/soak.py --build $(BUILD) $(SOAK)
.PHONY: soak

check-interop: all python ## only the interchange with loaderx 2.0.0
	@$(PYTEST) tests/py/test_interop*.py

check-longrun: all python ## 24 epochs of a loader that is disturbed all the time (a short form is in check)
	@$(PYTHON) tests/py/longrun.py --epochs 24
.PHONY: check-longrun

check-asan: setup-tests ## unit tests, fuzz replay, tools and mounts under AddressSanitizer and UBSan
	@$(AGAIN) BUILD=build/asan SANITIZE=address,undefined OPT=-O1 all
	@$(AGAIN) BUILD=build/asan SANITIZE=address,undefined OPT=-O1 check-unit
	@$(AGAIN) BUILD=build/asan SANITIZE=address,undefined OPT=-O1 check-fuzz
	@$(AGAIN) python
	@ZRECORD_BUILD=build/asan ASAN_OPTIONS=detect_leaks=1 \
	  $(PYTEST) $(wildcard tests/py/test_tool*.py tests/py/test_mount*.py)

# Without address-space randomisation: older ThreadSanitizers refuse the addresses of newer kernels.
check-tsan: setup ## unit tests under ThreadSanitizer
	@$(AGAIN) BUILD=build/tsan SANITIZE=thread OPT=-O1 all
	@setarch -R $(AGAIN) BUILD=build/tsan SANITIZE=thread OPT=-O1 check-unit

# An optional tool that is missing is a SKIP with the reason, and a failure when CI=true.
need = command -v $(1) >/dev/null || { echo "SKIP $@: $(1) is not installed"; [ "$$CI" != true ]; exit; }

# Each test is a process of its own and fails with 9; leaks are check-asan's to find.  valgrind knows
# no SIGBUS from files cut short while mapped and brings its own malloc: tests about those stay out.
NOT_UNDER_VALGRIND := $(addprefix $(BUILD)/unit/test_,archive_nomem gather io nomem packed prefetch reader writer)
check-valgrind: $(UNIT_BIN) ## unit tests under valgrind
	@$(call need,valgrind); status=0; for test in $(filter-out $(NOT_UNDER_VALGRIND),$(UNIT_BIN)); do \
	  CK_TIMEOUT_MULTIPLIER=20 valgrind -q --error-exitcode=9 $$test || status=1; done; exit $$status

# The suite has an environment of its own, for the peers it compares with; build/bench-results gets
# the figures.  BENCH is for more arguments: make bench BENCH="--only 'token Dense' --backends zrecord,limit"
BENCH_PYTHON := build/bench-venv/bin/python
BENCH_RUN    := $(BENCH_PYTHON) tests/bench/run.py
bench-setup: setup
	@$(AGAIN) -s lib $(BUILD)/bench/limit_worker $(BUILD)/bench/lanes_limit
	@tests/bench/setup.sh $(PYTHON)
.PHONY: bench-setup bench-quick bench-samplers bench-readme bench-loaders

bench: bench-setup ## all tables and plots, beside every peer: an hour or more
	@$(BENCH_RUN) --size full $(BENCH)

bench-quick: bench-setup ## the same with fewer records and rounds: under 10 minutes on 2 cores
	@$(BENCH_RUN) --size quick $(BENCH)

bench-samplers: bench-setup ## samplers, block shuffle and its quality, beside NumPy, loaderx and celeres-dl
	@$(BENCH_PYTHON) tests/bench/samplers.py $(BENCH)
	@$(BENCH_PYTHON) tests/bench/shuffle_quality.py

# LOADERS is for more arguments: make bench-loaders LOADERS="--only vision --peers zrecord,loaderx"
bench-loaders: setup ## the DataLoader tables, beside loaderx, torch and grain: 10 minutes
	@$(AGAIN) -s lib $(BUILD)/bench/limit_worker
	@tests/bench/setup.sh $(PYTHON) loaders
	@build/loaders-venv/bin/python tests/bench/loader_bench.py --size $(or $(SIZE),full) $(LOADERS)

bench-loaders-readme: ## put the DataLoader tables of the last run into README.md
	@build/loaders-venv/bin/python tests/bench/loader_bench.py --readme README.md
.PHONY: bench-loaders-readme

# ARCHIVES is for more arguments: make bench-archives ARCHIVES="--only save --rounds 3"
bench-archives: setup ## the archive tables, beside tensordict, torch.save and safetensors: 10 minutes
	@$(AGAIN) -s lib $(BUILD)/bench/archive_limit
	@tests/bench/setup.sh $(PYTHON) archives
	@build/archives-venv/bin/python tests/bench/archive_bench.py --limit $(BUILD)/bench/archive_limit $(ARCHIVES)
.PHONY: bench-archives

bench-archives-readme: ## put the archive tables of the last run into README.md
	@build/archives-venv/bin/python tests/bench/archive_bench.py --readme README.md
.PHONY: bench-archives-readme

bench-mount: bench-setup $(BUILD)/bench/mount_reader ## mounts, beside every other way to mount the same records
	@$(AGAIN) -s all
	@$(BENCH_PYTHON) tests/bench/mount_bench.py $(BENCH)
.PHONY: bench-mount

bench-readme: ## put the tables of the last run into README.md
	@$(PYTHON) tests/bench/report.py build/bench-results/bench.json --readme README.md

bench-mount-readme: ## put the mount table of the last run into README.md
	@$(PYTHON) tests/bench/mount_report.py build/bench-results/mount.json --readme README.md
.PHONY: bench-mount-readme

TIDY_CHECKS := clang-analyzer-*,bugprone-*,-bugprone-easily-swappable-parameters,-bugprone-reserved-identifier,$\
-bugprone-narrowing-conversions,-bugprone-implicit-widening-of-multiplication-result,$\
-bugprone-assignment-in-if-condition,-bugprone-suspicious-string-compare,-clang-analyzer-valist.Uninitialized,$\
-clang-analyzer-optin.portability.UnixAPI,$\
-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling

lint: lint-tidy lint-cppcheck ## clang-tidy and cppcheck over engine, mount and tools
.PHONY: lint-tidy lint-cppcheck
lint-tidy:
	@$(call need,clang-tidy); clang-tidy --quiet --warnings-as-errors='*' --checks='$(TIDY_CHECKS)' \
	  $(ENGINE_SRC) $(EXAMPLE) $(FS_SRC) $(TOOLS_SRC) -- -std=gnu11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Iengine \
	  $(call pkg_cflags,$(FS_PKGS) $(ENGINE_PKGS)) 2>/dev/null
lint-cppcheck:
	@$(call need,cppcheck); cppcheck --quiet --error-exitcode=1 --inline-suppr \
	  --enable=warning,performance,portability --suppress=normalCheckLevelMaxBranches \
	  -D_GNU_SOURCE -Iengine engine fs tools

FORMAT_STYLE := {BasedOnStyle: LLVM, IndentWidth: 4, ColumnLimit: 100, BreakBeforeBraces: Linux, $\
AllowShortFunctionsOnASingleLine: None, IndentCaseLabels: false, SortIncludes: false}
format: ## clang-format over the C sources
	@$(call need,clang-format); clang-format -i --style='$(FORMAT_STYLE)' \
	  $(wildcard engine/*.[ch] fs/*.[ch] tools/*.[ch] tests/unit/*.[ch] tests/fuzz/*.[ch] tests/bench/*.[ch])

# The wheel carries the engine: an environment with nothing but NumPy must do.  Without debug
# information, which would hold the paths of the machine that built it.
wheel: ## a wheel in dist/, tried in an environment with only NumPy
	rm -rf dist build/wheel
	LDFLAGS=-Wl,-S $(PIP) wheel -q --no-deps --no-build-isolation -w dist ./python
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip --disable-pip-version-check install -q numpy
	build/wheel/bin/python -m pip --disable-pip-version-check install -q --no-deps dist/*.whl
	cd build/wheel && bin/python -c "import numpy, zrecord; \
	  w = zrecord.Dense.create('store', numpy.dtype('i4'), (3,)); \
	  w.append(numpy.arange(12, dtype='i4').reshape(4, 3)); w.close(); \
	  assert zrecord.open('store')[2].tolist() == [6, 7, 8]"
	@ls -l dist

BINDIR = $(DESTDIR)$(PREFIX)/bin
MANDIR = $(DESTDIR)$(PREFIX)/share/man
LIBDIR = $(DESTDIR)$(PREFIX)/lib
INCDIR = $(DESTDIR)$(PREFIX)/include
MAN_SRC = $(wildcard fs/*.[58])
MAN_PAGES = $(foreach page,$(MAN_SRC),$(MANDIR)/man$(subst .,,$(suffix $(page)))/$(notdir $(page)))
# To make, a name with a blank is two names: half of it would land in the current folder.
check_place = $(if $(word 2,$(DESTDIR)$(PREFIX)),$(error PREFIX and DESTDIR cannot hold blanks))
install: all ## programs, library, header and zrecord.pc under PREFIX (DESTDIR is honoured)
	@$(check_place)
	install -d $(BINDIR) $(LIBDIR)/pkgconfig $(INCDIR) $(sort $(dir $(MAN_PAGES)))
	install -m 755 $(BUILD)/zrecord $(BUILD)/zrecordfs $(BINDIR)
	install -m 644 $(BUILD)/libzrecord.a $(LIBDIR)
	install -m 755 $(BUILD)/libzrecord.so $(LIBDIR)/libzrecord.so.0
	ln -sf libzrecord.so.0 $(LIBDIR)/libzrecord.so
	install -m 644 engine/zrecord.h $(INCDIR)
	$(foreach page,$(MAN_SRC),install -m 644 $(page) $(MANDIR)/man$(subst .,,$(suffix $(page)));)
	sed 's|^prefix=.*|prefix=$(abspath $(PREFIX))|' $(BUILD)/zrecord.pc > $(LIBDIR)/pkgconfig/zrecord.pc

uninstall: ## remove what install put there
	@$(check_place)
	rm -f $(BINDIR)/zrecord $(BINDIR)/zrecordfs $(LIBDIR)/libzrecord.a $(LIBDIR)/libzrecord.so \
	  $(LIBDIR)/libzrecord.so.0 $(INCDIR)/zrecord.h $(LIBDIR)/pkgconfig/zrecord.pc $(MAN_PAGES)

clean: ## remove everything built; .venv stays
	rm -rf build dist python/build python/*.egg-info

help: ## this list
	@sed -n 's/^\([a-z][a-z -]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r name text; do printf '%-15s %s\n' "$$name" "$$text"; done
