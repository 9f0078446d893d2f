/* weights.h - selects tensors of a checkpoint and writes them as frames
 * (forge-weights). */
#ifndef FORGE_WEIGHTS_H
#define FORGE_WEIGHTS_H

#include "arch/choice.h"
#include "checkpoint/checkpoint.h"
#include "common/io/stream.h"

/* What to select: options of forge-weights. */
struct weights_choice {
    int64_t layer; /* only this layer; -1: all */
    bool rest; /* only tensors outside the layers; together with layer: both */
    const char *const *match; /* globs of which one must match; none: all */
    int n_match;
    const char *const *exclude; /* globs of which none may match */
    int n_exclude;
    /* Of a layer's experts only every shares-th, from `share` on, and no other tensor;
     * shares 0: all. */
    int64_t share, shares;
    bool dequantize;                /* write 4-bit linears as F32 weights */
    bool linears;                   /* only linears that are to be quantized */
    bool others;                    /* only tensors that are not such linears */
    struct module_choice quantized; /* those linears; others are tensors */
};

/* How a selected tensor is written. */
enum weights_kind {
    WEIGHTS_LINEAR, /* a `weight` frame with the module's path */
    WEIGHTS_PACKED, /* frames of codes, scales and zeros, or dequantized */
    WEIGHTS_OTHER   /* a `tensor` frame with its own name */
};

/* A selected tensor. */
struct weights_item {
    enum weights_kind kind;
    const struct ck_tensor *t; /* of a packed linear: its codes */
};

/* The selected tensors, in the order of the files; release by
 * weights_release(). */
struct weights_plan {
    struct checkpoint *c;
    const struct model_config *config;
    bool dequantize;
    struct weights_item *item;
    size_t count;
    size_t dropped; /* left out: rotary tables (inv_freq) of old checkpoints */
    void *buf;      /* the tensor being written */
    size_t cap;
};

/* Select tensors.  Globs are matched against a tensor's name and its module's
 * path; the tensors of a 4-bit linear are selected together.  c and config
 * must outlive p.  E_CONFIG: nothing is selected, there is no such layer, or
 * an error of module_choice_check();
 * E_DATA: a linear of a selected layer is missing, or its shape is not that of
 * config.json; E_TEMP. */
MUST_CHECK int weights_plan(struct weights_plan *p, struct checkpoint *c,
                            const struct model_config *config,
                            const struct weights_choice *choice, struct err *e);
/* Write the frames of item i; *bytes: their payload.  Errors as
 * checkpoint_read() and stream_write(). */
MUST_CHECK int weights_write(struct weights_plan *p, size_t i,
                             struct stream_writer *w, uint64_t *bytes,
                             struct err *e);
/* *it: what stands for a linear.  1; 0: `choice`, with which p was made, does not
 * select it; E_DATA: the model has no such linear. */
MUST_CHECK int weights_module(struct weights_plan *p,
                              const struct weights_choice *choice,
                              const char *module, struct weights_item *it,
                              struct err *e);
/* The frame of an item that is no 4-bit linear, without data.  E_DATA: its name
 * is too long. */
MUST_CHECK int weights_frame(const struct weights_item *it, struct frame *f,
                             struct err *e);
/* Write the `weight` frame of one linear (a 4-bit one needs dequantize), or of some
 * of its rows (name_rows of arch/tensor_name.h), if `choice`, with which p was made,
 * selects it.  1: written; 0: not selected; E_DATA: the model has no such linear, or
 * it has not as many rows as the name says. */
MUST_CHECK int weights_write_module(struct weights_plan *p,
                                    const struct weights_choice *choice,
                                    const char *name, struct stream_writer *w,
                                    uint64_t *bytes, struct err *e);
void weights_release(struct weights_plan *p);

#endif
