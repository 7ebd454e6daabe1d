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
ENGINE_PKGS := libzstd $(MSGPACK)
ENGINE_LIBS  = $(call pkg_libs,$(ENGINE_PKGS))

ENGINE_SRC := $(wildcard engine/*.c)
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
        check-asan check-tsan check-valgrind demo bench fuzz lint format wheel install uninstall clean help
.DELETE_ON_ERROR:

all: lib programs ## build the library and the programs
lib: $(BUILD)/libzrecord.a $(BUILD)/libzrecord.so $(BUILD)/zrecord.pc
programs: $(BUILD)/zrecord $(BUILD)/zrecordfs

$(BUILD)/obj/engine/%.o: engine/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) $(call pkg_cflags,$(ENGINE_PKGS)) $(CFLAGS) -c -o $@ $<
$(BUILD)/obj/fs/%.o: fs/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine $(call pkg_cflags,fuse3 jansson) $(CFLAGS) -c -o $@ $<
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
	  'Libs: -L$${libdir} -lzrecord' 'Libs.private: -pthread' \
	  'Requires.private: libzstd $(MSGPACK)' 'Cflags: -I$${includedir}' > $@

# The programs carry the engine inside, so a copied binary works.
$(BUILD)/zrecord: $(TOOLS_OBJ) $(BUILD)/libzrecord.a
	$(CC) $(ZR_LDFLAGS) $(LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(call pkg_libs,jansson)
$(BUILD)/zrecordfs: $(FS_OBJ) $(BUILD)/libzrecord.a
	$(CC) $(ZR_LDFLAGS) $(LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(call pkg_libs,fuse3 jansson)

# Unit tests see private headers and the objects of fs except its main.
$(BUILD)/unit/%: tests/unit/%.c $(BUILD)/libzrecord.a $(filter-out %/main.o,$(FS_OBJ))
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine -Ifs $(call pkg_cflags,check fuse3 jansson $(ENGINE_PKGS)) $(CFLAGS) -o $@ $< \
	  $(filter-out %/main.o,$(FS_OBJ)) $(BUILD)/libzrecord.a $(ZR_LDFLAGS) $(call pkg_libs,check fuse3 jansson) $(ENGINE_LIBS)
$(BUILD)/fuzz/%: tests/fuzz/%.c tests/fuzz/replay.c $(BUILD)/libzrecord.a
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine $(CFLAGS) -o $@ $< tests/fuzz/replay.c $(BUILD)/libzrecord.a $(ZR_LDFLAGS) $(ENGINE_LIBS)
$(BUILD)/bench/%: tests/bench/%.c $(BUILD)/libzrecord.a
	@mkdir -p $(@D)
	$(CC) $(ZR_CFLAGS) -Iengine $(CFLAGS) -o $@ $< $(BUILD)/libzrecord.a $(ZR_LDFLAGS) $(ENGINE_LIBS)

-include $(shell find $(BUILD)/obj $(BUILD)/unit $(BUILD)/fuzz $(BUILD)/bench -name '*.d' 2>/dev/null)
