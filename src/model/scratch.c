/* scratch.c - see scratch.h. */
#include "model/scratch.h"

#include <pthread.h>
#include <stdlib.h>

static __thread struct {
    void *p;
    size_t cap;
} mine;

/* Its destructor frees the thread's memory. */
static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_key(void)
{
    (void)pthread_key_create(&ending, free);
}

void *scratch_thread(size_t n, struct err *e)
{
    if (n > mine.cap) {
        pthread_once(&once, make_key);
        free(mine.p);
        mine.cap = 0;
        mine.p = mem_pages(n, "scratch", e);
        (void)pthread_setspecific(ending, mine.p);
        if (!mine.p)
            return NULL;
        mine.cap = n;
    }
    return mine.p;
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
