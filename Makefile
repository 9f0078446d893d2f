# 4bit-forge: one Makefile, no recursion, nothing to edit for a new file.
#
#   src/*/forge-*.c  is a tool and becomes bin/forge-*
#   src/*/*.c        anything else goes into libforge.a
#   tests/unit/*.c   is a test program: exit 0 passes, 77 skips
#   tests/helper/*.c is a program that the tests call
#   bench/*_bench.c  is a benchmark program
#
## make               build the tools into bin/
# Settings: MODE=release|asan  V=1  O=build directory

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += -rR

MODE ?= release
O    ?= build/$(MODE)
Q    := $(if $(V),,@)
-include config.mk

ifeq ($(origin CC),default)
CC       := gcc
endif
AR       := ar
CPPFLAGS := -Isrc -D_GNU_SOURCE
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion \
            -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith \
            -Wundef -Wwrite-strings
# No -ffast-math and no contraction: the reference must mean what it says.
CFLAGS   := -std=c11 -g $(WARN) $(if $(CI),-Werror) -ffp-contract=off -pthread
LDLIBS   := -Wl,--as-needed -lcjson -luring -lxxhash -ldnnl -lonig -lutf8proc \
            -lzip -ldl -lm -pthread

ifeq ($(MODE),release)
CFLAGS  += -O2
else ifeq ($(MODE),asan)
CFLAGS  += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
           -fno-omit-frame-pointer
LDFLAGS += -fsanitize=address,undefined
else
$(error MODE=$(MODE): want release or asan)
endif

SRC   := $(sort $(wildcard src/*/*.c))
TOOLS := $(sort $(wildcard src/*/forge-*.c))
LIB   := $(filter-out $(TOOLS),$(SRC))
UNIT  := $(sort $(wildcard tests/unit/*.c))
HELP  := $(sort $(wildcard tests/helper/*.c))
BENCH := $(sort $(wildcard bench/*_bench.c))

obj     = $(patsubst %,$O/%.o,$(1))
BIN    := $(patsubst %.c,bin/%,$(notdir $(TOOLS)))
UNITS  := $(patsubst %.c,$O/%,$(UNIT))
HELPS  := $(patsubst %.c,$O/%,$(HELP))
BENCHS := $(patsubst %.c,$O/%,$(BENCH))

.PHONY: all
all: $(BIN)

# A changed flag must rebuild what it changes: every object depends on this.
FLAGS := $(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS)
$O/flags: FORCE
	@mkdir -p $(@D); cmp -s <(echo '$(subst ','\'',$(FLAGS))') $@ || \
	  echo '$(subst ','\'',$(FLAGS))' > $@
FORCE:

$O/%.c.o: %.c $O/flags
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  CC     $<')
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$O/libforge.a: $(call obj,$(LIB))
	$(if $(V),,@echo '  AR     $@')
	$(Q)rm -f $@; $(AR) rcs $@ $^

# bin/ holds the last build of any mode; tests run $O, never bin/.
$(BIN): bin/%: $O/bin/% FORCE
	$(Q)mkdir -p bin; cmp -s $< $@ || cp $< $@
TOOLBIN := $(patsubst bin/%,$O/bin/%,$(BIN))
$(foreach t,$(TOOLS),$(eval \
  $O/bin/$(basename $(notdir $t)): $O/$t.o $O/libforge.a))
$(TOOLBIN):
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(UNITS) $(HELPS) $(BENCHS): $O/%: $O/%.c.o $O/libforge.a
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.PHONY: clean
clean:
	rm -rf build bin

-include $(patsubst %.o,%.d,$(call obj,$(SRC) $(UNIT) $(HELP) $(BENCH)))
