/* backward_cpu.c - see backward_table.h: the CPU's linears, norms, gates, and
 * keys and values of latent attention. */
#include <math.h>
#include <string.h>

#include "common/math/blas.h"
#include "common/math/rounded.h"
#include "common/math/threads.h"
#include "model/backward_parts.h"

/* ---- between elements and f32 ---- */

enum { PIECE = 16384 };

struct convert_job {
    enum dtype t;
    const char *from;
    char *to;
    size_t n, in, out; /* elements; bytes of one on each side */
    bool narrow;
};

static void convert_pieces(void *ctx, size_t begin, size_t end)
{
    const struct convert_job *j = ctx;

    for (size_t i = begin * PIECE; i < j->n && i < end * PIECE; i += PIECE) {
        size_t n = j->n - i < PIECE ? j->n - i : PIECE;
        const void *from = j->from + i * j->in;
        void *to = j->to + i * j->out;

        if (j->narrow)
            (void)!from_f32(to, j->t, from, n);
        else
            (void)!to_f32(to, from, j->t, n);
    }
}

static int convert(struct convert_job *j, struct err *e)
{
    if (!dtype_is_float(j->t))
        return err_set(e, E_BUG, "gradients are no float");
    threads_for((j->n + PIECE - 1) / PIECE, 1, convert_pieces, j);
    return 0;
}

int widen_cpu(struct cuda_context *c, enum dtype t, const void *x, int64_t n,
              float *to, struct err *e)
{
    struct convert_job j = {
        t, x, (char *)to, (size_t)n, dtype_bits(t) / 8, sizeof(float), false
    };

    (void)c;
    return convert(&j, e);
}

int narrow_cpu(struct cuda_context *c, enum dtype t, const float *x, int64_t n,
               void *to, struct err *e)
{
    struct convert_job j = { t,         (const char *)x, to,
                             (size_t)n, sizeof(float),   dtype_bits(t) / 8,
                             true };

    (void)c;
    return convert(&j, e);
}

/* ---- multiples ---- */

struct scale_job {
    const float *x;
    float by;
    bool add;
    size_t n;
    float *to;
};

static void scale_pieces(void *ctx, size_t begin, size_t end)
{
    const struct scale_job *j = ctx;
    size_t last = end * PIECE < j->n ? end * PIECE : j->n;

    for (size_t i = begin * PIECE; i < last; i++)
        j->to[i] = j->by * j->x[i] + (j->add ? j->to[i] : 0);
}

int scale_cpu(struct cuda_context *c, const float *x, float by, bool add,
              int64_t n, float *to, struct err *e)
{
    struct scale_job j = { x, by, add, (size_t)n, to };

    (void)c;
    (void)e;
    threads_for(((size_t)n + PIECE - 1) / PIECE, 1, scale_pieces, &j);
    return 0;
}

/* ---- squares ---- */

struct squares_job {
    const float *x;
    int64_t n;
    float *to;
};

double square_of(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t k = 0; k < n; k++)
        sum += (double)x[k] * (double)x[k];
    return sum;
}

static void square_rows(void *ctx, size_t begin, size_t end)
{
    const struct squares_job *j = ctx;

    for (size_t i = begin; i < end; i++)
        j->to[i] += (float)square_of(j->x + i * (size_t)j->n, j->n);
}

int squares_cpu(struct cuda_context *c, const float *x, int64_t rows, int64_t n,
                float *to, struct err *e)
{
    struct squares_job j = { x, n, to };

    (void)c;
    (void)e;
    threads_for((size_t)rows, 16, square_rows, &j);
    return 0;
}

/* ---- linears ---- */

enum { ROWS = 128 }; /* rows of a product of one thread */

static void linear_rows(void *ctx, size_t begin, size_t end)
{
    const struct backward_linear *j = ctx;

    for (int64_t at = (int64_t)begin * ROWS; at < (int64_t)end * ROWS;
         at += ROWS) {
        int64_t n = j->rows - at < ROWS ? j->rows - at : ROWS;
        const float *x = j->x + at * (j->back ? j->out : j->in);
        float *y = j->y + at * (j->back ? j->in : j->out);

        blas_sgemm(&(struct sgemm){ .tb = !j->back,
                                    .m = n,
                                    .n = j->back ? j->in : j->out,
                                    .k = j->back ? j->out : j->in,
                                    .a = x,
                                    .b = j->w,
                                    .beta = j->add ? 1 : 0,
                                    .c = y });
        for (int64_t i = 0; j->bias && i < n; i++)
            for (int64_t k = 0; k < j->out; k++)
                y[i * j->out + k] += j->bias[k];
    }
}

static void bias_rows(void *ctx, size_t begin, size_t end)
{
    const struct backward_linear *j = ctx;

    for (size_t i = begin; i < end; i++)
        for (int64_t k = 0; k < j->out; k++)
            j->y[(int64_t)i * j->out + k] += j->bias[k];
}

static int linear_rounded(struct backward_linear *j, struct err *e)
{
    if (rounded_gemm(&(struct sgemm){ .tb = !j->back,
                                      .m = j->rows,
                                      .n = j->back ? j->in : j->out,
                                      .k = j->back ? j->out : j->in,
                                      .a = j->x,
                                      .b = j->w,
                                      .beta = j->add ? 1 : 0,
                                      .c = j->y },
                     e) < 0)
        return e->code;
    if (j->bias)
        threads_for((size_t)j->rows, 16, bias_rows, j);
    return 0;
}

int linear_back_cpu(struct cuda_context *c, const struct backward_linear *a,
                    struct err *e)
{
    struct backward_linear j = *a;

    (void)c;
    if (a->rounded)
        return linear_rounded(&j, e);
    if (blas_open(e) < 0)
        return e->code;
    threads_for((size_t)((a->rows + ROWS - 1) / ROWS), 1, linear_rows, &j);
    return 0;
}

/* ---- norms ---- */

void norm_back_row(const struct backward_norm *a, int64_t i)
{
    enum { PART = 256 };
    size_t size = dtype_bits(a->dtype) / 8;
    const char *row = (const char *)a->x + (size_t)(i * a->ld) * size;
    const float *gy = a->gy + i * a->n;
    float *g = a->g + i * a->ldg, x[PART];
    double squares = 0, dot = 0, r;
    int64_t n;

    for (int64_t c = 0; c < a->n; c += n) {
        n = a->n - c < PART ? a->n - c : PART;
        (void)!to_f32(x, row + (size_t)c * size, a->dtype, (size_t)n);
        for (int64_t k = 0; k < n; k++) {
            squares += (double)x[k] * (double)x[k];
            dot += (double)x[k] * (double)(a->w[c + k] * gy[c + k]);
        }
    }
    r = sqrt(squares / (double)a->n + a->eps);
    dot /= (double)a->n * r * r;
    for (int64_t c = 0; c < a->n; c += n) {
        n = a->n - c < PART ? a->n - c : PART;
        (void)!to_f32(x, row + (size_t)c * size, a->dtype, (size_t)n);
        for (int64_t k = 0; k < n; k++)
            g[c + k] = (float)(((double)(a->w[c + k] * gy[c + k]) -
                                (double)x[k] * dot) /
                               r) +
                       (a->add ? g[c + k] : 0);
    }
}

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        norm_back_row(ctx, (int64_t)i);
}

int norm_back_cpu(struct cuda_context *c, const struct backward_norm *a,
                  struct err *e)
{
    struct backward_norm j = *a;

    (void)c;
    (void)e;
    threads_for((size_t)a->rows, 16, norm_rows, &j);
    return 0;
}

/* ---- the gate of a shared expert ---- */

int gates_cpu(struct cuda_context *c, const float *in, const float *w,
              int64_t rows, int64_t n, float *weight, struct err *e)
{
    (void)c;
    (void)e;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;

        for (int64_t k = 0; k < n; k++)
            sum += (double)in[i * n + k] * (double)w[k];
        weight[i] = (float)(1 / (1 + exp(-sum)));
    }
    return 0;
}

/* ---- latent attention ---- */

static void latent_rows(void *ctx, size_t begin, size_t end)
{
    const struct backward_latent *a = ctx;
    int64_t nope = a->nope, dim = nope + a->rope, v = a->v_dim;

    for (int64_t i = (int64_t)begin; i < (int64_t)end; i++) {
        float *key = a->key + i * a->heads * dim;
        float *value = a->value + i * a->heads * v;
        float *tail = a->a + i * (a->kv_lora + a->rope) + a->kv_lora;
        float *both = a->b + i * a->heads * (nope + v);

        for (int64_t k = 0; a->back && k < a->rope; k++)
            tail[k] = 0;
        for (int64_t h = 0; h < a->heads; h++) {
            for (int64_t k = 0; k < dim; k++, key++) {
                float *part = k < nope ? both + k : tail + k - nope;

                if (!a->back)
                    *key = *part;
                else
                    *part = k < nope ? *key : *part + *key;
            }
            both += nope;
            memcpy(a->back ? both : value, a->back ? value : both,
                   (size_t)v * sizeof(*value));
            value += v;
            both += v;
        }
    }
}

int latent_cpu(struct cuda_context *c, const struct backward_latent *a,
               struct err *e)
{
    struct backward_latent j = *a;

    (void)c;
    (void)e;
    threads_for((size_t)a->rows, 16, latent_rows, &j);
    return 0;
}
