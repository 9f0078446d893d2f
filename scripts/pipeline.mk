# pipeline.mk - the steps of a quantization and their order.
#
# forge(1) runs this in the work directory, which holds one directory for each
# stage: $T tokens, $C calibration, $S solving.  Each is named by a key of the
# options and inputs of its stage and of the stages before it.  So a file that
# exists is the right one, and time stamps do not matter: all prerequisites are
# order-only.  Every file appears complete or not at all.
#
# By itself, where `forge quantize` has left its settings:
#
#     make -f PREFIX/lib/4bit-forge/pipeline.mk -C WORK -j4
#
# The work directory is data and is never executed.  `forge stage plan` checks its
# settings and prints
#   LAYERS=0,1,2...   METHOD=gptq|rtn   PROPAGATE=quantized|original
#   FISHER=yes (effort best: rows are solved together; otherwise empty)   T C S
#   P (layout gguf: the checkpoint that the file is made of; otherwise empty)
# RUN="forge-run --" runs the steps elsewhere (forge-run); empty: on this machine.

# Recipes die with make, even if make is killed.
SHELL := /usr/bin/setpriv
.SHELLFLAGS := --pdeathsig TERM /bin/sh -euc
MAKEFLAGS += -rR
.SUFFIXES:
.SECONDARY:

ifndef S
here  := $(dir $(realpath $(lastword $(MAKEFILE_LIST))))
tools := $(dir $(firstword $(wildcard $(here)../bin/forge $(here)../../bin/forge)))
# For recipes; GNU make below 4.4 does not pass it on to $(shell).
export PATH := $(PATH):$(tools):$(here)
RUN   ?= $(if $(filter-out local,$(FORGE_LAUNCH))$(FORGE_RETRIES),forge-run --)
$(foreach v,$(shell PATH='$(PATH)'; forge stage plan),$(eval $v))
$(if $S,,$(error no plan: forge quantize makes one))
endif

comma  := ,
layers := $(subst $(comma), ,$(LAYERS))
STEP   := exec $(RUN) forge stage
codes  := $(layers:%=$S/codes-%.fts)

# A file that exists is whole, even if its recipe failed later: make must not remove
# the layers that a killed or failed loop has finished.
.PRECIOUS: $(codes) $T/tokens.fts $C/fisher.fts $(layers:%=$C/hessian-%.fts)

# One after another: $1-I.fts needs $1-J.fts, J the layer before I.
pairs := $(join $(filter-out $(firstword $(layers)),$(layers)),\
           $(addprefix :,$(filter-out $(lastword $(layers)),$(layers))))
chain  = $(foreach p,$(pairs),$(eval \
  $1-$(word 1,$(subst :, ,$p)).fts: | $1-$(word 2,$(subst :, ,$p)).fts))

# The checkpoint: the codes in the runtime's layout, and the tensors that are not
# quantized.
.PHONY: result
result: | $(or $P,$(codes))
	@$(STEP) result

ifneq ($P,)
$P: | $(codes)
	@$(STEP) pack
endif

$T/tokens.fts:
	@$(STEP) tokens

# Fisher information of the linears' outputs (forge-gradient).
$C/fisher.fts: | $T/tokens.fts
	@$(STEP) fisher
fisher := $(if $(FISHER),$C/fisher.fts)

ifeq ($(METHOD),rtn)
# Round to nearest: no data, every layer by itself.
$(codes): $S/codes-%.fts:
	@$(STEP) round $*
else ifeq ($(PROPAGATE),original)
# The original model runs once, layer after layer; solving follows wherever
# there is room, --jobs at a time.
$(codes): $S/codes-%.fts: | $C/hessian-%.fts $(fisher)
	@$(STEP) solve $*
$(layers:%=$C/hessian-%.fts): $C/hessian-%.fts: | $T/tokens.fts
	@$(STEP) calibrate $*
$(call chain,$C/hessian)
else
# Every layer is calibrated on the output of the quantized layers before it: one
# pipe makes them all, each appears when it is whole.
$(codes) &: | $T/tokens.fts $(fisher)
	@$(STEP) loop
endif
