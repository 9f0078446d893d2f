/* quantized.h - quantized linears read from streams, to be run in place of the
 * checkpoint's. */
#ifndef FORGE_QUANTIZED_H
#define FORGE_QUANTIZED_H

#include "common/io/stream.h"
#include "model/forward_table.h"

/* A set of modules: codes and qmeta by module path.  Payloads of a file stay
 * there until they are needed, so memory does not grow with the experts of a
 * layer.  Not thread-safe: this holds for functions that change it and for
 * quantized_linear(). */
struct quantized;

/* An empty set.  E_TEMP. */
MUST_CHECK int quantized_create(struct quantized **c, struct err *e);
void quantized_free(struct quantized *c); /* NULL is allowed */
/* Add all modules of a stream of codes and qmeta frames (forge-solve's
 * output); other frames are ignored, but not alone.  Payloads of a regular file are read and
 * checked by quantized_linear(); the file stays open as long as one of its
 * modules is in the set.  Some rows of a module (name_rows of arch/tensor_name.h) are
 * put with the others where it is used.  E_DATA: only others, but notes, are in it; shapes
 * disagree; a module appears twice or lacks codes or qmeta. */
MUST_CHECK int quantized_read(struct quantized *c, const char *path,
                              struct err *e);
/* Add a frame of codes or qmeta, whose payload is c's from the call on, even if it
 * fails: malloced.  E_DATA. */
MUST_CHECK int quantized_add(struct quantized *c, const struct frame *f,
                             struct err *e);
/* E_DATA: a module has only codes or only qmeta, or their shapes do not fit. */
MUST_CHECK int quantized_check(const struct quantized *c, struct err *e);
bool quantized_has(const struct quantized *c, const char *module);
size_t quantized_count(const struct quantized *c);
/* Remove all modules but the first n. */
void quantized_truncate(struct quantized *c, size_t n);
/* Remove a module, if it is there; the last one takes its index. */
void quantized_remove(struct quantized *c, const char *module);
/* Path of module i < quantized_count(), in the order of reading. */
const char *quantized_module(const struct quantized *c, size_t i);
/* The 4-bit codes of a module, all but q->dtype, valid as long as it is in the set.  1;
 * 0: it is not in the set, or in a file, or has 8 bits; E_DATA: another shape, or
 * grids of other than 4 bits. */
MUST_CHECK int quantized_codes(const struct quantized *c, const char *module,
                               int64_t rows, int64_t cols,
                               struct forward_codes *q, struct err *e);
/* Dequantize a module: *w [rows, cols], row-major, f32 or bf16 by dtype;
 * free() it.  1: done; 0: the module is not in the set; E_DATA: another shape,
 * or the file is damaged; E_IO, E_TEMP. */
MUST_CHECK int quantized_linear(const struct quantized *c, const char *module,
                                int64_t rows, int64_t cols, enum dtype dtype,
                                void **w, struct err *e);

#endif
