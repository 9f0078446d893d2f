/* backward_parts.h - what the files of the backward pass share. */
#ifndef FORGE_BACKWARD_PARTS_H
#define FORGE_BACKWARD_PARTS_H

#include "model/backward_table.h"
#include "model/internal.h"

/* The functions of the device where layers run, or the CPU's. */
static inline const struct backward_table *backward_of(const struct model *m)
{
    return m->back ? m->back : &backward_cpu;
}

/* Weights of the backward pass are elements on a device, f32 on the CPU. */
static inline bool backward_bf16(const struct model *m)
{
    return m->on && m->bf16;
}

/* Load the linear l->of, row-major: the weights that the forward pass uses, where layers
 * run.  loaded_release() it, also after an error. */
MUST_CHECK int backward_load(struct model *m, struct loaded *l, struct err *e);
/* backward_load() in two steps: reading, which another thread may do, and the rest. */
MUST_CHECK int backward_read(struct model *m, struct loaded *l, struct err *e);
MUST_CHECK int backward_place(struct model *m, struct loaded *l, struct err *e);
/* Row `row` of the weights of l. */
static inline void *backward_weight_at(const struct model *m,
                                       const struct loaded *l, int64_t row)
{
    return (char *)l->w +
           (size_t)(row * l->of.cols) * (backward_bf16(m) ? 2 : sizeof(float));
}
/* Weights of the checkpoint, [n], where layers run; model_free() them. */
MUST_CHECK int backward_vector(struct model *m, const char *name, int64_t n,
                               float **v, struct err *e);
/* The same of a norm, by its module in the layer (layer < 0: by its name):
 * model_norm_vector(). */
MUST_CHECK int backward_norm_vector(struct model *m, int64_t layer,
                                    const char *module, int64_t n, float **v,
                                    struct err *e);
/* *to: n rows of the residual stream, elements, where layers run: x, if it is there, or
 * a copy in b of x, which is the host's. */
MUST_CHECK int backward_rows(const struct model *m, struct buffer *b,
                             const void *x, bool there, int64_t n,
                             const void **to, struct err *e);
/* Zero n bytes where layers run. */
MUST_CHECK int backward_zero(const struct model *m, void *p, size_t n,
                             struct err *e);
/* The gradient of the residual stream's norm, y = norm(x) with weights w: g[n,
 * H] += that with respect to x, or with `replace` = it.  w NULL: y is x. */
MUST_CHECK int backward_stream(const struct model *m, const void *x,
                               const float *w, const float *gy, int64_t n,
                               float *g, bool replace, struct err *e);

/* *g [rows, cols]: to which the gradient with respect to the weights of l is added; NULL:
 * they are not tuned (model_tune()). */
MUST_CHECK int backward_tuned(const struct model *m, const struct linear *l,
                              float **g, struct err *e);

/* ---- the CPU's (backward_table.h) ---- */

int widen_cpu(struct cuda_context *c, enum dtype t, const void *x, int64_t n,
              float *to, struct err *e);
int narrow_cpu(struct cuda_context *c, enum dtype t, const float *x, int64_t n,
               void *to, struct err *e);
int scale_cpu(struct cuda_context *c, const float *x, float by, bool add,
              int64_t n, float *to, struct err *e);
int squares_cpu(struct cuda_context *c, const float *x, int64_t rows, int64_t n,
                float *to, struct err *e);
/* |x|^2 of x[n], summed in double. */
double square_of(const float *x, int64_t n);
int linear_back_cpu(struct cuda_context *c, const struct backward_linear *a,
                    struct err *e);
int norm_back_cpu(struct cuda_context *c, const struct backward_norm *a,
                  struct err *e);
int mlp_back_cpu(struct cuda_context *c, const struct backward_mlp *a,
                 struct err *e);
int weights_back_cpu(struct cuda_context *c, const struct backward_weights *a,
                     struct err *e);
int gates_cpu(struct cuda_context *c, const float *in, const float *w,
              int64_t rows, int64_t n, float *weight, struct err *e);
int attend_back_cpu(struct cuda_context *c, const struct backward_attend *a,
                    struct err *e);
int latent_cpu(struct cuda_context *c, const struct backward_latent *a,
               struct err *e);
int head_back_cpu(struct cuda_context *c, const struct backward_head *a,
                  struct err *e);
/* Row i of norm_back_cpu(). */
void norm_back_row(const struct backward_norm *a, int64_t i);

#endif
