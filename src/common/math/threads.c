/* threads.c - see threads.h.  Workers sleep between loops.  A loop hands out
 * parts by an atomic counter, each a share of what is left: large parts first,
 * small ones at the end, so that all threads finish at about the same time. */
#include "common/math/threads.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { MAX_THREADS = 4096, SHARES_PER_THREAD = 4 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    int wanted;  /* threads_set(); 0: not called yet */
    int started; /* worker threads, without the caller */
    uint64_t round;
    int busy; /* workers still in the loop of this round */
    /* the loop */
    void (*fn)(void *ctx, size_t begin, size_t end);
    void *ctx;
    size_t n, grain, shares;
    atomic_size_t next;
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER,
           .work = PTHREAD_COND_INITIALIZER,
           .done = PTHREAD_COND_INITIALIZER };

static _Thread_local bool inside;

static int allowed_cpus(void)
{
    cpu_set_t set;
    int n;

    if (sched_getaffinity(0, sizeof(set), &set))
        return 1;
    n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

void threads_set(int64_t n)
{
    pool.wanted =
        n > 0 ? (int)(n < MAX_THREADS ? n : MAX_THREADS) : allowed_cpus();
}

int threads_count(void)
{
    if (!pool.wanted)
        threads_set(0);
    return pool.wanted;
}

static void take_parts(void)
{
    size_t begin = atomic_load(&pool.next);

    while (begin < pool.n) {
        size_t left = pool.n - begin, part = left / pool.shares;

        part = part < pool.grain ? pool.grain : part;
        part = part < left ? part : left;
        if (!atomic_compare_exchange_weak(&pool.next, &begin, begin + part))
            continue;
        pool.fn(pool.ctx, begin, begin + part);
        begin = atomic_load(&pool.next);
    }
}

static void *worker(void *arg)
{
    uint64_t seen = 0;

    (void)arg;
    inside = true;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.round == seen)
            pthread_cond_wait(&pool.work, &pool.lock);
        seen = pool.round;
        pthread_mutex_unlock(&pool.lock);
        take_parts();
        pthread_mutex_lock(&pool.lock);
        if (--pool.busy == 0)
            pthread_cond_signal(&pool.done);
    }
    return NULL;
}

/* Create a thread with all signals blocked: they are for the main thread,
 * which may wait for them (signalfd) or be interrupted by them in read(2). */
static int create(pthread_t *t, void *(*fn)(void *), void *arg)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

/* Having fewer workers than wanted only costs time. */
static void start_workers(int want)
{
    while (pool.started < want) {
        pthread_t t;

        if (create(&t, worker, NULL))
            return;
        pthread_detach(t);
        pool.started++;
    }
}

void threads_for(size_t n, size_t grain,
                 void (*fn)(void *ctx, size_t begin, size_t end), void *ctx)
{
    size_t threads = (size_t)threads_count();

    if (!n)
        return;
    grain = grain ? grain : 1;
    if (inside || threads == 1 || grain >= n) {
        fn(ctx, 0, n);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    if (!pool.round) /* first loop; workers wait for a round other than 0 */
        start_workers((int)threads - 1);
    pool.fn = fn;
    pool.ctx = ctx;
    pool.n = n;
    pool.grain = grain;
    pool.shares = threads * SHARES_PER_THREAD;
    atomic_store(&pool.next, 0);
    pool.busy = pool.started;
    pool.round++;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);

    inside = true;
    take_parts();
    inside = false;

    pthread_mutex_lock(&pool.lock);
    while (pool.busy)
        pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

static void *run_task(void *arg)
{
    struct threads_task *t = arg;

    inside = true;
    t->fn(t->ctx);
    return NULL;
}

void threads_start(struct threads_task *t, void (*fn)(void *ctx), void *ctx)
{
    pthread_t thread;

    *t = (struct threads_task){ .fn = fn, .ctx = ctx };
    if (threads_count() > 1 && !create(&thread, run_task, t)) {
        t->thread = thread;
        t->running = true;
    } else {
        fn(ctx);
    }
}

void threads_join(struct threads_task *t)
{
    if (t->running)
        pthread_join(t->thread, NULL);
    t->running = false;
}

/* ---- errors of a loop ---- */

void threads_error_init(struct threads_error *t)
{
    t->rc = 0;
    pthread_mutex_init(&t->lock, NULL);
}

void threads_error_add(struct threads_error *t, uint64_t part,
                       const struct err *e)
{
    pthread_mutex_lock(&t->lock);
    if (!t->rc || part < t->part) {
        t->rc = e->code;
        t->part = part;
        t->err = *e;
    }
    pthread_mutex_unlock(&t->lock);
}

int threads_error_take(struct threads_error *t, struct err *e)
{
    pthread_mutex_destroy(&t->lock);
    if (t->rc)
        *e = t->err;
    return t->rc;
}
