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
#   LAYERS=0,1,2...   METHOD=gptq|rtn|absmax   PROPAGATE=quantized|original
#   FISHER=yes (rows are solved together; otherwise empty)
#   WEIGHTS=yes (tokens have weights, which come with F; otherwise empty)   T C S
#   TUNE=yes (codes are tuned; otherwise empty)   U (their directory; otherwise S)
#   P (layout gguf: the checkpoint that the file is made of; otherwise empty)
#   PARTS=4 STOPS=0-attn_in-3-0,0-attn_out-1-4...
# PARTS=1: no stops; the loop itself goes through the parts that the settings ask for.
# RUN="forge-run --" runs the steps elsewhere (forge-run); empty: on this machine.

# Recipes die with make, even if make is killed.
SHELL := /usr/bin/setpriv
.SHELLFLAGS := --pdeathsig TERM /bin/sh -euc
MAKEFLAGS += -rR
.SUFFIXES:

ifndef S
here  := $(dir $(realpath $(lastword $(MAKEFILE_LIST))))
tools := $(dir $(firstword $(wildcard $(here)../bin/forge $(here)../../bin/forge)))
# For recipes; GNU make below 4.4 does not pass it on to $(shell).
export PATH := $(PATH):$(tools):$(here)
RUN   ?= $(if $(filter-out local,$(FORGE_LAUNCH))$(FORGE_RETRIES),forge-run --)
$(foreach v,$(shell PATH='$(PATH)'; forge stage plan),$(eval $v))
$(if $S,,$(error no plan: forge quantize makes one))
endif

# Files that no step needs any more may be gone.  Not with parts, where make would go
# every way from stop to stop; there rules end at the layers that are done.
PARTS ?= 1
ifeq ($(PARTS),1)
.SECONDARY:
endif

comma  := ,
layers := $(subst $(comma), ,$(LAYERS))
STEP   := exec $(RUN) forge stage
# absmax: weights are rounded where they are packed, and no step makes codes.
codes  := $(if $(filter absmax,$(METHOD)),,$(layers:%=$S/codes-%.fts))

# A file that exists is whole, even if its recipe failed later: make must not remove
# the layers that a killed or failed loop has finished.
# The codes of the checkpoint.
final  := $(if $(TUNE),$(layers:%=$U/codes-%.fts),$(codes))
.PRECIOUS: $(codes) $(final) $U/text.fts $U/own.fts $T/tokens.fts $C/fisher.fts $C/weights.fts $(layers:%=$C/hessian-%.fts)

# One after another: $1-I.fts needs $1-J.fts, J the layer before I.
pairs := $(join $(filter-out $(firstword $(layers)),$(layers)),\
           $(addprefix :,$(filter-out $(lastword $(layers)),$(layers))))
chain  = $(foreach p,$(pairs),$(eval \
  $1-$(word 1,$(subst :, ,$p)).fts: | $1-$(word 2,$(subst :, ,$p)).fts))

# The checkpoint: the codes in the runtime's layout, and the tensors that are not
# quantized.
.PHONY: result
result: | $(or $P,$(final))
	@$(STEP) result

ifneq ($P,)
$P: | $(final)
	@$(STEP) pack
endif

$T/tokens.fts:
	@$(STEP) tokens

ifneq ($(TUNE),)
# By the KL divergence of the whole model, on sequences of the text and on its own.
$U/text.fts:
	@$(STEP) text
$U/own.fts: | $U/text.fts
	@$(STEP) own
$(final) &: | $(codes) $U/text.fts $U/own.fts
	@$(STEP) tune
endif

# Fisher information of the linears' outputs (forge-gradient), and weights of tokens.
fisher  := $(if $(FISHER),$C/fisher.fts)
weights := $(if $(WEIGHTS),$C/weights.fts)
$C/fisher.fts $(weights) &: | $T/tokens.fts
	@$(STEP) fisher

ifeq ($(METHOD),rtn)
# Round to nearest: no data, every layer by itself.
$(codes): $S/codes-%.fts:
	@$(STEP) round $*
else ifeq ($(codes),)
else ifneq ($(PARTS),1)
# Parts of the tokens.  At each stop, a point of a layer, every part runs up to there
# and writes the moments of its inputs; they are merged, in the order of parts, by
# those who solve a share of the modules that read the point, or of their rows; and all
# parts go on with the codes of all shares.  Where moments are large they are merged
# before, a piece by each step, and shares read all pieces.  A stop is
# LAYER-POINT-SHARES-PIECES; SHARES <= PARTS; PIECES = PARTS or 0.
parts   := $(shell seq 0 $$(($(PARTS) - 1)))
stop     = $(word 1,$(subst -, ,$1))-$(word 2,$(subst -, ,$1))
moments  = $(parts:%=$S/moments-$(call stop,$1).part-%.fts)
count    = $(word 3,$(subst -, ,$1))
pieces   = $(if $(filter-out 0,$(word 4,$(subst -, ,$1))),$(parts:%=$S/merged-$(call stop,$1).piece-%.fts))
share    = $S/codes-$(call stop,$1).share-%-of-$(call count,$1).fts
shares   = $(patsubst %,$(call share,$1),$(wordlist 1,$(call count,$1),$(parts)))

# The rules of stop $1, which waits for the files $2.
define stop_rules
.PRECIOUS: $(call moments,$1) $(call pieces,$1) $(call shares,$1)
$(call moments,$1): $S/moments-$(call stop,$1).part-%.fts: | $2
	@$(STEP) moments $(call stop,$1) $$*
$(call pieces,$1): $S/merged-$(call stop,$1).piece-%.fts: | $(call moments,$1)
	@$(STEP) merge $(call stop,$1) $$*
$(call shares,$1): $(call share,$1): | $(or $(call pieces,$1),$(call moments,$1)) $(fisher)
	@$(STEP) share $(call stop,$1) $$*
endef

# Those of layer $1: a stop waits for the shares of the one before, the first for all
# layers before.  Of the original model (one stop a layer) a part waits for itself alone.
before   := $T/tokens.fts $(weights)
original := $(filter original,$(PROPAGATE))
own       = $S/moments-$(call stop,$1).part-%.fts
behind   := $(if $(original),own,shares)
define layer_rules
ifeq ($$(wildcard $S/codes-$1.fts),)
stops := $$(filter $1-%,$$(subst $$(comma), ,$$(STOPS)))
$$(foreach s,$$(stops),$$(eval $$(call stop_rules,$$s,$$(before)))$$(eval before := $$(call $(behind),$$s)))
$S/codes-$1.fts: | $$(foreach s,$$(stops),$$(call shares,$$s)) $T/tokens.fts
	@$$(STEP) layer $1
endif
done   += $S/codes-$1.fts
before := $(if $(original),$$(before),$T/tokens.fts $(weights) $$(done))
endef
$(foreach l,$(layers),$(eval $(call layer_rules,$l)))
else ifeq ($(PROPAGATE),original)
# The original model runs once, layer after layer; solving follows wherever
# there is room, --jobs at a time.
$(codes): $S/codes-%.fts: | $C/hessian-%.fts $(fisher)
	@$(STEP) solve $*
$(layers:%=$C/hessian-%.fts): $C/hessian-%.fts: | $T/tokens.fts $(weights)
	@$(STEP) calibrate $*
$(call chain,$C/hessian)
else
# Every layer is calibrated on the output of the quantized layers before it: one
# pipe makes them all, each appears when it is whole.  Beside it they become the
# checkpoint.
$(codes) &: | $T/tokens.fts $(fisher) $(weights)
	@$(STEP) loop
endif
