/* threads.c - see threads.h.  A loop is divided into parts beforehand, each a share of
 * what is left: large parts first, small ones at the end, so that all threads
 * finish at about the same time.  A thread takes one by adding to a counter,
 * which succeeds whatever others do at the same time.
 *
 * Workers sleep between loops (futex(2)), after a short wait that spares most
 * of them the sleep between the loops of one layer.  Who wakes up when all parts
 * are taken stays outside of the loop, and the caller does not wait for it. */
#include "common/math/threads.h"

#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cgroup.h"

enum {
    MAX_THREADS = 4096,
    SHARES_PER_THREAD = 4,
    SPINS = 512, /* some 20 us of pauses */
    LINE = 128   /* bytes: two cache lines, which some CPUs fetch together */
};

/* A loop's parts: rounds of one for each thread, a quarter of what is left together,
 * until that would be less than `grain` for each. */
struct plan {
    size_t n, grain, threads;
};

/* Parts first.. begin at `begin`, each `part` long. */
struct round {
    size_t first, begin, part;
};

static struct {
    int wanted;        /* threads_set(); 0: not called yet */
    int started;       /* worker threads, without the caller */
    atomic_flag taken; /* a loop runs, this one: */
    void (*fn)(void *ctx, size_t begin, size_t end);
    void *ctx;
    struct plan plan;
    /* number of parts of the loop, and below that of the next part to be taken: in one
     * word, so that who comes late cannot take a part of the loop before for one of
     * this */
    _Alignas(LINE) _Atomic uint64_t next;
    _Alignas(LINE) atomic_uint done;  /* parts of the loop that are finished */
    atomic_uint waits;                /* 1: the caller sleeps until all are */
    _Alignas(LINE) atomic_uint loops; /* number of loops begun */
    atomic_uint asleep;               /* workers that sleep, or are about to */
} pool;

static _Thread_local bool inside;

/* Of a group's share of the time as many CPUs as can use it up: more of them are all
 * stopped when it is. */
static int allowed_cpus(void)
{
    double share = ceil(cgroup_left(CGROUP_CPUS, ""));
    cpu_set_t set;
    int n;

    if (sched_getaffinity(0, sizeof(set), &set))
        return 1;
    n = CPU_COUNT(&set);
    if (share > 0 && share < n)
        n = (int)share;
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

/* Wait a little for *word to be another than `value`; false: it still is that. */
static bool changes(atomic_uint *word, unsigned value)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(word) != value)
            return true;
#ifdef __x86_64__
        __builtin_ia32_pause();
#endif
    }
    return false;
}

static void sleep_while(atomic_uint *word, unsigned value)
{
    while (atomic_load(word) == value)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* The round after r, whose part is longer than p->grain; or the first one, after
 * NULL. */
static struct round next_round(const struct plan *p, const struct round *r)
{
    struct round to = { 0 };
    size_t part;

    if (r) {
        to.first = r->first + p->threads;
        to.begin = r->begin + p->threads * r->part;
    }
    part = (p->n - to.begin) / (p->threads * SHARES_PER_THREAD);
    to.part = part < p->grain ? p->grain : part;
    return to;
}

static size_t number_of_parts(const struct plan *p)
{
    struct round r = next_round(p, NULL);

    while (r.part > p->grain)
        r = next_round(p, &r);
    return r.first + (p->n - r.begin + p->grain - 1) / p->grain;
}

/* Take parts until none is left, and count them as finished. */
static void take_parts(void)
{
    struct round r = { 0 };
    unsigned finished = 0;

    for (;;) {
        uint64_t word = atomic_fetch_add(&pool.next, 1);
        unsigned parts = (unsigned)(word >> 32), k = (unsigned)word;
        size_t begin, left;

        if (k >= parts) {
            if (finished &&
                atomic_fetch_add(&pool.done, finished) + finished == parts &&
                atomic_load(&pool.waits))
                wake(&pool.done, 1);
            return;
        }
        if (!finished++)
            r = next_round(&pool.plan, NULL);
        while (r.part > pool.plan.grain && k - r.first >= pool.plan.threads)
            r = next_round(&pool.plan, &r);
        begin = r.begin + (k - r.first) * r.part;
        left = pool.plan.n - begin;
        pool.fn(pool.ctx, begin, begin + (r.part < left ? r.part : left));
    }
}

static void *worker(void *arg)
{
    unsigned seen = 0;

    (void)arg;
    inside = true;
    for (;;) {
        if (!changes(&pool.loops, seen)) {
            atomic_fetch_add(&pool.asleep, 1);
            sleep_while(&pool.loops, seen);
            atomic_fetch_sub(&pool.asleep, 1);
        }
        seen = atomic_load(&pool.loops);
        take_parts();
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

/* Wait until all parts of the loop are finished. */
static void wait_for(unsigned parts)
{
    unsigned done;

    while ((done = atomic_load(&pool.done)) != parts)
        if (!changes(&pool.done, done)) {
            atomic_store(&pool.waits, 1);
            sleep_while(&pool.done, done);
            atomic_store(&pool.waits, 0);
        }
}

void threads_for(size_t n, size_t grain,
                 void (*fn)(void *ctx, size_t begin, size_t end), void *ctx)
{
    size_t threads = (size_t)threads_count(), parts;

    if (!n)
        return;
    grain = grain ? grain : 1;
    if (inside || threads == 1 || grain >= n ||
        atomic_flag_test_and_set(&pool.taken)) {
        fn(ctx, 0, n);
        return;
    }
    if (!atomic_load(&pool.loops)) /* the first loop */
        start_workers((int)threads - 1);
    pool.fn = fn;
    pool.ctx = ctx;
    pool.plan = (struct plan){ n, grain, threads };
    parts = number_of_parts(&pool.plan);
    atomic_store(&pool.done, 0);
    atomic_store(&pool.next, (uint64_t)parts << 32);
    atomic_fetch_add(&pool.loops, 1);
    if (atomic_load(&pool.asleep))
        wake(&pool.loops, (int)(parts < threads ? parts : threads) - 1);

    inside = true;
    take_parts();
    inside = false;
    wait_for((unsigned)parts);
    atomic_flag_clear(&pool.taken);
}

static size_t share(const struct threads_shares *s, size_t at)
{
    size_t threads = (size_t)threads_count(), left = s->n - at;
    size_t part = left / threads;

    if (!part)
        return left ? 1 : 0;
    return part < s->most ? part : s->most;
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
