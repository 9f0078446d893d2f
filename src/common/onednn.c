/* onednn.c - see onednn.h.  The only file that knows oneDNN, which is opened at
 * the first product: it takes longer to load than a small tool runs.
 *
 * Products are cut into tiles of a fixed size that threads_for() hands out;
 * oneDNN itself runs single-threaded in each.  So one pool of threads does
 * everything, and results do not depend on how many there are. */
#include "common/onednn.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "common/threads.h"

enum {
    CACHE_SIZE = 64, /* primitives kept; a model has some ten shapes */
    TILE_ROWS = 256, /* of Y and of C: the smallest piece of work */
    TILE_COLS = 512
};

/* What a primitive computes: C[m,n] = op(A) op(B) with f32 C. */
struct shape {
    int64_t m, n, k;
    int64_t a_row, a_col; /* strides of A[m,k] in elements */
    int64_t b_row, b_col; /* strides of B[k,n] */
    int64_t ldc;
};

struct product {
    struct shape shape;
    dnnl_primitive_t prim;
    dnnl_memory_desc_t a, b, c, scratch;
};

static struct {
    __typeof__(dnnl_engine_create) *engine_create;
    __typeof__(dnnl_matmul_desc_init) *matmul_desc_init;
    __typeof__(dnnl_memory_create) *memory_create;
    __typeof__(dnnl_memory_desc_get_size) *memory_desc_get_size;
    __typeof__(dnnl_memory_desc_init_by_strides) *memory_desc_init_by_strides;
    __typeof__(dnnl_memory_destroy) *memory_destroy;
    __typeof__(dnnl_primitive_attr_create) *primitive_attr_create;
    __typeof__(dnnl_primitive_attr_destroy) *primitive_attr_destroy;
    __typeof__(dnnl_primitive_attr_set_scratchpad_mode)
        *primitive_attr_set_scratchpad_mode;
    __typeof__(dnnl_primitive_create) *primitive_create;
    __typeof__(dnnl_primitive_desc_create) *primitive_desc_create;
    __typeof__(dnnl_primitive_desc_destroy) *primitive_desc_destroy;
    __typeof__(dnnl_primitive_desc_query_md) *primitive_desc_query_md;
    __typeof__(dnnl_primitive_execute) *primitive_execute;
    __typeof__(dnnl_sgemm) *sgemm;
    __typeof__(dnnl_stream_create) *stream_create;
    __typeof__(dnnl_stream_wait) *stream_wait;
} lib;

static struct {
    pthread_mutex_t lock;
    void *so; /* NULL: not open yet */
    dnnl_engine_t engine;
    struct product cached[CACHE_SIZE];
    int count;
} state = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What a thread needs to execute; lives as long as the thread. */
static __thread struct {
    bool ready;
    dnnl_stream_t stream;
    void *scratch;
    size_t cap;
} mine;

static int failed(dnnl_status_t s, const char *what, struct err *e)
{
    return err_set(e, s == dnnl_out_of_memory ? E_TEMP : E_BUG,
                   "oneDNN: %s fails with status %d%s", what, (int)s,
                   s == dnnl_out_of_memory ? " (out of memory)" : "");
}

static int load(struct err *e)
{
    const struct {
        const char *name;
        void *to; /* a function pointer of lib */
    } want[] = {
        { "dnnl_engine_create", &lib.engine_create },
        { "dnnl_matmul_desc_init", &lib.matmul_desc_init },
        { "dnnl_memory_create", &lib.memory_create },
        { "dnnl_memory_desc_get_size", &lib.memory_desc_get_size },
        { "dnnl_memory_desc_init_by_strides",
          &lib.memory_desc_init_by_strides },
        { "dnnl_memory_destroy", &lib.memory_destroy },
        { "dnnl_primitive_attr_create", &lib.primitive_attr_create },
        { "dnnl_primitive_attr_destroy", &lib.primitive_attr_destroy },
        { "dnnl_primitive_attr_set_scratchpad_mode",
          &lib.primitive_attr_set_scratchpad_mode },
        { "dnnl_primitive_create", &lib.primitive_create },
        { "dnnl_primitive_desc_create", &lib.primitive_desc_create },
        { "dnnl_primitive_desc_destroy", &lib.primitive_desc_destroy },
        { "dnnl_primitive_desc_query_md", &lib.primitive_desc_query_md },
        { "dnnl_primitive_execute", &lib.primitive_execute },
        { "dnnl_sgemm", &lib.sgemm },
        { "dnnl_stream_create", &lib.stream_create },
        { "dnnl_stream_wait", &lib.stream_wait },
    };
    void *so = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);

    if (!so) {
        const char *why = dlerror();
        bool memory = !why || strstr(why, "memory");

        return err_set(e, memory ? E_TEMP : E_CONFIG, "cannot open oneDNN: %s",
                       why ? why : "out of memory");
    }
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        void *f = dlsym(so, want[i].name);

        if (!f)
            return err_set(e, E_CONFIG, "oneDNN has no function '%s'",
                           want[i].name);
        memcpy(want[i].to, &f, sizeof(f));
    }
    state.so = so;
    return 0;
}

/* The calling thread's stream, under the lock.  oneDNN's OpenMP must not start
 * threads below ours; the setting belongs to the calling thread. */
static int open_stream(struct err *e)
{
    dnnl_status_t s = dnnl_success;
    void (*set)(int);
    void *f;

    if (!state.so && load(e) < 0)
        return e->code;
    f = dlsym(state.so, "omp_set_num_threads");
    memcpy(&set, &f, sizeof(f));
    if (f)
        set(1);
    if (!state.engine)
        s = lib.engine_create(&state.engine, dnnl_cpu, 0);
    if (s == dnnl_success)
        s = lib.stream_create(&mine.stream, state.engine,
                              dnnl_stream_default_flags);
    return s == dnnl_success ? 0 : failed(s, "opening the CPU", e);
}

static int prepare_thread(struct err *e)
{
    int rc = 0;

    if (mine.ready)
        return 0;
    pthread_mutex_lock(&state.lock);
    rc = open_stream(e);
    pthread_mutex_unlock(&state.lock);
    mine.ready = !rc;
    return rc;
}

static dnnl_status_t describe(struct product *p, dnnl_primitive_desc_t *pd)
{
    const struct shape *h = &p->shape;
    dnnl_matmul_desc_t d;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t s = dnnl_success;

#define TRY(x) (s = s == dnnl_success ? (x) : s)
    TRY(lib.memory_desc_init_by_strides(&p->a, 2, (dnnl_dims_t){ h->m, h->k },
                                        dnnl_bf16,
                                        (dnnl_dims_t){ h->a_row, h->a_col }));
    TRY(lib.memory_desc_init_by_strides(&p->b, 2, (dnnl_dims_t){ h->k, h->n },
                                        dnnl_bf16,
                                        (dnnl_dims_t){ h->b_row, h->b_col }));
    TRY(lib.memory_desc_init_by_strides(&p->c, 2, (dnnl_dims_t){ h->m, h->n },
                                        dnnl_f32, (dnnl_dims_t){ h->ldc, 1 }));
    TRY(lib.matmul_desc_init(&d, &p->a, &p->b, NULL, &p->c));
    TRY(lib.primitive_attr_create(&attr));
    TRY(lib.primitive_attr_set_scratchpad_mode(attr,
                                               dnnl_scratchpad_mode_user));
    TRY(lib.primitive_desc_create(pd, &d, attr, state.engine, NULL));
#undef TRY
    lib.primitive_attr_destroy(attr);
    return s;
}

static int build(struct product *p, const struct shape *h, struct err *e)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t s;

    p->shape = *h;
    s = describe(p, &pd);
    if (s == dnnl_success) {
        p->scratch =
            *lib.primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        s = lib.primitive_create(&p->prim, pd);
    }
    lib.primitive_desc_destroy(pd);
    return s == dnnl_success ? 0 : failed(s, "preparing a product", e);
}

/* Copies the cached primitive (a handle) to *p; the oldest makes room. */
static int find(struct product *p, const struct shape *h, struct err *e)
{
    int rc = 0;

    pthread_mutex_lock(&state.lock);
    for (int i = 0; i < state.count && i < CACHE_SIZE; i++)
        if (!memcmp(&state.cached[i].shape, h, sizeof(*h))) {
            *p = state.cached[i];
            goto out;
        }
    rc = build(p, h, e);
    if (!rc) /* one that is replaced stays allocated: it may be running */
        state.cached[state.count++ % CACHE_SIZE] = *p;
out:
    pthread_mutex_unlock(&state.lock);
    return rc;
}

static int scratch_for(size_t n, struct err *e)
{
    if (n <= mine.cap)
        return 0;
    free(mine.scratch);
    mine.cap = 0;
    mine.scratch = mem_pages(n, "oneDNN", e);
    if (!mine.scratch)
        return e->code;
    mine.cap = n;
    return 0;
}

/* One tile, in the calling thread. */
static int multiply(const struct shape *h, const uint16_t *a, const uint16_t *b,
                    float *c, struct err *e)
{
    dnnl_memory_t ma = NULL, mb = NULL, mc = NULL, ms = NULL;
    dnnl_status_t s = dnnl_success;
    struct product p;
    int rc;

    if ((rc = prepare_thread(e)) < 0 || (rc = find(&p, h, e)) < 0 ||
        (rc = scratch_for(lib.memory_desc_get_size(&p.scratch), e)) < 0)
        return rc;
#define TRY(x) (s = s == dnnl_success ? (x) : s)
    TRY(lib.memory_create(&ma, &p.a, state.engine, (void *)(uintptr_t)a));
    TRY(lib.memory_create(&mb, &p.b, state.engine, (void *)(uintptr_t)b));
    TRY(lib.memory_create(&mc, &p.c, state.engine, c));
    TRY(lib.memory_create(&ms, &p.scratch, state.engine, mine.scratch));
    if (s == dnnl_success) {
        dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, ma },
                                   { DNNL_ARG_WEIGHTS, mb },
                                   { DNNL_ARG_DST, mc },
                                   { DNNL_ARG_SCRATCHPAD, ms } };

        TRY(lib.primitive_execute(p.prim, mine.stream, ARRAY_LEN(args), args));
        TRY(lib.stream_wait(mine.stream));
    }
#undef TRY
    lib.memory_destroy(ma);
    lib.memory_destroy(mb);
    lib.memory_destroy(mc);
    lib.memory_destroy(ms);
    return s == dnnl_success ? 0 : failed(s, "a product", e);
}

/* ---- a product as tiles over threads ---- */

struct job {
    struct shape whole;
    int64_t rows, cols; /* of a tile */
    int64_t across;     /* tiles beside each other */
    const uint16_t *a, *b;
    float *c;
    struct threads_error error; /* by tile */
};

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;

    for (size_t t = begin; t < end; t++) {
        int64_t i = (int64_t)t / j->across * j->rows;
        int64_t o = (int64_t)t % j->across * j->cols;
        struct shape h = j->whole;
        struct err e;
        int rc;

        h.m = h.m - i < j->rows ? h.m - i : j->rows;
        h.n = h.n - o < j->cols ? h.n - o : j->cols;
        rc = multiply(&h, j->a + i * h.a_row, j->b + o * h.b_col,
                      j->c + i * h.ldc + o, &e);
        if (rc < 0)
            threads_error_add(&j->error, t, &e);
    }
}

static int product(const struct shape *h, const uint16_t *a, const uint16_t *b,
                   float *c, struct err *e)
{
    struct job j = { .whole = *h, .a = a, .b = b, .c = c };
    int64_t down;

    if (h->m <= 0 || h->n <= 0)
        return 0;
    threads_error_init(&j.error);
    j.rows = TILE_ROWS;
    j.cols = TILE_COLS;
    down = (h->m + j.rows - 1) / j.rows;
    j.across = (h->n + j.cols - 1) / j.cols;
    threads_for((size_t)(down * j.across), 1, run_tiles, &j);
    return threads_error_take(&j.error, e);
}

int onednn_bf16_nt(int64_t m, int64_t n, int64_t k, const uint16_t *x,
                   int64_t ldx, const uint16_t *w, float *y, int64_t ldy,
                   struct err *e)
{
    struct shape h = { m, n, k, ldx, 1, 1, k, ldy };

    return product(&h, x, w, y, e);
}

int onednn_bf16_tn(int64_t m, int64_t n, int64_t k, const uint16_t *a,
                   int64_t lda, const uint16_t *b, int64_t ldb, float *c,
                   int64_t ldc, struct err *e)
{
    struct shape h = { m, n, k, 1, lda, ldb, 1, ldc };

    return product(&h, a, b, c, e);
}

/* ---- f32: dnnl_sgemm ---- */

struct f32_job {
    int64_t m, n, k, ldx, ldy;
    const float *x, *w;
    float *y;
    int64_t across;
    struct threads_error error; /* by tile */
};

static void run_f32(void *ctx, size_t begin, size_t end)
{
    struct f32_job *j = ctx;

    for (size_t t = begin; t < end; t++) {
        int64_t i = (int64_t)t / j->across * TILE_ROWS;
        int64_t o = (int64_t)t % j->across * TILE_COLS;
        int64_t m = j->m - i < TILE_ROWS ? j->m - i : TILE_ROWS;
        int64_t n = j->n - o < TILE_COLS ? j->n - o : TILE_COLS;
        struct err e;
        int rc = prepare_thread(&e);

        if (!rc) {
            dnnl_status_t s = lib.sgemm(
                'N', 'T', m, n, j->k, 1, j->x + i * j->ldx, j->ldx,
                j->w + o * j->k, j->k, 0, j->y + i * j->ldy + o, j->ldy);

            rc = s == dnnl_success ? 0 : failed(s, "a f32 product", &e);
        }
        if (rc < 0)
            threads_error_add(&j->error, t, &e);
    }
}

int onednn_f32_nt(int64_t m, int64_t n, int64_t k, const float *x, int64_t ldx,
                  const float *w, float *y, int64_t ldy, struct err *e)
{
    struct f32_job j = {
        .m = m, .n = n, .k = k, .ldx = ldx, .ldy = ldy, .x = x, .w = w, .y = y
    };
    int64_t down = (m + TILE_ROWS - 1) / TILE_ROWS;

    if (m <= 0 || n <= 0)
        return 0;
    j.across = (n + TILE_COLS - 1) / TILE_COLS;
    threads_error_init(&j.error);
    threads_for((size_t)(down * j.across), 1, run_f32, &j);
    return threads_error_take(&j.error, e);
}
