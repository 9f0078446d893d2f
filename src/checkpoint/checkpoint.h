/* checkpoint.h - reads a Hugging Face checkpoint directory.
 *
 * Files: safetensors or pickled .bin (the zip format of torch.save), single or
 * sharded.  Headers are read at open, payloads one tensor at a time, so that
 * memory does not grow with the model.  Everything in the directory is
 * untrusted: file names cannot lead out of it, and sizes must agree with the
 * files (reference: safetensors' own reader).
 *
 * checkpoint_open() gives one view of each model, whatever its storage:
 * experts fused in one tensor appear as MODULE.weight of each expert; weights
 * of 8-bit floats (fp8: DeepSeek's, AutoFP8's, compressed-tensors'
 * float-quantized) appear as bf16, value times scale rounded once, and their
 * scales do not appear, nor do k_proj and v_proj of Gemma 3n's layers that use the
 * keys and values of another.  The language model of a multimodal checkpoint has the
 * names that it would have alone.  The tensors of 4-bit linears appear as they
 * are stored. */
#ifndef FORGE_CHECKPOINT_H
#define FORGE_CHECKPOINT_H

#include "common/base.h"
#include "common/math/fp8.h"
#include "forge_w4a16.h"
#include "layout/int4pack.h"

enum { CHECKPOINT_MAX_DIMS = 8 };

/* How the linears are stored. */
enum storage {
    STORAGE_PLAIN,    /* MODULE.weight of a float type, fp8 included */
    STORAGE_AWQ,      /* qweight, qzeros, scales: version gemm */
    STORAGE_GPTQ,     /* qweight, qzeros (stored minus one), scales, g_idx */
    STORAGE_GPTQ_V2,  /* the same, with qzeros as they are */
    STORAGE_CT,       /* compressed-tensors pack-quantized */
    STORAGE_INT4PACK, /* torch's tiles: layout/int4pack.h */
    STORAGE_INT4PACK_XPU
};

struct checkpoint;

/* One tensor of the view.  Strings live as long as the checkpoint. */
struct ck_tensor {
    const char *name;
    enum dtype dtype;
    int ndim;
    uint64_t dims[CHECKPOINT_MAX_DIMS];
    uint64_t bytes;    /* of the contiguous tensor */
    uint64_t stored;   /* its bytes in the files, with those of its fp8 scale */
    const char *file;  /* name of the shard in the directory */
    const void *where; /* private: its struct ck_entry */
};

/* Open a directory, or a single .safetensors, .bin, .pt or .pth file alone.  Of several
 * forms in a directory the first of model.safetensors,
 * model.safetensors.index.json, pytorch_model.bin and
 * pytorch_model.bin.index.json is read, as in transformers.
 *
 * Tensors in a listed shard that the index does not name are included, as in
 * transformers and vLLM; the same name in two shards is refused.
 *
 * E_NOINPUT: no checkpoint there, or a listed shard is missing; E_DATA: a file
 * breaks its format, or lacks a tensor that the index lists; E_CONFIG: a
 * quantization_config that is not supported, by name; E_TEMP.  Reads the
 * header of every shard.  A checkpoint may be used by one thread at a time. */
MUST_CHECK int checkpoint_open(struct checkpoint **c, const char *dir,
                               struct err *e);
/* The same without the view: tensors as the files have them, for listings. */
MUST_CHECK int checkpoint_open_stored(struct checkpoint **c, const char *dir,
                                      struct err *e);
void checkpoint_close(struct checkpoint *c);

/* Number of tensors; tensor i < count, in the order of files and offsets. */
size_t checkpoint_count(const struct checkpoint *c);
const struct ck_tensor *checkpoint_tensor(const struct checkpoint *c, size_t i);
/* The tensor of this name; NULL: none. */
const struct ck_tensor *checkpoint_find(const struct checkpoint *c,
                                        const char *name);
/* to[cap] = the name that the tensor has in the files, cut to fit; the view
 * calls the language model of a multimodal checkpoint, and one for embeddings, as if it
 * were alone (wrapped.h). */
void checkpoint_stored_name(const struct checkpoint *c, const char *name,
                            char *to, size_t cap);
/* Whether the files have the model without the class around it, "layers.3..."; and
 * without an output head. */
bool checkpoint_bare(const struct checkpoint *c);
bool checkpoint_headless(const struct checkpoint *c);
/* From now on nothing is read: tensors are looked for, their types and shapes
 * checked, and values that checkpoint_vector() and the like give mean nothing;
 * checkpoint_linear_bf16() gives no [rows, cols]. */
void checkpoint_look(struct checkpoint *c);
/* Read a tensor into buf[t->bytes], contiguous, row-major.  E_DATA, E_IO,
 * E_TEMP. */
MUST_CHECK int checkpoint_read(struct checkpoint *c, const struct ck_tensor *t,
                               void *buf, struct err *e);

/* Whether t, bf16 here, is stored as 8-bit floats with scales; then *m is its type and
 * shape, without data and scales. */
bool checkpoint_fp8(const struct ck_tensor *t, struct fp8_matrix *m);
/* Read such a tensor as it is stored: codes[t->bytes / 2], and its scales as f32.
 * E_DATA, E_IO, E_TEMP. */
MUST_CHECK int checkpoint_read_fp8(struct checkpoint *c,
                                   const struct ck_tensor *t, void *codes,
                                   float *scales, struct err *e);

/* Whether single rows of t can be read: it lies in its file as it is shown. */
bool checkpoint_has_rows(const struct ck_tensor *t);
/* Read bytes [at, at + n) of such a tensor.  Any number of threads may.  E_DATA, E_IO,
 * E_TEMP. */
MUST_CHECK int checkpoint_read_bytes(struct checkpoint *c,
                                     const struct ck_tensor *t, uint64_t at,
                                     uint64_t n, void *buf, struct err *e);
/* Read n rows of such a tensor, indices of its first dimension, from `first` on.
 * first + n <= t->dims[0].  E_DATA, E_IO, E_TEMP. */
MUST_CHECK int checkpoint_read_rows(struct checkpoint *c,
                                    const struct ck_tensor *t, uint64_t first,
                                    uint64_t n, void *buf, struct err *e);

/* *most: the largest |w| of n rows of t, floats, from `first` on, of 8-bit floats with a
 * scale after rounding to bf16; 0 of other types; infinity and NaN are the largest.  Where
 * rows cannot be read alone, of all.  *buf [*cap]: room that mem_reserve() made, or NULL.
 * E_DATA, E_IO, E_TEMP. */
MUST_CHECK int checkpoint_most(struct checkpoint *c, const struct ck_tensor *t,
                               uint64_t first, uint64_t n, void **buf,
                               size_t *cap, float *most, struct err *e);

/* Hint: t will be read next. */
void checkpoint_prefetch(struct checkpoint *c, const struct ck_tensor *t);
/* XXH3-64 over the index, all headers, config.json and file sizes: tells
 * checkpoints apart without reading payloads. */
uint64_t checkpoint_fingerprint(const struct checkpoint *c);

/* How 4-bit linears are stored; STORAGE_PLAIN: there are none. */
enum storage checkpoint_storage(const struct checkpoint *c);
/* Inputs per scale of a 4-bit checkpoint; -1: one scale per row; 0: plain. */
int64_t checkpoint_group(const struct checkpoint *c);
/* Bits of the codes of its modules, but for those that the configuration excepts;
 * 0: plain. */
int checkpoint_bits(const struct checkpoint *c);
/* Whether its configuration has engines round activations, or keys and values in their
 * cache.  Our forward pass does neither. */
bool checkpoint_rounds_activations(const struct checkpoint *c);
bool checkpoint_rounds_cache(const struct checkpoint *c);
/* Of the tiles of a checkpoint in layout int4pack. */
enum int4pack_capability checkpoint_capability(const struct checkpoint *c);

/* A linear's weight W [*rows, *cols] as f32, row-major, whatever its storage;
 * free() *w.  module: path without ".weight".  fp8 is multiplied by its scale
 * in f32.  E_DATA: there is no such linear, or its tensors do not fit; E_IO,
 * E_TEMP. */
MUST_CHECK int checkpoint_linear(struct checkpoint *c, const char *module,
                                 float **w, uint64_t *rows, uint64_t *cols,
                                 struct err *e);
/* The same as bf16, rounded to nearest even; a stored bf16 weight is copied. */
MUST_CHECK int checkpoint_linear_bf16(struct checkpoint *c, const char *module,
                                      uint16_t **w, uint64_t *rows,
                                      uint64_t *cols, struct err *e);
/* A linear that is stored as 8-bit floats with scales, as it is.  1: *m has it, and
 * data and scale are malloced; 0: it is stored otherwise; E_DATA, E_IO, E_TEMP. */
MUST_CHECK int checkpoint_linear_fp8(struct checkpoint *c, const char *module,
                                     struct fp8_matrix *m, struct err *e);
/* A sample of rows: n of them, of which the i-th is (i / run) step + i % run. */
struct ck_rows {
    uint64_t n, run, step;
};
static inline uint64_t ck_row(const struct ck_rows *s, uint64_t i)
{
    return i / s->run * s->step + i % s->run;
}
/* The same as bf16 [s->n, cols] of a sample; only its rows are read, where the
 * storage lets them be.  E_DATA: the weight is not [rows, cols], too. */
MUST_CHECK int checkpoint_linear_rows(struct checkpoint *c, const char *module,
                                      const struct ck_rows *s, uint64_t rows,
                                      uint64_t cols, uint16_t **w,
                                      struct err *e);
/* A small tensor (norm, bias) as v[n] f32; free() *v.  E_DATA: not there, or
 * not n elements. */
MUST_CHECK int checkpoint_vector(struct checkpoint *c, const char *name,
                                 uint64_t n, float **v, struct err *e);

/* A 4-bit linear as products take it, and its memory. */
struct ck_words {
    struct forge_w4a16_linear of;
    void *codes, *scales, *zeros, *g_idx; /* malloced; what `of` points to */
};
/* Read a 4-bit linear, words as they are stored (int4pack's tiles as
 * compressed-tensors' words).  1: ck_words_release() it; 0: the module is stored
 * plain, or in 8 bits; E_DATA, E_IO, E_TEMP. */
MUST_CHECK int checkpoint_words(struct checkpoint *c, const char *module,
                                struct ck_words *w, struct err *e);
void ck_words_release(struct ck_words *w); /* zeroed is allowed, and is left */

/* Codes, zeros and scales of a linear of 4 or 8 bits, exactly as stored. */
struct ck_quantized {
    uint64_t rows, cols, groups, group;
    int bits;
    uint8_t *codes; /* [rows, cols/2] bytes, the first input in the low
                     * nibble; in 8 bits [rows, cols] */
    /* [rows, groups] bytes.  GPTQ v1: one was added to each nibble (byte) of
     * the packed word, carries included, as GPTQModel does */
    uint8_t *zeros;
    enum dtype scale_dtype;
    void *scales;   /* [rows, groups] */
    int32_t *g_idx; /* [cols] group of each input (act-order); NULL: input /
                     * group */
};
/* 1: *q is set, ck_quantized_release() it; 0: the module is stored plain.
 * E_DATA: its tensors do not fit; E_IO, E_TEMP. */
MUST_CHECK int checkpoint_quantized(struct checkpoint *c, const char *module,
                                    struct ck_quantized *q, struct err *e);
void ck_quantized_release(struct ck_quantized *q);
/* The same without the codes, which are most of the bytes: q->codes is NULL. */
MUST_CHECK int checkpoint_grid(struct checkpoint *c, const char *module,
                               struct ck_quantized *q, struct err *e);

/* Whether t is a tensor (qweight, scales, g_idx, ...) of a 4-bit linear.  Then
 * module[cap] is the linear's path, and *first tells whether t is its codes
 * (qweight, weight_packed, weight_int4pack), which stand for the linear in
 * lists. */
bool checkpoint_part(const struct checkpoint *c, const struct ck_tensor *t,
                     char *module, size_t cap, bool *first);

#endif
