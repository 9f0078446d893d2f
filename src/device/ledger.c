/* ledger.c - see ledger.h. */
#include "device/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "device/device.h"

_Static_assert((int)LOAN_HANDLE == (int)DEVICE_HANDLE, "one is the other");

enum {
    LEASES = LEDGER_LEASES,
    /* rooms of weights, of codes from CODES_FIRST on, then of moments */
    CODES_FIRST = LEASES,
    MOMENTS_FIRST = 2 * LEASES,
    ROOMS = MOMENTS_FIRST + LEDGER_MOMENTS,
    CODES = 64 << 10, /* a room of codes: that times a power of two */
    /* bits of a lease: who has not returned it */
    READER = 1,
    FILES = 2,       /* forge-split, of codes */
    ROOM = 2 << 20,  /* rooms begin at multiples of it */
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
    _Atomic uint32_t on_gpu;    /* the reader computes on a GPU */
    _Atomic uint32_t leased[LEASES];
};

/* Where a block of room is in the file. */
struct room {
    uint64_t at, n;
    _Atomic uint32_t leased;
};

/* The file's first bytes. */
struct page {
    struct link link[LEDGER_LINKS];
    struct room room[ROOMS];
    _Atomic uint64_t end; /* of all rooms, behind the page */
};

/* A block of another process that is mapped here. */
struct block {
    uint8_t handle[LOAN_HANDLE];
    const void *p;
};

struct ledger {
    const char *path;
    int fd;
    struct page *page;
    void *room[ROOMS];             /* where they are mapped; NULL: not yet */
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
    /* never shorter: another may have put room behind the page */
    errno = posix_fallocate(fd, 0, sizeof(struct page));
    if (!errno)
        p = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED,
                 fd, 0);
    if (p == MAP_FAILED) {
        err_set(e, E_NOINPUT, "cannot share '%s':", path);
        close(fd);
        return e->code;
    }
    l = mem_zero(1, sizeof(*l), "ledger", e);
    if (!l) {
        munmap(p, sizeof(struct page));
        close(fd);
        return e->code;
    }
    l->path = path;
    l->fd = fd;
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
    if (rc == EBUSY)
        return true;
    /* not asked again: glibc keeps a mutex that it says cannot be recovered */
    atomic_store(&x->word, NO);
    if (!rc || rc == EOWNERDEAD)
        pthread_mutex_unlock(&x->alive);
    return false;
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
    can = link >= LEDGER_GRIDS || /* the host's memory */
          (device_gpu() && offer_probe(k, &why) >= 0);
    l->reads[link] = true;
    atomic_store(&k->on_gpu, device_gpu() != NULL);
    atomic_store(&k->reader.word, can ? YES : NO);
    return 0;
}

int ledger_map(struct ledger *l, const struct loan *loan, const void **p,
               struct err *e)
{
    struct block *b = l->mapped;

    if (!device_gpu())
        return err_set(e, E_DATA, "a loan that nobody agreed to");
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
    if (!device_gpu() || device_functions()->settle(device_gpu(), &e) < 0 ||
        !end_lives(&l->page->link[link].lender))
        l->gone[link] = true;
    return !l->gone[link];
}

/* Room number i, mapped for reading, as far as the file has it. */
static int map_room(struct ledger *l, int i, struct err *e)
{
    const struct room *r = &l->page->room[i];
    struct stat st;
    void *p;

    if (l->room[i])
        return 0;
    if (!r->n || fstat(l->fd, &st) || r->at > (uint64_t)st.st_size ||
        r->n > (uint64_t)st.st_size - r->at)
        return err_set(e, E_DATA, "a loan of what is not there");
    p = mmap(NULL, r->n, PROT_READ, MAP_SHARED, l->fd, (off_t)r->at);
    if (p == MAP_FAILED)
        return err_set(e, E_TEMP, "'%s': cannot map a loan:", l->path);
    l->room[i] = p;
    return 0;
}

/* The state of a loan's lease; NULL: it has none. */
static _Atomic uint32_t *lease_of(const struct ledger *l,
                                  const struct loan *loan)
{
    bool host = loan->lent == LENT_HOST;
    uint32_t i = loan->lease - 1;

    if (i >=
        (uint32_t)(host ? ROOMS : 2 * LEASES)) /* 0, without a lease, too */
        return NULL;
    if (host)
        return &l->page->room[i].leased;
    return i < LEASES ? &l->page->link[LEDGER_HESSIANS].leased[i] :
                        &l->page->link[LEDGER_ACTIVATIONS].leased[i - LEASES];
}

int ledger_see(struct ledger *l, const struct loan *loan, size_t n,
               const void **p, struct err *e)
{
    int i = (int)loan->lease - 1;

    if (!lease_of(l, loan) || loan->lent != LENT_HOST)
        return err_set(e, E_DATA, "a loan without a lease");
    if (map_room(l, i, e) < 0)
        return e->code;
    if (loan->offset != l->page->room[i].at || n > l->page->room[i].n)
        return err_set(e, E_DATA, "a loan that is not as long");
    *p = l->room[i];
    return 0;
}

int ledger_payload(struct ledger *l, const struct frame *f, const void **data,
                   struct err *e)
{
    int rc = 0;

    *data = f->data;
    if (f->loan.lent && (!l || f->about))
        rc = err_set(e, E_DATA, "a loan of %s", l ? "another kind" : "nobody");
    else if (f->loan.lent)
        rc = ledger_see(l, &f->loan, f->len, data, e);
    return rc < 0 ? err_prefix(e, "'%s'", f->name) : 0;
}

int ledger_copy(struct ledger *l, const struct loan *loan, void *to, size_t n,
                struct err *e)
{
    const void *p;
    int rc;

    if (!lease_of(l, loan))
        return err_set(e, E_DATA, "a loan without a lease");
    if ((rc = ledger_map(l, loan, &p, e)) >= 0)
        rc = device_functions()->fetch(device_gpu(), to, p, n, e);
    if (!end_lives(&l->page->link[LEDGER_HESSIANS].lender))
        return err_set(e, E_DATA, "input ends early");
    return rc;
}

void ledger_return(struct ledger *l, const struct loan *loan)
{
    _Atomic uint32_t *leased = loan->lent ? lease_of(l, loan) : NULL;

    if (leased)
        atomic_fetch_and(leased,
                         ~(uint32_t)(l->reads[LEDGER_FILES] ? FILES : READER));
}

/* ---- lender ---- */

static void pause_ms(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Whether the reader's test block can be mapped and is zero. */
static bool try_probe(struct ledger *l, const struct link *k)
{
    struct loan probe = { .lent = LENT_DEVICE };
    const void *p;
    uint64_t value;
    struct err e;

    memcpy(probe.handle, k->probe, LOAN_HANDLE);
    return ledger_map(l, &probe, &p, &e) >= 0 &&
           device_functions()->fetch(device_gpu(), &value, p, sizeof(value),
                                     &e) >= 0 &&
           !value;
}

/* Wait until the reader has announced itself; whether it can map loans. */
static bool reader_can(struct link *k)
{
    for (int i = 0; i < WAIT_MS && atomic_load(&k->reader.word) < YES; i++)
        pause_ms();
    return atomic_load(&k->reader.word) == YES;
}

static bool agree(struct ledger *l, struct link *k)
{
    struct err e;

    if (k == &l->page->link[LEDGER_WEIGHTS])
        return reader_can(&l->page->link[LEDGER_GRIDS]) && reader_can(k);
    if (!device_gpu() || !reader_can(k) || !try_probe(l, k) ||
        end_begin(l, &k->lender, &e) < 0 || end_live(&k->lender, &e) < 0)
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

int ledger_on_gpu(const struct ledger *l)
{
    static const enum ledger_link readers[] = { LEDGER_GRIDS, LEDGER_WEIGHTS };

    for (size_t i = 0; i < ARRAY_LEN(readers); i++) {
        const struct link *k = &l->page->link[readers[i]];

        if (atomic_load(&k->reader.word) < YES)
            return -1;
        if (atomic_load(&k->reader.word) == NO || !atomic_load(&k->on_gpu))
            return 0;
    }
    return 1;
}

int ledger_loan(const void *block, size_t offset, struct loan *loan,
                struct err *e)
{
    *loan = (struct loan){ .offset = offset, .lent = LENT_DEVICE };
    return device_functions()->handle(device_gpu(), block, loan->handle, e);
}

uint32_t ledger_take(struct ledger *l, int i)
{
    atomic_store(&l->page->link[LEDGER_ACTIVATIONS].leased[i], READER);
    return 1 + LEASES + (uint32_t)i;
}

bool ledger_is_back(struct ledger *l, int i)
{
    struct link *k = &l->page->link[LEDGER_ACTIVATIONS];

    return !atomic_load(&k->leased[i]) || !end_lives(&k->reader);
}

/* The smallest block of at least n bytes that no frame refers to, or NULL. */
static struct lease *smallest_free(struct ledger *l, struct link *k, size_t n)
{
    struct lease *best = NULL;

    for (int i = 0; i < LEASES; i++)
        if (l->lease[i].n >= n && !atomic_load(&k->leased[i]) &&
            (!best || l->lease[i].n < best->n))
            best = &l->lease[i];
    return best;
}

bool ledger_lease(struct ledger *l, size_t n, void **block, struct loan *loan)
{
    struct lease *free_one;
    struct link *k;
    struct err e;

    if (!ledger_lends(l, LEDGER_HESSIANS))
        return false;
    k = &l->page->link[LEDGER_HESSIANS];
    free_one = smallest_free(l, k, n);
    for (int i = 0; i < LEASES && !free_one; i++)
        if (!l->lease[i].p && device_functions()->block(
                                  device_gpu(), &l->lease[i].p, n, &e) >= 0) {
            l->lease[i].n = n;
            free_one = &l->lease[i];
        }
    if (!free_one || ledger_loan(free_one->p, 0, loan, &e) < 0)
        return false;
    loan->lease = 1 + (uint32_t)(free_one - l->lease);
    atomic_store(&k->leased[loan->lease - 1], READER);
    *block = free_one->p;
    return true;
}

/* Put n bytes behind all rooms, also those of another lender, and map them. */
static bool open_room(struct ledger *l, int i, size_t n)
{
    struct room *r = &l->page->room[i];
    uint64_t at =
        ROOM + atomic_fetch_add(&l->page->end, (n + ROOM - 1) / ROOM * ROOM);
    void *p;

    if (posix_fallocate(l->fd, (off_t)at, (off_t)n)) /* or SIGBUS later */
        return false;
    p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, (off_t)at);
    if (p == MAP_FAILED)
        return false;
    r->at = at;
    r->n = n;
    l->room[i] = p;
    return true;
}

/* One of rooms first..end-1; lease: bits of those who will return it. */
static bool take_room(struct ledger *l, int first, int end, size_t n,
                      uint32_t lease, void **block, struct loan *loan)
{
    struct room *room = l->page->room;
    int i = first;

    while (i < end && l->room[i] &&
           (atomic_load(&room[i].leased) || room[i].n < n))
        i++;
    if (i == end || (!l->room[i] && !open_room(l, i, n)))
        return false;
    atomic_store(&room[i].leased, lease);
    *loan = (struct loan){ .lent = LENT_HOST,
                           .lease = 1 + (uint32_t)i,
                           .offset = room[i].at };
    *block = l->room[i];
    return true;
}

bool ledger_room(struct ledger *l, int first, int end, size_t n, void **block,
                 struct loan *loan)
{
    return take_room(l, first, end, n, READER, block, loan);
}

size_t ledger_codes_room(size_t n)
{
    size_t room = CODES;

    while (room < n && room <= SIZE_MAX / 2)
        room *= 2;
    return room;
}

bool ledger_codes(struct ledger *l, size_t n, void **block, struct loan *loan)
{
    size_t room = ledger_codes_room(n);

    if (!l || atomic_load(&l->page->link[LEDGER_FILES].reader.word) != YES ||
        atomic_load(&l->page->link[LEDGER_CODES].reader.word) != YES)
        return false;
    return room >= n && take_room(l, CODES_FIRST, MOMENTS_FIRST, room,
                                  READER | FILES, block, loan);
}

bool ledger_moments(struct ledger *l, size_t n, void **block, struct loan *loan)
{
    return ledger_lends(l, LEDGER_WEIGHTS) &&
           take_room(l, MOMENTS_FIRST, ROOMS, n, READER, block, loan);
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
        bool lends = l->lends[i] == YES && i != LEDGER_WEIGHTS;

        while (lends && !all_back(k) && end_lives(&k->reader))
            pause_ms();
        if (lends)
            end_leave(&k->lender);
        if (l->reads[i])
            end_leave(&k->reader);
    }
    for (int i = 0; i < ROOMS; i++)
        if (l->room[i])
            munmap(l->room[i], l->page->room[i].n);
    munmap(l->page, sizeof(*l->page));
    close(l->fd);
    free(l);
}
