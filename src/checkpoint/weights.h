/* weights.h - which tensors of a checkpoint become which frames. */
#ifndef FORGE_WEIGHTS_H
#define FORGE_WEIGHTS_H

#include "arch/config.h"
#include "checkpoint/checkpoint.h"
#include "common/io/stream.h"

struct weights_choice {
    int64_t layer; /* this layer; -1: all layers */
    bool rest;     /* what is outside the layers; with layer: that as well */
    const char *const *match; /* globs, at least one must match; none: all */
    int n_match;
    const char *const *exclude;
    int n_exclude;
    bool dequantize; /* 4-bit linears as F32 weights */
    bool linears;    /* only the linears that can be quantized */
    bool others;     /* only what is none of them */
};

enum weights_kind {
    WEIGHTS_LINEAR, /* a `weight` frame under the module's path */
    WEIGHTS_PACKED, /* codes, scales, zeros; or dequantized */
    WEIGHTS_OTHER   /* a `tensor` frame under its own name */
};

struct weights_item {
    enum weights_kind kind;
    const struct ck_tensor *t; /* packed: its codes */
};

struct weights_plan {
    struct checkpoint *c;
    const struct model_config *config;
    bool dequantize;
    struct weights_item *item;
    size_t count;
    size_t dropped; /* rotary tables that old checkpoints carry: not weights */
    void *buf;      /* the tensor being written */
    size_t cap;
};

/* Choose, in the order of the files.  A glob is matched against a tensor's
 * name and its module's path; the parts of a 4-bit linear come and go
 * together.  E_CONFIG: nothing is chosen, or the layer is not one of the
 * model's; E_DATA: a linear of the chosen layers is missing, or its shape is
 * not what config.json says. */
MUST_CHECK int weights_plan(struct weights_plan *p, struct checkpoint *c,
                            const struct model_config *config,
                            const struct weights_choice *choice, struct err *e);
/* Write the frames of item i; *bytes: how many of payload. */
MUST_CHECK int weights_write(struct weights_plan *p, size_t i,
                             struct stream_writer *w, uint64_t *bytes,
                             struct err *e);
/* Write the frame of one linear as a weight (a 4-bit one must be planned with
 * dequantize), if the choice, which p was planned with, takes it: 1; 0: not
 * chosen.  E_DATA: the model has no such linear. */
MUST_CHECK int weights_write_module(struct weights_plan *p,
                                    const struct weights_choice *choice,
                                    const char *module, struct stream_writer *w,
                                    uint64_t *bytes, struct err *e);
void weights_release(struct weights_plan *p);

#endif
