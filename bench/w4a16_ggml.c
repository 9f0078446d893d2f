/* w4a16_ggml - the linears of an 8B model's layers (Llama 3) for M rows, by
 * w4a16 and by ggml, which is llama.cpp's, as Q4_0 in the buffer that it chooses
 * for the CPU; tokens a second of 32 such layers, attention left out.  Ours are
 * compressed-tensors, groups of 128, and those with the same x are multiplied together,
 * as a runtime does that knows them.  Both are
 * compared with sums in double first, the rounds take turns.
 *
 *     make build/release/bench/w4a16_ggml GGML=DIR
 *
 * DIR: a build of ggml with static libraries in DIR/src, headers in
 * DIR/include. */
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include "peak.h"
#include "w4_matrix.h"

enum { LAYERS = 4, LINEARS = 7, ROUNDS = 7, MOST = 512 };

static const struct {
    int64_t o, i;
} shape[LINEARS] = { { 4096, 4096 }, { 1024, 4096 },  { 1024, 4096 },
                     { 4096, 4096 }, { 14336, 4096 }, { 14336, 4096 },
                     { 4096, 14336 } };

/* ---- ggml ---- */

struct peer {
    ggml_backend_t backend;
    ggml_backend_buffer_type_t type; /* of the weights */
    struct ggml_context *of_weights, *of_rows;
    struct ggml_tensor *w[LAYERS * LINEARS], *x[LINEARS], *y[LAYERS * LINEARS];
    struct ggml_cgraph *graph;
    unsigned char *block; /* a copy of layer 0, linear 0, as Q4_0 */
    sem_t begin, done;
};

/* ggml sets up a thread's AMX tiles once and for all; ours lets go of them.  So it
 * gets a thread of its own. */
static void *computes(void *peer)
{
    struct peer *p = peer;

    for (;;) {
        sem_wait(&p->begin);
        ggml_backend_graph_compute(p->backend, p->graph);
        sem_post(&p->done);
    }
    return NULL;
}

static void compute(struct peer *p)
{
    sem_post(&p->begin);
    sem_wait(&p->done);
}

static struct ggml_context *context(size_t tensors)
{
    return must(ggml_init((struct ggml_init_params){
        .mem_size = ggml_tensor_overhead() * tensors +
                    ggml_graph_overhead_custom(1024, false),
        .no_alloc = true }));
}

/* The first buffer in which ggml multiplies Q4_0, as llama.cpp chooses. */
static ggml_backend_buffer_type_t choose(ggml_backend_t backend)
{
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    ggml_backend_dev_get_extra_bufts_t list =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device),
            "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t *t = list ? list(device) : NULL;

    for (; t && *t; t++) {
        struct ggml_context *c = context(8);
        struct ggml_tensor *w = ggml_new_tensor_2d(c, GGML_TYPE_Q4_0, 4096, 64);
        struct ggml_tensor *x = ggml_new_tensor_2d(c, GGML_TYPE_F32, 4096, 512);
        struct ggml_tensor *y = ggml_mul_mat(c, w, x);
        bool yes;

        w->buffer = ggml_backend_buft_alloc_buffer(*t, 0);
        yes = ggml_backend_dev_supports_op(device, y);
        ggml_backend_buffer_free(w->buffer);
        ggml_free(c);
        if (yes)
            return *t;
    }
    return ggml_backend_get_default_buffer_type(backend);
}

static void peer_open(struct peer *p, int threads)
{
    pthread_t thread;

    sem_init(&p->begin, 0, 0);
    sem_init(&p->done, 0, 0);
    if (pthread_create(&thread, NULL, computes, p))
        die(E_TEMP, "no thread");
    p->backend = must(ggml_backend_cpu_init());
    ggml_backend_cpu_set_n_threads(p->backend, threads);
    p->type = choose(p->backend);
    p->of_weights = context(LAYERS * LINEARS + 1);
    for (int k = 0; k < LAYERS * LINEARS; k++)
        p->w[k] =
            ggml_new_tensor_2d(p->of_weights, GGML_TYPE_Q4_0,
                               shape[k % LINEARS].i, shape[k % LINEARS].o);
    must(ggml_backend_alloc_ctx_tensors_from_buft(p->of_weights, p->type));
    for (int k = 0; k < LAYERS * LINEARS; k++) {
        size_t n = (size_t)(shape[k % LINEARS].i * shape[k % LINEARS].o / 32);
        unsigned char *q = must(mem_pages(n * 18, "bench", &err));

        for (size_t b = 0; b < n; b++) { /* a scale and 16 bytes of codes */
            uint16_t s = f16_from_f32(0.01f + (float)(draw() % 64) / 1024);

            memcpy(q + b * 18, &s, 2);
            for (int i = 0; i < 16; i += 4) {
                uint32_t codes = draw();

                memcpy(q + b * 18 + 2 + i, &codes, 4);
            }
        }
        ggml_backend_tensor_set(p->w[k], q, 0, n * 18);
        if (k)
            free(q);
        else
            p->block = q;
    }
}

static void peer_rows(struct peer *p, const uint16_t *x, int64_t rows)
{
    float *f = must(mem_pages((size_t)(rows * 14336) * 4, "bench", &err));

    p->of_rows = context((LAYERS + 1) * LINEARS + 1);
    p->graph = ggml_new_graph_custom(p->of_rows, 1024, false);
    for (int k = 0; k < LINEARS; k++)
        p->x[k] =
            ggml_new_tensor_2d(p->of_rows, GGML_TYPE_F32, shape[k].i, rows);
    for (int k = 0; k < LAYERS * LINEARS; k++) {
        p->y[k] = ggml_mul_mat(p->of_rows, p->w[k], p->x[k % LINEARS]);
        ggml_build_forward_expand(p->graph, p->y[k]);
    }
    must(ggml_backend_alloc_ctx_tensors(p->of_rows, p->backend));
    for (int k = 0; k < LINEARS; k++) {
        size_t n = (size_t)(rows * shape[k].i);

        (void)!to_f32(f, x, DT_BF16, n);
        ggml_backend_tensor_set(p->x[k], f, 0, n * 4);
    }
    free(f);
}

static double peer_weight(const struct peer *p, int64_t o, int64_t i)
{
    const unsigned char *b = p->block + (o * shape[0].i + i) / 32 * 18;
    int at = (int)(i % 32), q = b[2 + at % 16] >> (at < 16 ? 0 : 4) & 15;
    uint16_t s;

    memcpy(&s, b, 2);
    return (double)(q - 8) * (double)f32_from_f16(s);
}

/* ---- both ---- */

/* Of each linear of a layer the number of those with its x, from the first of them on. */
static const int together[LINEARS] = { 3, 0, 0, 1, 2, 0, 1 };

/* y = the outputs of linears m[0..n-1] one behind the other. */
static void multiply_all(const struct matrix *m, int n, const uint16_t *x,
                         int64_t rows, float *y)
{
    const struct forge_w4a16_rows from = { FORGE_W4A16_BF16,
                                           (void *)(uintptr_t)x, m->i };
    const struct forge_w4a16 *w[3];
    struct forge_w4a16_rows to[3];
    char why[200];

    for (int i = 0; i < n; y += rows * m[i++].o) {
        w[i] = m[i].w;
        to[i] = (struct forge_w4a16_rows){ FORGE_W4A16_F32, y, m[i].o };
    }
    if (forge_w4a16_several(w, n, &from, rows, to, why, sizeof(why)) < 0)
        die(E_BUG, "%s", why);
}

/* Relative error of some outputs of the last row: ggml's x has 8 bits. */
static double error(const struct matrix *m, const struct peer *p,
                    const uint16_t *x, int64_t rows, const float *y)
{
    double wrong = 0, all = 0;

    for (int64_t o = 0; o < shape[0].o; o += 97) {
        double sum = 0;

        for (int64_t i = 0; i < shape[0].i; i++)
            sum += (p ? peer_weight(p, o, i) :
                        value(m, FORGE_W4A16_COMPRESSED_TENSORS, o, i)) *
                   (double)f32_from_bf16(x[(rows - 1) * shape[0].i + i]);
        wrong += (y[(rows - 1) * shape[0].o + o] - sum) *
                 (y[(rows - 1) * shape[0].o + o] - sum);
        all += sum * sum;
    }
    if (!(wrong < 4e-4 * all))
        die(E_BUG, "error %g", sqrt(wrong / all));
    return sqrt(wrong / all);
}

static void compare(const struct matrix *m, struct peer *p, const uint16_t *x,
                    int64_t rows)
{
    float *y = must(mem_pages((size_t)(rows * 2 * 14336) * 4, "bench", &err));
    double best[2] = { 1e9, 1e9 }, errors[2], layers = 32.0 / LAYERS;

    peer_rows(p, x, rows);
    multiply_all(m, together[0], x, rows, y);
    errors[0] = error(m, NULL, x, rows, y);
    compute(p);
    ggml_backend_tensor_get(p->y[0], y, 0, (size_t)(rows * shape[0].o) * 4);
    errors[1] = error(m, p, x, rows, y);
    for (int round = 0; round < ROUNDS; round++) {
        double a = seconds(), b;

        for (int k = 0; k < LAYERS * LINEARS; k++)
            if (together[k % LINEARS])
                multiply_all(m + k, together[k % LINEARS], x, rows, y);
        b = seconds();
        best[0] = fmin(best[0], b - a);
        compute(p);
        best[1] = fmin(best[1], seconds() - b);
        usleep(50000); /* its threads wait busily for some milliseconds */
    }
    printf("w4a16 against ggml's Q4_0 (%s), 8B's linears, M = %lld: %.1f and "
           "%.1f tokens/s: %.2fx (errors %.1e, %.1e)\n",
           ggml_backend_buft_name(p->type), (long long)rows,
           (double)rows / best[0] / layers, (double)rows / best[1] / layers,
           best[1] / best[0], errors[0], errors[1]);
    ggml_free(p->of_rows);
    free(y);
}

/* w4a16_ggml [THREADS] */
int main(int argc, char **argv)
{
    static struct matrix m[LAYERS * LINEARS];
    struct peer p = { NULL };
    uint16_t *x;

    base_init(argv[0]);
    threads_set(argc > 1 ? atoi(argv[1]) : 0);
    x = rows_of(MOST, 14336);
    for (int k = 0; k < LAYERS * LINEARS; k++)
        fill(m + k, FORGE_W4A16_COMPRESSED_TENSORS, shape[k % LINEARS].o,
             shape[k % LINEARS].i);
    peer_open(&p, threads_count());
    compare(m, &p, x, 1);
    compare(m, &p, x, MOST);
    return 0;
}
