# What is given to others: a folder that runs anywhere, and a Debian package.
#
## make bundle        a folder, $O/bundle, that runs where nothing is installed
## make bundle-tests  ... with the tests and benchmarks of the GPU in it
## make dist          that folder with pages and licence as a tarball, and its digest
## make deb           a Debian package, $O/deb/*.deb, of this system's release
## make check-bundle  the bundle in bare roots of Debian 12 and 13 (root, debootstrap)
## make check-deb     the package installed into a bare root (the same)

.PHONY: bundle bundle-tests dist deb check-bundle check-deb

# Programs that look for libraries beside themselves first (an rpath, which
# unlike a runpath is also searched for what libraries need), what they share as
# one library, GNU make for the driver, and all they need but glibc, GCC's
# run-time library, which comes with it, and CUDA's own, which comes with the
# machine.
B       := $O/bundle
B_BIN   := $(patsubst bin/%,$B/bin/%,$(BIN))
B_TESTS := $(patsubst %.c,$B/tests/%,$(notdir $(CUDA_TEST)))
B_BENCH := $(patsubst $O/bench/%,$B/tests/%,$(GPU_BENCH) $O/bench/lent_bench)
B_HELP  := $B/tests/mkexperts
B_RPATH := -Wl,--disable-new-dtags '-Wl,-rpath,$$ORIGIN/../lib'
# Opened by name when first needed, so that ldd does not know it: common/math/blas.c.
B_OPENED := libopenblas.so.0
B_LINK   = $(Q)mkdir -p $(@D); $(CC) $(LDFLAGS) $(B_RPATH) -Wl,-s -o $@ $^ $(LDLIBS)
B_SO    := $O/lib/libforge.so
$(B_SO): $O/libforge.a
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,$(@F),-Bsymbolic-functions,-s -o $@ \
	  -Wl,--whole-archive $< -Wl,--no-whole-archive $(LDLIBS)
$(foreach t,$(TOOLS),$(eval \
  $B/bin/$(basename $(notdir $t)): $O/$t.o $(B_SO)))
$(filter-out $B/$(TEXT),$(B_BIN)):
	$(B_LINK)
$(B_TESTS): $B/tests/%: $O/tests/gpu/%.c.o $O/libforge.a
	$(B_LINK)
$(B_BENCH): $B/tests/%: $O/bench/%.c.o $O/libforge.a
	$(B_LINK)
$(B_HELP): $B/tests/%: $O/tests/helper/%.c.o $O/libforge.a
	$(B_LINK)
bundle: $(B_BIN) $(W4_SO)
	$(Q)rm -rf $B/lib $B/tests; mkdir -p $B/lib/4bit-forge $B/include
	$(Q)cp $(B_SO) $B/lib; strip -o $B/lib/$(W4).1 $(W4_SO); ln -s $(W4).1 $B/lib/$(W4); cp include/*.h $B/include
	$(Q)cp scripts/forge-run scripts/pipeline.mk $B/lib/4bit-forge
	$(Q)cp -L "$$(command -v $(firstword $(MAKE)))" $B/lib/4bit-forge/make
	$(Q)opened=; for l in $(B_OPENED); do \
	    so=$$(ldconfig -p | sed -n "s|.*$$l .* => ||p" | head -n 1); \
	    if [ -z "$$so" ]; then echo "bundle: no $$l here" >&2; exit 1; fi; \
	    opened="$$opened $$so"; done; \
	  for f in $(B_SO) $$opened; do ldd $$f; done | awk '$$2 == "=>" { print $$3 }' | \
	  { cat; printf '%s\n' $$opened; } | sort -u | \
	  grep -vE '/(libc|libm|libdl|librt|libpthread|libgcc_s|ld-linux[^/]*)\.so' | \
	  xargs -r cp -Lt $B/lib
	$(Q)if command -v $(NVCC) >/dev/null; then \
	  $(MAKE) --no-print-directory cuda && strip -o $B/bin/$(notdir $(CUDA_SO)) $(CUDA_SO); \
	else echo 'bundle: no nvcc here: without forge-cuda.so'; fi
	@du -sh $B
# Equal trees give equal tarballs: names sorted, one owner, the time of the commit.
VERSION := $(shell sed -n 's/^\#define FORGE_VERSION "\(.*\)"/\1/p' src/common/base.h)
DIST     = 4bit-forge-$(VERSION)-linux-$(shell uname -m)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || stat -c %Y NEWS.md)
dist: bundle
	$(Q)cp LICENSE README.md NEWS.md $B
	$(Q)for m in $(MAN); do install -D -m 644 $$m $B/share/man/man$${m##*.}/$${m##*/}; done
	$(Q)tar -C $B --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$(SOURCE_DATE_EPOCH) \
	  --transform 's,^\./,$(DIST)/,' --xform 's,^\.$$,$(DIST),' -cf - ./bin ./include ./lib ./share \
	  ./LICENSE ./README.md ./NEWS.md | xz -6 -T1 >$O/$(DIST).tar.xz
	$(Q)cd $O && sha256sum $(DIST).tar.xz | tee $(DIST).tar.xz.sha256
# Linked anew, since the bundle begins without them.
bundle-tests: bundle
	$(Q)$(MAKE) --no-print-directory $(B_TESTS) $(B_BENCH) $(B_HELP)
	$(Q)$(MAKE) --no-print-directory $O/tests/helper/forge-cuda.so
	$(Q)cp $O/tests/helper/forge-cuda.so $B/tests/fake-cuda.so
	$(Q)cp tests/gpu/*.sh bench/cuda_tools.sh $B/tests
	$(Q)if command -v $(NVCC) >/dev/null; then \
	  $(MAKE) --no-print-directory $O/bench/cuda_bench && \
	  cp $O/bench/cuda_bench $B/tests; fi

# ---- a Debian package -----------------------------------------------------------

DEB_VERSION := $(VERSION)
DEB_ROOT    := $O/deb/root
deb: all
	@command -v dpkg-shlibdeps >/dev/null || \
	  { echo 'deb: no dpkg-shlibdeps here (apt-get install dpkg-dev)' >&2; exit 69; }
	$(Q)rm -rf $O/deb; mkdir -p $(DEB_ROOT)/DEBIAN
	$(Q)$(MAKE) --no-print-directory -s install DESTDIR=$(abspath $(DEB_ROOT)) PREFIX=/usr
	$(Q)strip $(patsubst %,$(DEB_ROOT)/usr/%,$(filter-out $(TEXT),$(BIN))) $(DEB_ROOT)/usr/lib/$(W4).1
	$(Q)gzip -9n $(DEB_ROOT)/usr/share/man/*/*
	$(Q)install -D -m 644 LICENSE $(DEB_ROOT)/usr/share/doc/4bit-forge/copyright
	$(Q)scripts/deb-control $(DEB_VERSION) $(DEB_ROOT) >$(DEB_ROOT)/DEBIAN/control
	$(Q)dpkg-deb --root-owner-group --build $(DEB_ROOT) $O/deb

check-bundle: bundle
	@tests/roots/check.sh bundle $B bookworm trixie
check-deb: deb
	@tests/roots/check.sh deb $O/deb/*.deb "$$(. /etc/os-release && echo $$VERSION_CODENAME)"
