# 4bit-forge: one Makefile, no recursion, nothing to edit for a new file.
#
#   src/*/forge-*.c  is a tool and becomes bin/forge-*, in a folder of a room, too;
#                    src/forge/forge.c is forge
#   src/*/*.c        anything else goes into libforge.a, as src/*/*/*.c does
#   tests/unit/*.c   is a test program: exit 0 passes, 77 skips
#   tests/helper/*.c is a program that the tests call
#   tests/fuzz/fuzz_*.c is a fuzz target, corpus in tests/fuzz/corpus/
#   bench/*_bench.c, bench/*_bench.sh are benchmark programs
#
## make               build the tools into bin/
## make demo          quantize the example model and print what it cost
## make test          all tests: units, command lines, end to end, fuzz corpora;
##                    T=cli/grid: those with that in their name, CASE=cut: cases of it
## make check-asan    the same under AddressSanitizer and UBSan
## make check-aarch64 the kernels of ARM, cross-built and run by qemu-user
## make check-cluster forge over Slurm and ssh: takes a node down (tests/cluster);
##                    LOSSES=50: that many runs that lose one, some two, some the command
## make check-tsan    threads under ThreadSanitizer: pool, reading ahead, writing
##                    behind, lent pages, the whole pipe
## make check-faults  FAULTS=500 random kills, limits of memory and descriptors, power
##                    cuts, hostile streams (minutes to hours; not in CI)
## make fuzz          fuzz every parser, FUZZ_SECONDS=60 each (clang)
## make bench         benchmarks, each checked against its reference first
## make bench-quality distance from the original: by effort, by part, by program
## make lint          formatting, warnings, shell, manual pages, house rules
## make house         draw the rooms of src/: who includes whom, how often
## make interop       the outputs in other people's loaders (PyPI, PYTHON=...)
## make install       into PREFIX=/usr/local, below DESTDIR=
## make uninstall     remove what install put there
## make clean         remove what was built
## make help          this list
## Settings: MODE=release|asan|tsan  V=1 (show commands)  O=build directory  CI=1 (warnings are errors)
##           CC=gcc (11 or newer) or clang (14, 15, 18 or newer)  URING= (do without liburing)
##           CROSS=aarch64-linux-gnu (libraries: scripts/setup --tests, or SYSROOT=directory)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += -rR

MODE ?= release
O    ?= build/$(if $(CROSS),$(CROSS)-)$(MODE)
Q    := $(if $(V),,@)
-include config.mk

# A make below another has no built-in CC at all (-R).
ifneq ($(filter default undefined,$(origin CC)),)
CC       := gcc
endif
AR       := ar
ifdef CROSS
CC       := $(CROSS)-gcc
AR       := $(CROSS)-ar
SYSROOT  ?= $(wildcard build/sysroot/$(CROSS))
endif
CPPFLAGS := -Isrc -Iinclude -D_GNU_SOURCE
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion \
            -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith \
            -Wundef -Wwrite-strings
# No -ffast-math and no contraction: the reference must mean what it says.
CFLAGS   := -std=c11 -g $(WARN) $(if $(CI),-Werror) -ffp-contract=off -pthread -fPIC # the fake plug-in has the library in it
LDLIBS   := -Wl,--as-needed -lcjson -lxxhash -lonig -lutf8proc -lzip -lcrypto \
            -ldl -lm -pthread

ifneq ($(SYSROOT),)
CPPFLAGS += --sysroot=$(SYSROOT)
LDFLAGS  += --sysroot=$(SYSROOT)
endif

ifeq ($(MODE),release)
CFLAGS  += -O2
else ifeq ($(MODE),asan)
CFLAGS  += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
           -fno-omit-frame-pointer
LDFLAGS += -fsanitize=address,undefined
else ifeq ($(MODE),tsan)
CFLAGS  += -O1 -fsanitize=thread -fno-omit-frame-pointer
LDFLAGS += -fsanitize=thread
else
$(error MODE=$(MODE): want release, asan or tsan)
endif

# `make URING=` builds as if there were no liburing.
PROBE    := $(shell $(CC) $(CPPFLAGS) -E -P scripts/probe.h 2>/dev/null)
URING    ?= $(filter uring,$(PROBE))
ifeq ($(filter new_enough,$(PROBE))$(filter clean help uninstall,$(MAKECMDGOALS)),)
$(error 4bit-forge needs GCC 11 or newer, or clang 14, 15, 18 or newer; CC=$(CC) is $(or \
  $(filter-out uring,$(PROBE)),no C compiler))
endif
ifneq ($(filter clang,$(PROBE)),)
CFLAGS   += -Wno-enum-float-conversion # enum { N = 3 } are constants here
endif
ifneq ($(URING),)
CPPFLAGS += -DHAVE_URING
LDLIBS   += -luring
endif

FUZZ_SECONDS ?= 60
PREFIX       ?= /usr/local
SRC   := $(sort $(wildcard src/*/*.c src/*/*/*.c))
TOOLS := $(foreach s,$(SRC),$(if $(filter forge-%.c,$(notdir $s)),$s)) src/forge/forge.c
LIB   := $(filter-out $(TOOLS),$(SRC))
UNIT  := $(sort $(wildcard tests/unit/*.c))
HELP  := $(sort $(wildcard tests/helper/*.c))
HEADERS := $(sort $(wildcard src/*/*.h src/*/*/*.h))
BENCH := $(sort $(wildcard bench/*_bench.c))
FUZZ  := $(sort $(wildcard tests/fuzz/fuzz_*.c))
SCRIPT := scripts/demo scripts/deb-control scripts/sysroot scripts/completions/forge.bash scripts/forge-run scripts/run-tests \
          scripts/house scripts/setup scripts/test .ci/run tests/faults/run tests/faults/limits tests/faults/threads

# Products with 4-bit linears for other programs (include/forge_w4a16.h): a library
# that shows these functions alone; those of forge_w4a16_cuda.h are the plug-in's.
W4      := libforge_w4a16.so
W4_SO   := $O/lib/$(W4).1
W4_SRC  := $(wildcard src/w4a16/*.c src/common/math/bf16_*.c) src/common/base.c src/common/cgroup.c src/layout/unpack.c \
           $(patsubst %,src/common/math/%.c,blas cpu dtype threads)

obj     = $(patsubst %,$O/%.o,$(1))
BIN    := $(patsubst %.c,bin/%,$(notdir $(TOOLS)))
TOOLBIN := $(patsubst bin/%,$O/bin/%,$(BIN))
UNITS  := $(patsubst %.c,$O/%,$(UNIT))
HELPS  := $(patsubst %.c,$O/%,$(HELP))
BENCHS := $(patsubst %.c,$O/%,$(BENCH))
FUZZS  := $(patsubst %.c,$O/%,$(FUZZ))

# Tools of another architecture, as programs that run here.
ifdef CROSS
RUN    := qemu-$(firstword $(subst -, ,$(CROSS))) -L $(abspath $(SYSROOT))
RUNS   := $(patsubst bin/%,$O/run/%,$(BIN))
endif
# A filter that is a script.
TEXT   := bin/forge-text
BIN    += $(TEXT)

.PHONY: all help
all: $(if $(CROSS),$(TOOLBIN) $(RUNS),$(BIN) $(W4_SO) lib/4bit-forge)
help:
	@sed -n 's/^## //p' Makefile cuda.mk package.mk

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
	$(Q)rm -f $@.new; $(AR) rcs $@.new $^ && mv $@.new $@

# bin/ holds the last build of any mode; tests run $O, never bin/.
$(BIN): bin/%: $O/bin/% FORCE
	$(Q)mkdir -p bin; cmp -s $< $@ || cp --remove-destination $< $@
$(foreach t,$(TOOLS),$(eval \
  $O/bin/$(basename $(notdir $t)): $O/$t.o $O/libforge.a))
$(TOOLBIN):
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(UNITS) $(HELPS) $(BENCHS): $O/%: $O/%.c.o $O/libforge.a
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$O/$(TEXT) $O/bundle/$(TEXT): scripts/forge-text src/common/base.h
	$(Q)mkdir -p $(@D)
	$(Q)sed 's/@VERSION@/$(VERSION)/' $< >$@.new && chmod 755 $@.new && mv $@.new $@

# The driver finds its scripts in ../lib/4bit-forge, also in the tree.
lib/4bit-forge $O/lib/4bit-forge:
	$(Q)mkdir -p $(@D); ln -sfn $(CURDIR)/scripts $@

$(W4_SO): $(W4_SRC) $(HEADERS) $(wildcard include/*.h src/*/*.inc src/common/*/*.inc) $O/flags
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -fPIC -fvisibility=hidden -shared -Wl,-soname,$(@F) \
	  -o $@ $(W4_SRC) -ldl -lm -pthread
	$(Q)ln -sf $(@F) $O/lib/$(W4)

# ---- tests -------------------------------------------------------------------

$(FUZZS): $O/%: $O/%.c.o $O/tests/fuzz/main.c.o $O/libforge.a
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
# Preloaded, it makes the n-th read, write or malloc fail.  Not with ASan, which
# must be loaded first.
FAIL := $(if $(filter asan,$(MODE)),,$(patsubst %.c,$O/%.so,$(wildcard tests/fail.c)))
$O/tests/fail.so: tests/fail.c $O/flags
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -shared -fPIC -o $@ $< -ldl

# What a plug-in has of the library.
CUDA_C := $(patsubst %,src/common/%.c,base math/cpu math/dtype math/quant) \
          src/gptq/solve/compare.c src/w4a16/shape.c
# A plug-in for tests, which lies beside none of the tools.
FAKE := $O/tests/helper/forge-cuda.so
FAKES := $(patsubst %,tests/fake_%.c,attend backward cuda draw forward hessian loan memory recur router tune)
$(FAKE): $(call obj,$(FAKES)) $O/libforge.a
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ $^ -Wl,--exclude-libs,ALL $(LDLIBS)

.PHONY: demo test check-asan check-aarch64 check-cluster check-faults check-tsan fuzz bench bench-quality lint house interop
demo: all
	@scripts/demo --run

# T=cli/grid.bats (or any part of a name) runs these tests alone, and builds what
# they need; CASE='part of a name' those cases of bats files alone.
named    = $(if $(T),$(foreach f,$(1),$(if $(findstring $(T),$f),$f)),$(1))
BATS    := $(call named,$(wildcard $(if $(CROSS),tests/cross/*.bats,tests/cli/*.bats tests/e2e/*.bats)))
test: $(patsubst %.c,$O/%,$(if $(CASE),,$(call named,$(UNIT) $(FUZZ)))) \
      $(if $(BATS),$(TOOLBIN) $O/$(TEXT) $O/lib/4bit-forge $(HELPS) $(FAIL) $(FAKE) $(RUNS))
	@RUN='$(RUN)' FAIL_SO=$(if $(FAIL),$(CURDIR)/$(FAIL)) CASE='$(subst ','\'',$(CASE))' \
	  scripts/run-tests $O $(T)

check-asan:
	@$(MAKE) --no-print-directory test MODE=asan

check-tsan: all
	@$(MAKE) --no-print-directory MODE=tsan build/tsan/lib/4bit-forge \
	  $(UNIT:%.c=build/tsan/%) $(patsubst bin/%,build/tsan/bin/%,$(BIN))
	@PATH="$(CURDIR)/bin:$$PATH" tests/faults/threads build/tsan

$O/run/forge-%: $O/bin/forge-%
	$(Q)mkdir -p $(@D); printf '#!/bin/sh\nexec %s "$$@"\n' \
	  '$(RUN) $(abspath $<)' >$@; chmod +x $@
# The driver starts the tools that lie beside it: this machine's own starts those
# of the other.
$O/run/forge: $O/lib/4bit-forge
	$(Q)mkdir -p $(@D); cp $(NATIVE)/forge $@

# NATIVE: what its results are compared with.
check-aarch64: C := aarch64-linux-gnu
check-aarch64: $(TOOLBIN) $O/lib/4bit-forge
	@if [ -e build/sysroot/$C/complete ] && command -v qemu-aarch64 >/dev/null; then \
	  NATIVE=$(CURDIR)/$O/bin $(MAKE) --no-print-directory CROSS=$C test; \
	else echo 'aarch64: no libraries or no qemu-aarch64 here (scripts/setup --tests): not tested'; fi

check-cluster: all
	@command -v sinfo >/dev/null || { echo 'no Slurm here: skipped'; exit 77; }
	@PATH="$(CURDIR)/bin:$$PATH" BATS_TEST_TIMEOUT=400 bats tests/cluster
	$(if $(LOSSES),@PATH="$(CURDIR)/bin:$$PATH" tests/cluster/losses $(LOSSES) $(SEED))

# Below a loop device it writes down what a file system asks of its disk; where
# there is no libfuse3, power does not fail.
RECORDER := $(if $(wildcard /usr/include/fuse3/fuse.h),$O/tests/faults/recorder)
$O/tests/faults/recorder: tests/faults/recorder.c $O/flags
	$(Q)mkdir -p $(@D); $(CC) $(CPPFLAGS) -I/usr/include/fuse3 -D_FILE_OFFSET_BITS=64 \
	  $(CFLAGS) -o $@ $< -lfuse3 -pthread

# The python3 that has setup's numpy, not another one that comes first.
PYTHON3 := $(firstword $(wildcard /usr/bin/python3) python3)
# FAULTS kills, half as many power cuts, as many seconds of hostile streams.
FAULTS ?= 500
check-faults: all $(RECORDER)
	@PATH="$(CURDIR)/bin:$$PATH" tests/faults/run $(FAULTS) $(SEED)
	@PATH="$(CURDIR)/bin:$$PATH" tests/faults/limits $$(( $(FAULTS) / 20 + 8 ))
	@PATH="$(CURDIR)/bin:$$PATH" RECORDER=$(RECORDER) \
	  $(PYTHON3) tests/faults/power $$(( ($(FAULTS) + 1) / 2 )) $(SEED)
	@$(MAKE) --no-print-directory MODE=asan build/asan/lib/4bit-forge \
	  $(patsubst bin/%,build/asan/bin/%,$(BIN))
	@PATH="$(CURDIR)/build/asan/bin:$$PATH" $(PYTHON3) tests/faults/hostile $(FAULTS) $(SEED)

# Clang's fuzzer needs the library built with its instrumentation.  What UBSan
# finds ends the run, as what ASan finds does.
FUZZFLAGS := -g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
             -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
fuzz: $(patsubst tests/fuzz/%.c,fuzz-%,$(FUZZ))
fuzz-objects: FORCE
	@$(MAKE) --no-print-directory O=build/fuzz CC=clang MODE=release \
	  CFLAGS="-std=c11 -ffp-contract=off -pthread $(FUZZFLAGS)" \
	  build/fuzz/libforge.a $(FUZZ:%=build/fuzz/%.o)
fuzz-%: fuzz-objects
	$(Q)clang -fsanitize=fuzzer,address,undefined -o build/fuzz/$* \
	  build/fuzz/tests/fuzz/$*.c.o build/fuzz/libforge.a $(LDLIBS)
	$(Q)mkdir -p build/fuzz/corpus/$* tests/fuzz/corpus/$(*:fuzz_%=%)
	$(Q)build/fuzz/$* -max_total_time=$(FUZZ_SECONDS) -max_len=65536 \
	  -rss_limit_mb=1024 build/fuzz/corpus/$* tests/fuzz/corpus/$(*:fuzz_%=%)

bench: all $(BENCHS)
	@for b in $(BENCHS) $(wildcard bench/*_bench.sh); do \
	  echo "== $$(basename $$b)"; PATH="$(CURDIR)/bin:$$PATH" $$b; done
# Against llama.cpp's kernels; GGML: a static build of ggml, with its headers.
$O/bench/w4a16_ggml: bench/w4a16_ggml.c $O/libforge.a
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -I$(GGML)/include $(LDFLAGS) -o $@ $^ $(GGML)/src/libggml.a \
	  $(GGML)/src/libggml-cpu.a $(GGML)/src/libggml-base.a $(LDLIBS) -lstdc++ -lgomp -lm
bench-quality: all
	@PATH="$(CURDIR)/bin:$$PATH" python3 bench/quality.py

interop: all
	@PATH="$(CURDIR)/bin:$$PATH" \
	  PYTHON="$${PYTHON:-$$(scripts/setup --venv)}" bats tests/interop

# House rules a compiler cannot know.  only: $(1) appears in $(2) alone.
only = @! grep -nE '$(1)' $(filter-out $(2),$(SRC) $(HEADERS)) \
         || { echo 'lint: the above belongs into $(2) alone'; exit 1; }
CUDA    := $(wildcard src/cuda/*.cu src/cuda/*.cuh bench/*.cu bench/*.cuh)
C_FILES := $(SRC) $(HEADERS) $(wildcard include/*.h) $(UNIT) $(HELP) $(BENCH) $(FUZZ) $(CUDA) \
           $(wildcard tests/*.c tests/*/*.h tests/gpu/*.c bench/cuda_*.c)
MAN     := $(sort $(wildcard man/*.[1-8]))
lint: $O/libforge.a
	$(Q)clang-format --dry-run -Werror $(C_FILES)
	$(Q)cppcheck -q --error-exitcode=1 --inline-suppr --std=c11 -Isrc -Iinclude \
	  -D_GNU_SOURCE -DHAVE_URING --suppressions-list=.cppcheck $(SRC)
	$(Q)shellcheck -x $(SCRIPT) $(wildcard bench/*.sh tests/gpu/*.sh tests/roots/*.sh)
	$(Q)shellcheck -S warning -e SC1091,SC2030,SC2031,SC2154,SC2210,SC2238 \
	  $(wildcard tests/*/*.bats tests/*/*.bash)
	$(Q)! grep -nE '^ *(\[|cmp |diff |grep )[^|]* && (\[|!|cmp |diff |grep )' $(wildcard tests/*/*.bats) || \
	  { echo 'lint: bats passes over what fails in front of &&: want a line each'; exit 1; }
	$(Q)! grep -nE '\b(diff|cmp|grep|paste)\b.*<\(' $(wildcard tests/*/*.bats tests/*/*.bash) || \
	  { echo 'lint: compared where it may have failed: want a file first'; exit 1; }
	$(Q)for m in $(MAN); do mandoc -Tlint -W warning $$m; done
	$(Q)! LC_ALL=C.UTF-8 grep -nE '^[^|].{120}' *.md doc/*.md || \
	  { echo 'lint: wider than 120 columns'; exit 1; }
	$(call only,cJSON_,src/common/io/json.c)
	$(call only,io_uring_,src/common/io/file.c src/common/io/write_behind.c)
	$(call only,\bgetenv\b,src/common/cli/tool.c src/common/cli/opt.c src/forge/env.c)
	$(call only,\bcblas_|openblas_,src/common/math/blas.c)
	$(call only,__builtin_cpu_|\bgetauxval\b,src/common/math/cpu.c)
	$(call only,\bdlopen\b,src/common/math/blas.c src/device/plugin.c)
	$(call only,\bEVP_|openssl/,src/common/io/sha256.c)
	$(Q)awk 'FNR == 1 { n = split(FILENAME, p, "/"); sub(/\.[a-z]*$$/, "", p[n]); \
	  if ($$2 !~ "^" p[n] "[.:]?[a-z]*$$") { print "lint: " FILENAME " begins: " $$0; \
	  bad = 1 } } END { exit bad }' $(SRC) $(HEADERS)
	$(Q)scripts/house check
	$(Q)scripts/house calls $(call obj,$(LIB))
	$(Q)! nm -A $O/libforge.a 2>/dev/null | grep -v ':\(base\|opt\|tool\)\.c\.o:' | \
	  grep ' U \(die\|die_err\|exit\|abort\)$$' || \
	  { echo 'lint: a library module ends the process'; exit 1; }
	$(Q)for h in $(filter-out %_template.h %_list.h,$(HEADERS)); do echo "#include \"$${h#src/}\"" | \
	  $(CC) $(CPPFLAGS) $(CFLAGS) -Werror -Wno-unused-macros -fsyntax-only -x c - || \
	  { echo "lint: $$h does not compile alone"; exit 1; }; done
	$(Q)wc -l $(SRC) $(HEADERS) $(CUDA) | awk '$$2 != "total" && ($$1 > 600 || \
	  ($$2 ~ /forge-/ && $$1 > 250)) { print "lint: " $$2 ": " $$1 " lines"; \
	  bad = 1 } END { exit bad }'

house:
	@scripts/house

include cuda.mk
include package.mk

# ---- install -----------------------------------------------------------------

D := $(DESTDIR)$(PREFIX)
.PHONY: install uninstall clean
install: all
	install -d $D/bin $D/lib/4bit-forge
	install -m 755 $(BIN) $D/bin
	install -m 755 scripts/forge-run $(wildcard bin/forge-cuda.so) $D/lib/4bit-forge
	install -m 755 $(W4_SO) $D/lib
	ln -sf $(W4).1 $D/lib/$(W4)
	install -d $D/lib/pkgconfig
	printf '%s\n' 'Name: forge_w4a16' 'Description: products with 4-bit weights' 'Version: $(VERSION)' \
	  'Cflags: -I$(PREFIX)/include' 'Libs: -L$(PREFIX)/lib -lforge_w4a16' >$D/lib/pkgconfig/forge_w4a16.pc
	chmod 644 $D/lib/pkgconfig/forge_w4a16.pc
	install -D -m 644 -t $D/include include/forge_w4a16.h include/forge_w4a16_cuda.h
	install -m 644 scripts/pipeline.mk $D/lib/4bit-forge
	install -D -m 644 scripts/completions/forge.bash $D/share/bash-completion/completions/forge
	install -D -m 644 scripts/completions/forge.fish $D/share/fish/vendor_completions.d/forge.fish
	for m in $(MAN); do \
	  install -D -m 644 $$m $D/share/man/man$${m##*.}/$${m##*/}; done
uninstall:
	rm -f $(BIN:%=$D/%)
	rm -f $D/lib/$(W4) $D/lib/$(W4).1 $D/lib/pkgconfig/forge_w4a16.pc $D/include/forge_w4a16.h $D/include/forge_w4a16_cuda.h
	rm -rf $D/lib/4bit-forge $D/share/bash-completion/completions/forge \
	  $D/share/fish/vendor_completions.d/forge.fish
	for m in $(MAN); do rm -f $D/share/man/man$${m##*.}/$${m##*/}; done

clean:
	rm -rf build bin lib

-include $(patsubst %.o,%.d,$(call obj,$(SRC) $(UNIT) $(HELP) $(FAKES) $(BENCH) $(FUZZ)))
