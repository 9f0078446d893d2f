/* blas.c - see blas.h.  The only file that knows OpenBLAS. */
#include "common/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"

/* The numbers of cblas.h, which is not needed at build time then. */
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
enum { LOWER = 122 };

static struct {
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta,
                  float *c, int ldc);
    void (*ssyrk)(int order, int uplo, int trans, int n, int k, float alpha,
                  const float *a, int lda, float beta, float *c, int ldc);
    void (*set_threads)(int n);
} lib;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool opened;

static int load(struct err *e)
{
    const struct {
        const char *name;
        void *to; /* a function pointer of lib */
    } want[] = {
        { "cblas_sgemm", &lib.sgemm },
        { "cblas_ssyrk", &lib.ssyrk },
        { "openblas_set_num_threads", &lib.set_threads },
    };
    void *so;

    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* read when it is opened */
    so = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        const char *why = dlerror();
        bool memory = !why || strstr(why, "memory");

        return err_set(e, memory ? E_TEMP : E_CONFIG,
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

void blas_sgemm(bool ta, bool tb, int m, int n, int k, float alpha,
                const float *a, int lda, const float *b, int ldb, float beta,
                float *c, int ldc)
{
    lib.sgemm(ROW_MAJOR, ta ? TRANS : NO_TRANS, tb ? TRANS : NO_TRANS, m, n, k,
              alpha, a, lda, b, ldb, beta, c, ldc);
}

void blas_ssyrk_lower_t(int n, int k, float alpha, const float *x, int ldx,
                        float beta, float *c, int ldc)
{
    lib.ssyrk(ROW_MAJOR, LOWER, TRANS, n, k, alpha, x, ldx, beta, c, ldc);
}
