/* quantized.h - quantized linears read from streams, to run in place of the
 * checkpoint's. */
#ifndef FORGE_QUANTIZED_H
#define FORGE_QUANTIZED_H

#include "common/io/stream.h"

/* By module path: 4-bit codes, not floats.  Those of a file stay there until
 * one is wanted, so memory does not grow with the experts of a layer.  The
 * functions that change it, and quantized_linear(), are for one thread at a time. */
struct quantized;

MUST_CHECK int quantized_create(struct quantized **c, struct err *e);
void quantized_free(struct quantized *c); /* NULL is allowed */
/* Add all modules of a stream of codes and qmeta frames (what forge-solve
 * writes); other frames are ignored.  The payloads of a regular file are read,
 * and checked, by quantized_linear(); it stays open while a module of it is here.
 * E_DATA: shapes disagree, a module appears twice or has only one of the two.
 */
MUST_CHECK int quantized_read(struct quantized *c, const char *path,
                              struct err *e);
/* One frame of such a stream; others than codes and qmeta are ignored.
 * E_DATA. */
MUST_CHECK int quantized_add(struct quantized *c, const struct frame *f,
                             struct err *e);
/* E_DATA: a module has only one of codes and qmeta, or they do not fit. */
MUST_CHECK int quantized_check(const struct quantized *c, struct err *e);
bool quantized_has(const struct quantized *c, const char *module);
size_t quantized_count(const struct quantized *c);
/* Forget all modules but the first n. */
void quantized_truncate(struct quantized *c, size_t n);
/* Forget a module, if it is there; the last one takes its place. */
void quantized_remove(struct quantized *c, const char *module);
/* Path of the i-th module; the order is that of reading. */
const char *quantized_module(const struct quantized *c, size_t i);
/* Dequantize a module into *w (malloced, [rows, cols], f32 or bf16 by dtype).
 * 1: done; 0: there are no codes for it; E_DATA: it has another shape, or the
 * file is damaged. */
MUST_CHECK int quantized_linear(const struct quantized *c, const char *module,
                                int64_t rows, int64_t cols, enum dtype dtype,
                                void **w, struct err *e);

#endif
