# The CUDA plug-in: src/cuda/*.cu become bin/forge-cuda.so.  Nothing here runs
# unless it is asked for; `make` and `make test` need no CUDA.
#
## make cuda          build the GPU plug-in (nvcc)
## make check-gpu     its tests against the CPU's results (a GPU)
## make check-gpu-sanitizers  the same programs under compute-sanitizer (a GPU)
## make bench-gpu     its benchmarks, each checked first (a GPU); LAYERS='7b long 70b v3 v3x2': layers
# Settings: NVCC=nvcc  CUDA_ARCH="80 90a"  NVOPT='-Xcicc -O1 -Xptxas -O1': kernels that
# are compiled sooner, to find errors, not to run

NVCC      ?= nvcc
CUDA_ARCH ?= 80 90a
CUDA_SRC  := $(sort $(wildcard src/cuda/*.cu))
CUDA_TEST := $(sort $(wildcard tests/gpu/*.c))
CUDA_OBJ  := $(patsubst %,$O/cuda/%.o,$(CUDA_SRC) $(CUDA_C))
CUDA_SO   := $O/bin/forge-cuda.so
GPU_TESTS := $(patsubst %.c,$O/%,$(CUDA_TEST))
CUDA_LIBS := -lm -ldl # cuBLAS and cuSOLVER are opened when they are needed
# Beside the plug-in, then where the toolkit was at build time.
CUDA_RUN  = -Xlinker '-rpath=$$ORIGIN' \
             -Xlinker -rpath=$(patsubst %/bin/,%/lib64,$(dir $(realpath $(shell command -v $(NVCC)))))
NVFLAGS   := -std=c++17 -O3 -Xfatbin -compress-all $(NVOPT) -Isrc -Iinclude -D_GNU_SOURCE \
             -Xcompiler -fPIC,-fvisibility=hidden,-Wall \
             $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$a,code=sm_$a)

.PHONY: cuda check-gpu check-gpu-sanitizers bench-gpu check-cuda
cuda: $(CUDA_SO)
	$(Q)mkdir -p bin; cmp -s $< bin/forge-cuda.so || cp $< bin/forge-cuda.so

$O/cuda/%.cu.o: %.cu
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  NVCC   $<')
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -c -o $@ $<
$O/cuda/%.c.o: %.c $O/flags
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  CC     $< (plug-in)')
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -c -o $@ $<
$(CUDA_SO): $(CUDA_OBJ)
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(NVCC) -shared -cudart static $(CUDA_RUN) -o $@ $^ $(CUDA_LIBS)

$(GPU_TESTS): $O/%: $O/%.c.o $O/libforge.a
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
check-gpu: cuda $(TOOLBIN) $(GPU_TESTS) $O/tests/helper/mkexperts \
    $O/tests/helper/mkmodel $O/tests/helper/forge-cuda.so $O/lib/4bit-forge
	@for t in $(GPU_TESTS); do echo "== $$(basename $$t)"; \
	  $$t $(CUDA_SO) || [ $$? -eq 77 ]; done
	@tests/gpu/families.sh $O/bin || [ $$? -eq 77 ]
	@tests/gpu/experts.sh $O/bin $O/tests/helper/mkexperts || [ $$? -eq 77 ]
	@tests/gpu/loans.sh $O/bin examples/llama-4m examples/calib.jsonl || [ $$? -eq 77 ]
	@tests/gpu/e2e.sh $O/bin examples/llama-4m examples/calib.jsonl \
	  examples/eval.txt || [ $$? -eq 77 ]
	@tests/gpu/two.sh $O/bin $O/tests/helper || [ $$? -eq 77 ]

check-gpu-sanitizers: cuda $(GPU_TESTS) $O/tests/helper/forge-cuda.so
	@tests/gpu/sanitizers.sh $O/tests/gpu $(CUDA_SO) || [ $$? -eq 77 ]

# The bench sees the stages without their transfers, so it has them inside.
$O/bench/cuda_bench: $O/cuda/bench/cuda_bench.cu.o \
                     $O/cuda/bench/cuda_hessian.cu.o \
                     $O/cuda/bench/cuda_experts.cu.o \
                     $O/cuda/bench/cuda_w4a16.cu.o $(CUDA_OBJ) $O/libforge.a
	$(Q)mkdir -p $(@D)
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(NVCC) -cudart static $(CUDA_RUN) -o $@ $^ $(CUDA_LIBS) -lcublas -lpthread \
	  -Xlinker --as-needed $(filter -l%,$(LDLIBS))
GPU_BENCH := $(addprefix $O/bench/cuda_,forward recur refined start)
$(GPU_BENCH): $O/bench/cuda_%: $O/bench/cuda_%.c.o $O/libforge.a
	$(if $(V),,@echo '  LD     $@')
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
bench-gpu: cuda $O/bench/cuda_bench $(GPU_BENCH) $O/bench/lent_bench $(TOOLBIN) $O/tests/helper/mkexperts \
    $O/tests/helper/mkmodel
	@$O/bench/cuda_start $(CUDA_SO)
	@$O/bench/cuda_bench
	@$O/bench/cuda_forward $(CUDA_SO)
	@$O/bench/cuda_recur $(CUDA_SO)
	@$O/bench/cuda_refined $(CUDA_SO)
	@ln -sf ../bin/forge-cuda.so $O/bench/forge-cuda.so
	@$O/bench/lent_bench cuda
	@bench/cuda_tools.sh $O/bin $O/tests/helper/mkexperts
	@BIN=$O/bin bench/gpu_layers.sh $(LAYERS)

# ---- without a GPU ---------------------------------------------------------------

# That it compiles, for each architecture; what continuous integration can say
# about it.
check-cuda:
	@if command -v $(NVCC) >/dev/null; then \
	  $(MAKE) --no-print-directory cuda $(GPU_TESTS) $(GPU_BENCH) $O/bench/cuda_bench && \
	  echo "cuda: compiled for sm $(CUDA_ARCH)"; \
	else echo 'cuda: no nvcc here: not compiled'; fi

-include $(patsubst %,$O/%.d,$(CUDA_TEST)) $(wildcard $O/cuda/*/*.d $O/cuda/*/*/*.d)
