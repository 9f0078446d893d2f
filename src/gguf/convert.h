/* convert.h - a checkpoint as one file for llama.cpp. */
#ifndef FORGE_GGUF_CONVERT_H
#define FORGE_GGUF_CONVERT_H

#include "arch/config.h"
#include "checkpoint/checkpoint.h"
#include "common/cli/progress.h"
#include "gguf/gguf.h"

/* A tensor of the file. */
struct gguf_item {
    char *name;
    const struct ck_tensor *from; /* that it is read from; NULL: rope_freqs */
    bool packed;                  /* from stands for a 4-bit linear */
    enum gguf_type type;
    uint64_t rows, cols; /* rows 0: a vector */
    uint64_t head;       /* blocks.h */
};

/* Zero-initialise; gguf_plan_release() when done. */
struct gguf_plan {
    struct model_config config;
    struct checkpoint *c;
    const char *dir;
    bool q8; /* matrices that are not in 4 bits: Q8_0, else as they are */
    struct gguf_item *item;
    size_t n, cap;
    uint64_t q4_0, q4_1; /* 4-bit linears of either type */
    struct gguf head;
};

/* Look at everything but codes and weights.  E_CONFIG: a family, tokenizer, group,
 * scale or order of inputs that GGUF or llama.cpp does not have, with the
 * module; as checkpoint_open(). */
MUST_CHECK int gguf_plan(struct gguf_plan *p, const char *dir, bool q8,
                         struct err *e);
/* The file; it gets its name when it is whole. */
MUST_CHECK int gguf_write(struct gguf_plan *p, const char *out,
                          struct progress *progress, struct err *e);
void gguf_plan_release(struct gguf_plan *p);

#endif
