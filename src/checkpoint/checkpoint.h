/* checkpoint.h - a Hugging Face checkpoint directory, opened for reading.
 *
 * What is seen is one form of each model: experts stored in one tensor come
 * apart into MODULE.weight of each, and weights of 8-bit floats (DeepSeek's
 * and AutoFP8's, compressed-tensors' float-quantized) show as bf16, which is
 * value times scale rounded once, without their scales.  4-bit linears stay
 * in their parts.
 *
 * safetensors or pickled .bin (the zip kind of torch.save), single or sharded;
 * tensors are found by the index and read one at a time, so that memory does
 * not grow with the model.  Everything in the directory is untrusted: names of
 * shards cannot leave it, sizes must agree with the files
 * (reference: safetensors' own reader). */
#ifndef FORGE_CHECKPOINT_H
#define FORGE_CHECKPOINT_H

#include "common/base.h"
#include "common/math/dtype.h"
#include "layout/int4pack.h"

enum { CHECKPOINT_MAX_DIMS = 8 };

/* How the linears of a checkpoint are stored. */
enum storage {
    STORAGE_PLAIN, /* MODULE.weight in a float dtype, fp8 included */
    STORAGE_AWQ,   /* qweight, qzeros, scales: gemm order */
    STORAGE_GPTQ,  /* qweight, qzeros (minus one), scales, g_idx */
    STORAGE_GPTQ_V2,
    STORAGE_CT,       /* compressed-tensors pack-quantized */
    STORAGE_INT4PACK, /* torch's tiles: layout/int4pack.h */
    STORAGE_INT4PACK_XPU
};

struct checkpoint;
struct forge_w4a16;

/* One tensor.  Strings live as long as the checkpoint. */
struct ck_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    uint64_t dims[CHECKPOINT_MAX_DIMS];
    uint64_t bytes;
    uint64_t stored;   /* its bytes in the files, an fp8 scale's included */
    const char *file;  /* shard, relative to the directory */
    const void *where; /* private */
};

/* dir: the directory, or one .safetensors or .bin file, which is then read
 * alone.  Of several forms in a directory the first of model.safetensors,
 * model.safetensors.index.json, pytorch_model.bin and
 * pytorch_model.bin.index.json is read, as transformers does.
 *
 * Tensors that an index lists must be in the shard it says; tensors of a
 * shard that it does not list are read too, as transformers and vLLM do; the
 * same name in two shards is refused.
 *
 * E_NOINPUT: no checkpoint there, or a listed shard is missing; E_DATA: a rule
 * of the format is broken, or a listed tensor is missing; E_CONFIG: a
 * quantization_config that is not understood, by name.  Reads every shard's
 * header, no payload.  One checkpoint belongs to one thread. */
MUST_CHECK int checkpoint_open(struct checkpoint **c, const char *dir,
                               struct err *e);
/* The same, but tensors are what the files say, fused experts and 8-bit
 * floats too: to list them. */
MUST_CHECK int checkpoint_open_stored(struct checkpoint **c, const char *dir,
                                      struct err *e);
void checkpoint_close(struct checkpoint *c);

/* Tensors in the order of the files, then of their offsets. */
size_t checkpoint_count(const struct checkpoint *c);
const struct ck_tensor *checkpoint_tensor(const struct checkpoint *c, size_t i);
/* NULL when there is none. */
const struct ck_tensor *checkpoint_find(const struct checkpoint *c,
                                        const char *name);
/* Payload into buf (t->bytes long), contiguous and row-major. */
MUST_CHECK int checkpoint_read(struct checkpoint *c, const struct ck_tensor *t,
                               void *buf, struct err *e);

/* Tell the reader that t comes next (may do nothing, cannot fail). */
void checkpoint_prefetch(struct checkpoint *c, const struct ck_tensor *t);
/* XXH3 of the index, of every header, of config.json and of the files' sizes:
 * tells one checkpoint from another without reading its payload. */
uint64_t checkpoint_fingerprint(const struct checkpoint *c);

enum storage checkpoint_storage(const struct checkpoint *c);
/* Inputs per scale of a 4-bit checkpoint; 0 when plain, -1: one per row. */
int64_t checkpoint_group(const struct checkpoint *c);
/* Of the tiles of a checkpoint in layout int4pack. */
enum int4pack_capability checkpoint_capability(const struct checkpoint *c);

/* A linear's weight as floats W[rows, cols], whatever the storage: plain (any
 * float dtype), fp8 (the product with its scale, in float) or 4-bit.  module: path without ".weight".  *w is malloced,
 * free() it.  Used by calibration, evaluation and verification. */
MUST_CHECK int checkpoint_linear(struct checkpoint *c, const char *module,
                                 float **w, uint64_t *rows, uint64_t *cols,
                                 struct err *e);
/* The same, as bf16 (rounded to nearest even from the value above; a stored
 * bf16 weight is copied). */
MUST_CHECK int checkpoint_linear_bf16(struct checkpoint *c, const char *module,
                                      uint16_t **w, uint64_t *rows,
                                      uint64_t *cols, struct err *e);
/* A small tensor (norm, bias) as n floats; E_DATA when its size is another. */
MUST_CHECK int checkpoint_vector(struct checkpoint *c, const char *name,
                                 uint64_t n, float **v, struct err *e);

/* 1: a 4-bit linear, for products with its words as they lie (w4a16/w4a16.h);
 * forge_w4a16_release() it; 0: the module is stored plain. */
MUST_CHECK int checkpoint_w4a16(struct checkpoint *c, const char *module,
                                struct forge_w4a16 **w, uint64_t *rows,
                                uint64_t *cols, struct err *e);

/* Exact parts of a 4-bit linear: codes as U4 rows (cols/2 bytes each), zeros
 * as U4 [rows, groups] one byte each, scales as stored. */
struct ck_quantized {
    uint64_t rows, cols, groups, group;
    uint8_t *codes; /* [rows, cols/2], first input in the low nibble */
    uint8_t *zeros; /* [rows, groups], 0..15; GPTQ v1: after adding one to
                       each nibble of the packed word, carries included, as
                       GPTQModel does */
    enum dtype scale_dtype;
    void *scales; /* [rows, groups] */
};
/* 1: *q is filled; 0: the module is stored plain; negative: error, E_DATA
 * also for a g_idx that mixes groups (act-order), which has no such parts. */
MUST_CHECK int checkpoint_quantized(struct checkpoint *c, const char *module,
                                    struct ck_quantized *q, struct err *e);
void ck_quantized_release(struct ck_quantized *q);
/* The same without codes, which are most of the bytes: q->codes is NULL.  *mixes:
 * its g_idx mixes groups; that is no error here. */
MUST_CHECK int checkpoint_grid(struct checkpoint *c, const char *module,
                               struct ck_quantized *q, bool *mixes,
                               struct err *e);

/* Is this tensor one part (qweight, scales, g_idx, ...) of a 4-bit linear?
 * Then the module's path goes to module (cap bytes), and *first says whether
 * it is the part that stands for all: qweight or weight_packed. */
bool checkpoint_part(const struct checkpoint *c, const struct ck_tensor *t,
                     char *module, size_t cap, bool *first);

#endif
