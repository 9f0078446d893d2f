/* fake_cuda.h - what the files of the fake plug-in share. */
#ifndef FORGE_FAKE_CUDA_H
#define FORGE_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/math/dtype.h"

struct err;
struct forward_route;
struct forward_rows;
struct forward_sums;
struct forward_add_times;
struct forward_attend;
struct forward_draw;
struct forward_gate_heads;
struct forward_recur;
struct forward_streams;

struct cuda_context {
    uint64_t memory; /* that may be held; 0: any */
};

/* Whether n bytes at p are in a block that other processes can map, or in one of
 * theirs. */
bool fake_is_block(const void *p, size_t n);
/* Memory of the device, by its table's functions; whether n bytes at p are in it:
 * all of them, or none. */
int fake_alloc(struct cuda_context *c, void **p, size_t n, bool spill,
               bool *spilled, struct err *e);
void fake_release(struct cuda_context *c, void *p);
int fake_room(struct cuda_context *c, size_t *n, struct err *e);
int fake_put(struct cuda_context *c, void *to, const void *host, size_t n,
             struct err *e);
int fake_get(struct cuda_context *c, void *host, const void *from, size_t n,
             struct err *e);
int fake_copy(struct cuda_context *c, void *to, const void *from, size_t n,
              struct err *e);
int fake_copy_rows(struct cuda_context *c, void *to, size_t to_row,
                   const void *from, size_t from_row, size_t n, int64_t rows,
                   struct err *e);
int fake_zero(struct cuda_context *c, void *to, size_t n, struct err *e);
bool fake_owned(const void *p, size_t n);
/* One more operation: FAKE_CUDA_FAIL, FAKE_CUDA_KILL. */
int fake_operation(const char *what, struct err *e);
/* An operation on n bytes at p, which must be the device's; FAKE_CUDA_FAIL. */
int fake_must_own(const void *p, size_t n, const char *what, struct err *e);
/* Sums of a router, whose weights are f32, as many tokens at a time as on the CPU;
 * forward_table.route(). */
int fake_router_sums(const struct forward_sums *a, struct err *e);
/* Functions of forward_table.h. */
int fake_add_times(struct cuda_context *c, const struct forward_add_times *a,
                   struct err *e);
int fake_predict(struct cuda_context *c, const struct forward_streams *a,
                 struct err *e);
int fake_join(struct cuda_context *c, const struct forward_streams *a,
              struct err *e);
int fake_correct(struct cuda_context *c, const struct forward_streams *a,
                 struct err *e);
int fake_sparsify(struct cuda_context *c, enum dtype t, double cutoff, void *g,
                  int64_t rows, int64_t n, struct err *e);
int fake_turn(struct cuda_context *c, const struct forward_attend *a,
              struct err *e);
int fake_gate_heads(struct cuda_context *c, const struct forward_gate_heads *a,
                    struct err *e);
int fake_recur(struct cuda_context *c, const struct forward_recur *a,
               struct err *e);
int fake_attend(struct cuda_context *c, const struct forward_attend *a,
                struct err *e);
int fake_sums(struct cuda_context *c, const struct forward_sums *a,
              struct err *e);
int fake_draw(struct cuda_context *c, const struct forward_draw *a,
              struct err *e);
/* *copy: weights that are tuned, which are row-major, in product_pack()'s form, as l->w
 * then; else NULL. */
struct loaded;
struct model;
int fake_pack_tuned(const struct model *m, struct loaded *l, void **copy,
                    struct err *e);
struct backward_divergence;
int fake_divergence(struct cuda_context *c, const struct backward_divergence *a,
                    struct err *e);
/* forward_table.gather(), scatter(). */
int fake_gather(struct cuda_context *c, const struct forward_rows *r, void *to,
                const void *from, struct err *e);
int fake_scatter(struct cuda_context *c, const struct forward_rows *r,
                 float *sum, const float *weight, const void *out,
                 double *squares, struct err *e);
int fake_route(struct cuda_context *c, const struct forward_route *a,
               struct err *e);
/* Zeroed memory that is noted as spilled. */
int fake_pinned(struct cuda_context *c, void **p, size_t n, struct err *e);
/* Bytes of the device: FAKE_CUDA_ROOM. */
size_t fake_limit(const struct cuda_context *c);
/* Where a loan is looked at. */
void fake_wait(const char *what);
/* A line to FAKE_CUDA_LOG. */
void fake_note(const char *what, int n, uint64_t rows, uint64_t cols);

#endif
