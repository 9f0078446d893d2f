/* threads.c - see threads.h.  A loop hands out parts by an atomic counter, each
 * a share of what is left: large parts first, small ones at the end, so that
 * all threads finish at about the same time.
 *
 * Workers sleep between loops (futex(2)), after a short wait that spares most
 * of them the sleep between the loops of one layer.  Who wakes up when all parts
 * are taken stays outside of the loop, and the caller does not wait for it. */
#include "common/math/threads.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MAX_THREADS = 4096,
    SHARES_PER_THREAD = 4,
    SPINS = 512 /* some 20 us of pauses */
};

#define OPEN 0x80000000u

static struct {
    int wanted;        /* threads_set(); 0: not called yet */
    int started;       /* worker threads, without the caller */
    atomic_uint round; /* number of loops begun */
    /* OPEN while parts may be taken, plus the number of workers that take
     * some */
    atomic_uint gate;
    atomic_flag taken; /* a loop runs, this one: */
    void (*fn)(void *ctx, size_t begin, size_t end);
    void *ctx;
    size_t n, grain, shares;
    atomic_size_t next;
} pool;

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

/* Wait while *word is `value`. */
static void wait_while(atomic_uint *word, unsigned value)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(word) != value)
            return;
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
    }
    while (atomic_load(word) == value)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static bool enter(void)
{
    unsigned g = atomic_load(&pool.gate);

    while (g & OPEN)
        if (atomic_compare_exchange_weak(&pool.gate, &g, g + 1))
            return true;
    return false;
}

static void *worker(void *arg)
{
    unsigned seen = 0;

    (void)arg;
    inside = true;
    for (;;) {
        wait_while(&pool.round, seen);
        seen = atomic_load(&pool.round);
        if (!enter())
            continue;
        take_parts();
        if (atomic_fetch_sub(&pool.gate, 1) == 1) /* the last, and closed */
            wake(&pool.gate, 1);
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
    size_t threads = (size_t)threads_count(), parts;
    unsigned busy;

    if (!n)
        return;
    grain = grain ? grain : 1;
    if (inside || threads == 1 || grain >= n ||
        atomic_flag_test_and_set(&pool.taken)) {
        fn(ctx, 0, n);
        return;
    }
    if (!atomic_load(&pool.round)) /* the first loop */
        start_workers((int)threads - 1);
    pool.fn = fn;
    pool.ctx = ctx;
    pool.n = n;
    pool.grain = grain;
    pool.shares = threads * SHARES_PER_THREAD;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.gate, OPEN);
    atomic_fetch_add(&pool.round, 1);
    parts = (n + grain - 1) / grain;
    wake(&pool.round, (int)(parts < threads ? parts : threads) - 1);

    inside = true;
    take_parts();
    inside = false;

    atomic_fetch_and(&pool.gate, ~OPEN);
    while ((busy = atomic_load(&pool.gate)))
        wait_while(&pool.gate, busy);
    atomic_flag_clear(&pool.taken);
}

static size_t share(const struct threads_shares *s, size_t at)
{
    size_t threads = (size_t)threads_count(), left = s->n - at;
    size_t part = (left + threads - 1) / threads;

    part = part < s->most ? part : s->most;
    return part < left ? part : left;
}

size_t threads_take(struct threads_shares *s, size_t *first)
{
    size_t n;

    *first = atomic_load(&s->next);
    do
        n = share(s, *first);
    while (!atomic_compare_exchange_weak(&s->next, first, *first + n));
    return n;
}

size_t threads_longest(const struct threads_shares *s)
{
    return share(s, 0);
}

struct copy {
    char *to;
    const char *from;
};

static void copy_part(void *ctx, size_t begin, size_t end)
{
    const struct copy *c = ctx;

    memcpy(c->to + begin, c->from + begin, end - begin);
}

void threads_copy(void *to, const void *from, size_t n)
{
    struct copy c = { to, from };

    threads_for(n, 1 << 20, copy_part, &c);
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
