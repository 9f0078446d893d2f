/* blas.c - see blas.h.  The only file that uses OpenBLAS. */
#include "common/math/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/math/cpu.h"
#include "common/math/threads.h"

/* Constants of cblas.h, so that its headers are not needed to build. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
enum { LOWER = 122 };

static struct {
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta,
                  float *c, int ldc);
    void (*ssyrk)(int order, int uplo, int trans, int n, int k, float alpha,
                  const float *a, int lda, float beta, float *c, int ldc);
    void (*set_threads)(int n);
    void *(*buffer_take)(int);
    void (*buffer_leave)(void *);
} lib;

/* Each running call needs a buffer of 128 MiB, which OpenBLAS maps when none
 * is free; if mmap fails it retries for ever.  So one buffer per thread is
 * mapped when the library is opened, after a trial that shows they fit, and a
 * semaphore limits the calls that run at a time to that number.  OpenBLAS 0.3.29
 * maps one more, for itself, while it is opened. */
enum {
    MAX_CALLS = 128,
    MIB = 1 << 20,
    BUFFER = 128 * MIB,
    SPARE = 80 * MIB /* the library, and what else is mapped meanwhile */
};
static sem_t calls;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool opened;

/* OpenBLAS's name of the kernels for the level; those for Zen and for later
 * CPUs with AVX-512 have the same products. */
static const char *core_type(void)
{
#ifdef __aarch64__
    return "ARMV8";
#else
    return cpu_uses(CPU_AVX512) ? "SkylakeX" :
           cpu_uses(CPU_AVX2)   ? "Haswell" :
                                  "Prescott";
#endif
}

static int buffers(void)
{
    return threads_count() < MAX_CALLS ? threads_count() : MAX_CALLS;
}

/* Whether all that OpenBLAS maps fits. */
static int try_buffers(struct err *e)
{
    size_t room = (size_t)(buffers() + 1) * BUFFER + SPARE;
    void *trial = mmap(NULL, room, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (trial == MAP_FAILED)
        return err_set(e, E_TEMP,
                       "cannot allocate OpenBLAS's buffers: %d MiB for each of "
                       "%d threads (--threads)",
                       BUFFER / MIB, buffers());
    munmap(trial, room);
    return 0;
}

static void map_buffers(void)
{
    void *buffer[MAX_CALLS];
    int n = buffers();

    for (int i = 0; i < n; i++)
        buffer[i] = lib.buffer_take(0);
    for (int i = 0; i < n; i++)
        lib.buffer_leave(buffer[i]);
    sem_init(&calls, 0, (unsigned)n);
}

static int load(struct err *e)
{
    const struct {
        const char *name;
        void *to; /* a function pointer of lib */
    } want[] = {
        { "cblas_sgemm", &lib.sgemm },
        { "cblas_ssyrk", &lib.ssyrk },
        { "openblas_set_num_threads", &lib.set_threads },
        { "blas_memory_alloc", &lib.buffer_take },
        { "blas_memory_free", &lib.buffer_leave },
    };
    void *so;

    if (try_buffers(e) < 0)
        return e->code;
    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* read by its constructor */
    setenv("OPENBLAS_CORETYPE", core_type(), 0);
    so = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        const char *why = dlerror();
        bool short_of = !why || strstr(why, "memory") ||
                        strstr(why, "failed to map") ||
                        strstr(why, "Too many open files");

        return err_set(e, short_of ? E_TEMP : E_CONFIG,
                       "cannot open OpenBLAS: %s", why ? why : "out of memory");
    }
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        void *f = dlsym(so, want[i].name);

        if (!f)
            return err_set(e, E_CONFIG, "OpenBLAS has no function '%s'",
                           want[i].name);
        memcpy(want[i].to, &f, sizeof(f));
    }
    lib.set_threads(1);
    map_buffers();
    return 0;
}

int blas_open(struct err *e)
{
    int rc = 0;

    pthread_mutex_lock(&opening);
    if (!opened) {
        rc = load(e);
        opened = rc == 0;
    }
    pthread_mutex_unlock(&opening);
    return rc;
}

void blas_own_threads(bool on)
{
    lib.set_threads(on ? threads_count() : 1);
}

static void begin_call(void)
{
    while (sem_wait(&calls)) /* EINTR */
        ;
}

void blas_sgemm(const struct sgemm *g)
{
    int64_t lda = g->lda ? g->lda : g->ta ? g->m : g->k;
    int64_t ldb = g->ldb ? g->ldb : g->tb ? g->k : g->n;

    begin_call();
    lib.sgemm(ROW_MAJOR, g->ta ? TRANS : NO_TRANS, g->tb ? TRANS : NO_TRANS,
              (int)g->m, (int)g->n, (int)g->k, g->alpha == 0 ? 1 : g->alpha,
              g->a, (int)lda, g->b, (int)ldb, g->beta, g->c,
              (int)(g->ldc ? g->ldc : g->n));
    sem_post(&calls);
}

void blas_ssyrk_lower_t(int n, int k, float alpha, const float *x, int ldx,
                        float beta, float *c, int ldc)
{
    begin_call();
    lib.ssyrk(ROW_MAJOR, LOWER, TRANS, n, k, alpha, x, ldx, beta, c, ldc);
    sem_post(&calls);
}

/* ---- by all threads ---- */

enum { TILE_ROWS = 256, TILE_COLS = 512 };

struct spread {
    struct sgemm g;
    int64_t across; /* tiles of a row of tiles */
};

static void run_tiles(void *ctx, size_t begin, size_t end)
{
    const struct spread *p = ctx;

    for (size_t t = begin; t < end; t++) {
        int64_t i = (int64_t)t / p->across * TILE_ROWS;
        int64_t o = (int64_t)t % p->across * TILE_COLS;
        struct sgemm g = p->g;

        g.m = g.m - i < TILE_ROWS ? g.m - i : TILE_ROWS;
        g.n = g.n - o < TILE_COLS ? g.n - o : TILE_COLS;
        g.a += i * g.lda;
        g.b += o * g.k;
        g.c += i * g.ldc + o;
        blas_sgemm(&g);
    }
}

int blas_f32_nt(const struct sgemm *g, struct err *e)
{
    struct spread p = { *g, (g->n + TILE_COLS - 1) / TILE_COLS };
    int64_t down = (g->m + TILE_ROWS - 1) / TILE_ROWS;

    p.g.tb = true;
    p.g.lda = g->lda ? g->lda : g->k;
    p.g.ldc = g->ldc ? g->ldc : g->n;
    if (blas_open(e) < 0)
        return e->code;
    threads_for((size_t)(down * p.across), 1, run_tiles, &p);
    return 0;
}
