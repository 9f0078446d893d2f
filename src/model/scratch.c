/* scratch.c - see scratch.h. */
#include "model/scratch.h"

#include <pthread.h>
#include <stdlib.h>

struct memory {
    void *p;
    size_t cap;
};

static __thread struct memory tile, strips;

/* Their destructors free a thread's memory. */
static pthread_key_t tile_ends, strips_end;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_keys(void)
{
    (void)pthread_key_create(&tile_ends, free);
    (void)pthread_key_create(&strips_end, free);
}

static void *grow(struct memory *m, const pthread_key_t *ends, size_t n,
                  struct err *e)
{
    if (n > m->cap) {
        pthread_once(&once, make_keys);
        free(m->p);
        m->cap = 0;
        m->p = mem_pages(n, "scratch", e);
        (void)pthread_setspecific(*ends, m->p);
        if (!m->p)
            return NULL;
        m->cap = n;
    }
    return m->p;
}

void *scratch_thread(size_t n, struct err *e)
{
    return grow(&tile, &tile_ends, n, e);
}

void *scratch_strips(size_t n, struct err *e)
{
    return grow(&strips, &strips_end, n, e);
}

int buffer_reserve(struct buffer *b, int64_t rows, int64_t cols, size_t size,
                   const char *what, struct err *e)
{
    size_t n;

    if (size_mul((size_t)rows, (size_t)cols, &n) || size_mul(n, size, &n))
        return err_set(e, E_TEMP, "%s: too large for memory", what);
    if (n <= b->cap && b->p)
        return 0;
    free(b->p);
    b->cap = 0;
    b->p = mem_zero(n ? n : 1, 1, what, e);
    if (!b->p)
        return e->code;
    b->cap = n;
    return 0;
}

void buffer_release(struct buffer *b)
{
    free(b->p);
    *b = (struct buffer){ 0 };
}
