/* convert.h - a checkpoint as one file for llama.cpp. */
#ifndef FORGE_GGUF_CONVERT_H
#define FORGE_GGUF_CONVERT_H

#include "arch/config.h"
#include "checkpoint/checkpoint.h"
#include "common/cli/progress.h"
#include "gguf/gguf.h"
#include "gguf/names.h"

/* --rest: matrices that are not in 4 bits, as they are or rounded to Q8_0. */
#define GGUF_REST_WORDS "stored|q8_0"
enum gguf_rest { GGUF_REST_STORED, GGUF_REST_Q8_0 };

/* A tensor of the file. */
struct gguf_item {
    char *name;
    enum gguf_form form;
    /* that it is read from, [parts] of them if it is a stack; NULL: rope_freqs */
    const struct ck_tensor **from;
    bool packed; /* from stands for 4-bit linears */
    enum gguf_type type;
    uint64_t parts, rows, cols; /* parts 0: a matrix; rows 0: a vector */
    uint64_t head;              /* blocks.h */
};

/* XXH3-64 of the bytes of each tensor, in their order, and of the file up to the
 * first one with these numbers as zeros. */
#define DIGESTS_KEY "forge.xxh3"

/* Zero-initialise; gguf_plan_release() when done. */
struct gguf_plan {
    struct model_config config;
    struct checkpoint *c;
    const char *dir, *name; /* name: of the model */
    bool q8; /* matrices that are not in 4 bits: Q8_0, else as they are */
    struct gguf_item *item;
    size_t n, cap;
    uint64_t q4_0, q4_1, q8_0; /* quantized linears of each type */
    uint64_t rounded; /* of q4_1, with a least weight that F16 does not hold */
    uint64_t doubles; /* tensors in F64, which become F32 */
    struct gguf head;
    size_t digests; /* place of DIGESTS_KEY's values in the head */
};

/* Look at everything but codes and weights.  E_CONFIG: a family, tokenizer, group,
 * scale or order of inputs that GGUF or llama.cpp does not have, with the
 * module; as checkpoint_open().  name NULL: that of dir. */
MUST_CHECK int gguf_plan(struct gguf_plan *p, const char *dir, const char *name,
                         bool q8, struct err *e);
/* Elements of a part of the tensor, and bytes of all parts. */
uint64_t gguf_part_elements(const struct gguf_item *x);
uint64_t gguf_item_bytes(const struct gguf_item *x);
/* E_CONFIG: a linear with zero points other than in the middle, in 8 bits. */
MUST_CHECK int gguf_check_zeros(const char *module, int bits, struct err *e);
/* E_CONFIG: the groups of a linear are no whole blocks. */
MUST_CHECK int gguf_fits(const char *module, uint64_t rows, uint64_t cols,
                         uint64_t group, uint64_t groups, struct err *e);
/* The file; it gets its name when it is whole. */
MUST_CHECK int gguf_write(struct gguf_plan *p, const char *out,
                          struct progress *progress, struct err *e);
/* model.c: what config.json says, as metadata.  architecture: llama.cpp's. */
void gguf_put_model(struct gguf_plan *p, const char *architecture);
/* recipe.c: what the checkpoint says of how it was made, and this step, the same way.
 * E_DATA, E_IO, E_TEMP. */
MUST_CHECK int gguf_put_made(struct gguf_plan *p, struct err *e);
void gguf_plan_release(struct gguf_plan *p);

#endif
