/* quantize_cuda.cu - batches of linears from Hessians and weights to packed
 * words, on the device all the way.
 *
 * Matrices of one size go together, as many as there is memory for: when it
 * ends, the batch is halved, what is held is given back, and it goes on. */
#include "cuda/internal.cuh"

#include <stdlib.h>

static int check(const struct cuda_quantize *p, struct err *e)
{
    if (p->sets < 1 || p->sets > CUDA_SETS || p->batch < 1)
        return err_set(e, E_CONFIG, "the GPU takes 1 to %d matrices a Hessian",
                       CUDA_SETS);
    if (p->grid.search == GRID_HESSIAN || p->grid.importance)
        return err_set(e, E_CONFIG, "grids by the Hessian are searched before");
    return 0;
}

/* All matrices of all Hessians: those that share one follow each other. */
static int run_sets(struct cuda_context *c, const struct cuda_quantize *p,
                    const struct cuda_factors *f, struct cuda_linear *l,
                    struct cuda_module *m, int n, struct err *e)
{
    struct solve_params s = {};
    int all = n * p->sets, rc;

    s.rows = p->grid.rows;
    s.cols = p->grid.cols;
    s.group = p->grid.group;
    s.dtype = p->grid.dtype;
    s.scale_dtype = p->grid.scale_dtype;
    s.compare = p->compare;
    for (int i = 0; i < all; i++) {
        m[i].w = l[i / p->sets].set[i % p->sets].w;
        m[i].searched = l[i / p->sets].set[i % p->sets].meta;
        m[i].codes = (uint8_t *)l[i / p->sets].set[i % p->sets].out;
    }
    rc = solve_modules(c, &s, &p->grid, p->layout, f, m, all, e);
    for (int i = 0; i < all; i++)
        l[i / p->sets].set[i % p->sets].result = m[i].result;
    return rc;
}

static int run_batch(struct cuda_context *c, const struct cuda_quantize *p,
                     struct cuda_matrix *h, struct cuda_linear *l,
                     struct cuda_module *m, int n, struct err *e)
{
    struct cuda_factors *f;
    int rc = cuda_factors_build(&f, c, p->grid.cols, h, n, e);

    if (rc < 0)
        return rc;
    rc = run_sets(c, p, f, l, m, n, e);
    cuda_factors_free(f);
    mark(c, CUDA_WAITING);
    return rc;
}

int cuda_quantize(struct cuda_context *c, const struct cuda_quantize *p,
                  struct cuda_matrix *h, struct cuda_linear *l, int n,
                  struct err *e)
{
    int rc = check(p, e);
    struct cuda_module *m;

    if (rc < 0)
        return rc;
    m = (struct cuda_module *)mem_zero((size_t)p->batch * p->sets, sizeof(*m),
                                       "quantize", e);
    if (!m)
        return e->code;
    rc = in_batches(c, n, p->batch, [&](uint64_t i, uint64_t take) {
        return run_batch(c, p, h + i, l + i, m, (int)take, e);
    });
    free(m);
    return rc;
}
