/* ledger.c - see ledger.h. */
#include "device/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "device/device.h"

_Static_assert((int)LOAN_HANDLE == (int)DEVICE_HANDLE, "one is the other");

enum {
    LEASES = 8,
    BLOCKS_MAX = 64, /* most blocks that a reader maps */
    PROBE = 2 << 20, /* bytes of the test block; the driver packs smaller
                      * ones together */
    WAIT_MS = 4000,
};

/* State of an end of a link. */
enum word { NOTHING, SPEAKING, YES, NO };

/* One end of a link: lender or reader. */
struct end {
    _Atomic uint32_t word;
    pthread_mutex_t alive; /* robust, shared; held while the process lives;
                            * valid if word is YES */
};

/* Shared state of a link. */
struct link {
    struct end lender, reader;
    uint8_t probe[LOAN_HANDLE]; /* handle of the reader's test block */
    _Atomic uint32_t leased[LEASES];
};

/* The file's contents. */
struct page {
    struct link link[LEDGER_LINKS];
};

/* A block of another process that is mapped here. */
struct block {
    uint8_t handle[LOAN_HANDLE];
    const void *p;
};

struct ledger {
    const char *path;
    struct page *page;
    enum word lends[LEDGER_LINKS]; /* ledger_lends(); NOTHING: not asked yet */
    bool reads[LEDGER_LINKS];
    bool gone[LEDGER_LINKS]; /* the lender is dead */
    struct block mapped[BLOCKS_MAX];
    int n_mapped;
    struct lease {
        void *p;
        size_t n;
    } lease[LEASES];
};

int ledger_open(struct ledger **out, const char *path, struct err *e)
{
    struct ledger *l;
    void *p = MAP_FAILED;
    int fd;

    *out = NULL;
    if (!path)
        return 0;
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, err_open_code(errno), "cannot open '%s':", path);
    if (!ftruncate(fd, sizeof(struct page)))
        p = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED,
                 fd, 0);
    if (p == MAP_FAILED)
        err_set(e, E_NOINPUT, "cannot share '%s':", path);
    close(fd);
    if (p == MAP_FAILED)
        return e->code;
    l = mem_zero(1, sizeof(*l), "ledger", e);
    if (!l) {
        munmap(p, sizeof(struct page));
        return e->code;
    }
    l->path = path;
    l->page = p;
    *out = l;
    return 0;
}

/* ---- ends ---- */

/* Become this end.  E_USAGE: another process is or was. */
static int end_begin(const struct ledger *l, struct end *x, struct err *e)
{
    uint32_t nothing = NOTHING;

    if (atomic_compare_exchange_strong(&x->word, &nothing, SPEAKING))
        return 0;
    return err_set(e, E_USAGE, "'%s': another process has used it", l->path);
}

/* Hold the mutex from here on.  By the thread that lives longest: it is robust
 * per thread. */
static int end_live(struct end *x, struct err *e)
{
    pthread_mutexattr_t a;
    int rc;

    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    rc = pthread_mutex_init(&x->alive, &a);
    pthread_mutexattr_destroy(&a);
    if (!rc)
        rc = pthread_mutex_lock(&x->alive);
    return rc ? err_set(e, E_TEMP, "ledger: no mutex between processes") : 0;
}

static void end_leave(struct end *x)
{
    atomic_store(&x->word, NO);
    pthread_mutex_unlock(&x->alive);
}

static bool end_lives(struct end *x)
{
    int rc;

    if (atomic_load(&x->word) != YES)
        return false;
    rc = pthread_mutex_trylock(&x->alive);
    if (!rc || rc == EOWNERDEAD) { /* unlock: the next call finds the same */
        pthread_mutex_unlock(&x->alive);
        return false;
    }
    return rc == EBUSY;
}

/* ---- reader ---- */

static int offer_probe(struct link *k, struct err *e)
{
    const struct device_table *d = device_functions();
    void *p;

    if (d->block(device_gpu(), &p, PROBE, e) < 0)
        return e->code;
    return d->handle(device_gpu(), p, k->probe, e);
}

int ledger_reads(struct ledger *l, enum ledger_link link, struct err *e)
{
    struct err why;
    struct link *k;
    bool can;

    if (!l)
        return 0;
    k = &l->page->link[link];
    if (end_begin(l, &k->reader, e) < 0 || end_live(&k->reader, e) < 0)
        return e->code;
    can = device_gpu() && offer_probe(k, &why) >= 0;
    l->reads[link] = true;
    atomic_store(&k->reader.word, can ? YES : NO);
    return 0;
}

int ledger_map(struct ledger *l, const struct loan *loan, const void **p,
               struct err *e)
{
    struct block *b = l->mapped;

    while (b < l->mapped + l->n_mapped &&
           memcmp(b->handle, loan->handle, LOAN_HANDLE))
        b++;
    if (b == l->mapped + BLOCKS_MAX)
        return err_set(e, E_DATA, "more blocks than are lent");
    if (b == l->mapped + l->n_mapped) {
        if (device_functions()->map(device_gpu(), loan->handle, &b->p, e) < 0)
            return e->code;
        memcpy(b->handle, loan->handle, LOAN_HANDLE);
        l->n_mapped++;
    }
    *p = (const char *)b->p + loan->offset;
    return 0;
}

bool ledger_was_there(struct ledger *l, enum ledger_link link)
{
    struct err e;

    if (!l || l->gone[link])
        return !l;
    if (device_functions()->settle(device_gpu(), &e) < 0 ||
        !end_lives(&l->page->link[link].lender))
        l->gone[link] = true;
    return !l->gone[link];
}

int ledger_get(void *ledger, const struct loan *loan, void *to, size_t n,
               struct err *e)
{
    struct ledger *l = ledger;
    struct link *k = &l->page->link[LEDGER_HESSIANS];
    const void *p;
    int rc;

    if (loan->lease < 1 || loan->lease > LEASES)
        return err_set(e, E_DATA, "a loan without a lease");
    if (!device_gpu())
        return err_set(e, E_DATA, "a loan that nobody agreed to");
    if ((rc = ledger_map(l, loan, &p, e)) >= 0)
        rc = device_functions()->fetch(device_gpu(), to, p, n, e);
    if (!end_lives(&k->lender))
        return err_set(e, E_DATA, "input ends early");
    if (rc < 0)
        return rc;
    atomic_store(&k->leased[loan->lease - 1], 0);
    return 0;
}

/* ---- lender ---- */

static void pause_ms(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Whether the reader's test block can be mapped and is zero. */
static bool try_probe(struct ledger *l, const struct link *k)
{
    struct loan probe = { .lent = 1 };
    const void *p;
    uint64_t value;
    struct err e;

    memcpy(probe.handle, k->probe, LOAN_HANDLE);
    return ledger_map(l, &probe, &p, &e) >= 0 &&
           device_functions()->fetch(device_gpu(), &value, p, sizeof(value),
                                     &e) >= 0 &&
           !value;
}

static bool agree(struct ledger *l, struct link *k)
{
    struct err e;

    for (int i = 0; i < WAIT_MS && atomic_load(&k->reader.word) < YES; i++)
        pause_ms();
    if (atomic_load(&k->reader.word) != YES || !device_gpu() ||
        !try_probe(l, k) || end_begin(l, &k->lender, &e) < 0 ||
        end_live(&k->lender, &e) < 0)
        return false;
    atomic_store(&k->lender.word, YES);
    return true;
}

bool ledger_lends(struct ledger *l, enum ledger_link link)
{
    if (!l)
        return false;
    if (!l->lends[link])
        l->lends[link] = agree(l, &l->page->link[link]) ? YES : NO;
    return l->lends[link] == YES;
}

int ledger_loan(const void *block, size_t offset, struct loan *loan,
                struct err *e)
{
    *loan = (struct loan){ .offset = offset, .lent = 1 };
    return device_functions()->handle(device_gpu(), block, loan->handle, e);
}

bool ledger_lease(struct ledger *l, size_t n, void **block, struct loan *loan)
{
    struct lease *free_one = NULL;
    struct link *k;
    struct err e;
    int i;

    if (!ledger_lends(l, LEDGER_HESSIANS))
        return false;
    k = &l->page->link[LEDGER_HESSIANS];
    for (i = 0; i < LEASES && !free_one; i++)
        if (l->lease[i].n >= n && !atomic_load(&k->leased[i]))
            free_one = &l->lease[i];
    for (i = 0; i < LEASES && !free_one; i++)
        if (!l->lease[i].p && device_functions()->block(
                                  device_gpu(), &l->lease[i].p, n, &e) >= 0) {
            l->lease[i].n = n;
            free_one = &l->lease[i];
        }
    if (!free_one || ledger_loan(free_one->p, 0, loan, &e) < 0)
        return false;
    loan->lease = 1 + (uint32_t)(free_one - l->lease);
    atomic_store(&k->leased[loan->lease - 1], 1);
    *block = free_one->p;
    return true;
}

/* ---- closing ---- */

static bool all_back(struct link *k)
{
    for (int i = 0; i < LEASES; i++)
        if (atomic_load(&k->leased[i]))
            return false;
    return true;
}

void ledger_close(struct ledger *l)
{
    if (!l)
        return;
    for (int i = 0; i < LEDGER_LINKS; i++) {
        struct link *k = &l->page->link[i];

        while (l->lends[i] == YES && !all_back(k) && end_lives(&k->reader))
            pause_ms();
        if (l->lends[i] == YES)
            end_leave(&k->lender);
        if (l->reads[i])
            end_leave(&k->reader);
    }
    munmap(l->page, sizeof(*l->page));
    free(l);
}
