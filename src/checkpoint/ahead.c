/* ahead.c - see ahead.h. */
#include "checkpoint/ahead.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/lent_fp8.h"

enum {
    /* of all blocks, but for the fewest; and of those of experts */
    ROOM_BYTES = 512 << 20,
    FEWEST = 3,
    PAUSE_NS = 1000000, /* until a block is asked for again */
    WAIT_SECONDS = 4,   /* for what the readers tell, as the ledger waits */
    LEAST_BLOCK = 16    /* weights of a scale in what is lent as it is stored */
};

enum fill { EMPTY, READING, READY, FAILED };

/* A linear that is being read, or has been; EMPTY: none. */
struct slot {
    enum fill fill;
    char module[MODULE_PATH_MAX];
    struct frame f; /* its data, too: the block */
    struct lent_fp8 said;
};

struct ahead {
    struct weights_plan *plan;
    const struct weights_choice *choice;
    struct ledger *ledger;
    bool asked; /* whether the readers can map loans */
    pthread_t thread;
    bool running;
    pthread_mutex_t reading; /* held by who reads the checkpoint */
    pthread_mutex_t lock;
    pthread_cond_t work, news; /* for the thread; from it */
    /* under lock: */
    bool stop, starved; /* starved: read_next() found nothing to do */
    bool as_stored;     /* 8-bit floats are lent as they are */
    /* Bytes of a block: of the largest linear, of the largest of an expert. */
    size_t largest, expert;
    int large, most; /* blocks of the first kind; of both; 0: not known yet */
    int64_t layer, next; /* the linear to be read next */
    struct slot slot[LEDGER_LEASES];
};

/* ---- the linears ---- */

/* Whether a linear is written as it is stored, whole. */
static bool stored(const struct ahead *a, const char *module,
                   struct weights_item *it)
{
    struct err none;

    return weights_module(a->plan, a->choice, module, it, &none) > 0 &&
           it->kind == WEIGHTS_LINEAR;
}

/* The next linear from the thread's place on, which moves behind it; false: there
 * is none.  A share of experts is of one layer. */
static bool next_linear(struct ahead *a, char module[MODULE_PATH_MAX],
                        struct weights_item *it)
{
    const struct model_config *c = a->plan->config;

    while (a->layer < c->n_layers) {
        struct linear lin;

        while (a->next < model_linear_count(c, a->layer)) {
            model_linear(c, a->layer, a->next++, &lin);
            if (stored(a, lin.module, it)) {
                strcpy(module, lin.module);
                return true;
            }
        }
        if (a->choice->shares)
            break;
        a->layer++;
        a->next = 0;
    }
    return false;
}

/* Put the thread's place in front of a linear. */
static void go_to(struct ahead *a, const char *module)
{
    const struct model_config *c = a->plan->config;
    struct linear lin;

    a->layer = tensor_name_layer(module);
    a->next = 0;
    for (int64_t n = model_linear_count(c, a->layer); a->next < n; a->next++) {
        model_linear(c, a->layer, a->next, &lin);
        if (!strcmp(lin.module, module))
            return;
    }
}

/* Whether a linear is lent in 8-bit floats if the readers take them: *m is its shape. */
static bool in_fp8(const struct ck_tensor *t, struct fp8_matrix *m)
{
    return checkpoint_fp8(t, m) && m->rows && m->cols &&
           fp8_down(m) * fp8_across(m) <= m->rows * m->cols / LEAST_BLOCK;
}

/* Bytes of its block. */
static size_t room_of(const struct ahead *a, const struct ck_tensor *t)
{
    struct fp8_matrix m;

    return a->as_stored && in_fp8(t, &m) ? lent_fp8_bytes(&m) : t->bytes;
}

/* Bytes of the largest block; of experts alone. */
static size_t largest(const struct ahead *a, bool experts)
{
    const struct weights_plan *p = a->plan;
    size_t n = 0;

    for (size_t i = 0; i < p->count; i++)
        if (p->item[i].kind == WEIGHTS_LINEAR &&
            (!experts || tensor_name_is_expert(p->item[i].t->name)) &&
            room_of(a, p->item[i].t) > n)
            n = room_of(a, p->item[i].t);
    return n;
}

/* A block for a linear of n bytes. */
static bool find_room(const struct ahead *a, size_t n, void **block,
                      struct loan *loan)
{
    return (n <= a->expert && ledger_room(a->ledger, a->large, a->most,
                                          a->expert, block, loan)) ||
           ledger_room(a->ledger, 0, a->large, a->largest, block, loan);
}

/* ---- the thread ---- */

static int read_block(struct ahead *a, struct slot *s,
                      const struct ck_tensor *t, struct err *e)
{
    char *block = (char *)(uintptr_t)s->f.data;
    struct fp8_matrix m;

    s->f.about = 0;
    if (!a->as_stored || !in_fp8(t, &m))
        return checkpoint_read(a->plan->c, t, block, e);
    s->said = lent_fp8_of(&m);
    s->f.about = sizeof(s->said);
    return checkpoint_read_fp8(a->plan->c, t, block,
                               (float *)(void *)(block + lent_fp8_scales(&m)),
                               e);
}

/* Read a linear into its slot; called with the lock, which is left meanwhile. */
static void fill(struct ahead *a, struct slot *s, const struct ck_tensor *t)
{
    struct err none;
    int rc;

    s->fill = READING;
    pthread_mutex_unlock(&a->lock);
    pthread_mutex_lock(&a->reading);
    rc = read_block(a, s, t, &none);
    pthread_mutex_unlock(&a->reading);
    pthread_mutex_lock(&a->lock);
    s->fill = rc < 0 ? FAILED : READY;
    pthread_cond_broadcast(&a->news);
}

static void pause_locked(struct ahead *a)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += PAUSE_NS;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(&a->work, &a->lock, &t);
}

static struct slot *empty_slot(struct ahead *a)
{
    for (int i = 0; i < a->most; i++)
        if (a->slot[i].fill == EMPTY)
            return &a->slot[i];
    return NULL;
}

/* Read the next linear.  False: there is none, or no room for it, so that who waits
 * for one reads it. */
static bool read_next(struct ahead *a)
{
    struct slot *s = empty_slot(a);
    struct weights_item it;
    bool found = s && next_linear(a, s->module, &it);
    struct loan loan;
    struct err none;
    void *block;

    if (!found || !find_room(a, room_of(a, it.t), &block, &loan)) {
        a->next -= found; /* it is still the next one */
        a->starved = true;
        pthread_cond_broadcast(&a->news);
        return false;
    }
    if (weights_frame(&it, &s->f, &none) < 0) {
        ledger_return(a->ledger, &loan);
        return true;
    }
    s->f.data = block;
    s->f.loan = loan;
    fill(a, s, it.t);
    return true;
}

/* How many blocks of n bytes. */
static int count(size_t n)
{
    return ROOM_BYTES / n < FEWEST        ? FEWEST :
           ROOM_BYTES / n > LEDGER_LEASES ? LEDGER_LEASES :
                                            (int)(ROOM_BYTES / n);
}

static bool any_fp8(const struct weights_plan *p)
{
    struct fp8_matrix m;

    for (size_t i = 0; i < p->count; i++)
        if (p->item[i].kind == WEIGHTS_LINEAR && in_fp8(p->item[i].t, &m))
            return true;
    return false;
}

/* Set what is lent, and in which blocks: 8-bit floats as they are stored where both
 * readers have told that they have a GPU. */
static void plan_blocks(struct ahead *a)
{
    double end = seconds_now() + WAIT_SECONDS;
    int gpu = 0, large, most;

    if (any_fp8(a->plan))
        while ((gpu = ledger_on_gpu(a->ledger)) < 0 && !a->stop &&
               seconds_now() < end)
            pause_locked(a);
    a->as_stored = gpu > 0;
    a->largest = largest(a, false);
    a->expert = largest(a, true);
    large = count(a->largest);
    most = a->expert ? large + count(a->expert) : large;
    a->large = large;
    a->most = most < LEDGER_LEASES ? most : LEDGER_LEASES;
}

static void *read_all(void *arg)
{
    struct ahead *a = arg;

    pthread_mutex_lock(&a->lock);
    plan_blocks(a);
    while (!a->stop)
        if (!read_next(a))
            pause_locked(a);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

int ahead_open(struct ahead **out, struct weights_plan *p,
               const struct weights_choice *choice, struct ledger *l,
               struct err *e)
{
    struct ahead *a;

    *out = NULL;
    if (!l)
        return 0;
    a = mem_zero(1, sizeof(*a), "weights", e);
    if (!a)
        return e->code;
    a->plan = p;
    a->choice = choice;
    a->ledger = l;
    /* of a share: nowhere, until a linear is named */
    a->layer = choice->shares ? p->config->n_layers : 0;
    if (!largest(a, false)) {
        free(a);
        return 0;
    }
    pthread_mutex_init(&a->reading, NULL);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    pthread_cond_init(&a->news, NULL);
    a->running = !pthread_create(&a->thread, NULL, read_all, a);
    *out = a;
    return 0;
}

static void end_thread(struct ahead *a)
{
    if (!a->running)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    a->running = false;
}

void ahead_close(struct ahead *a)
{
    if (!a)
        return;
    end_thread(a);
    pthread_mutex_destroy(&a->reading);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->work);
    pthread_cond_destroy(&a->news);
    free(a);
}

void ahead_hold(struct ahead *a, bool hold)
{
    if (a)
        (hold ? pthread_mutex_lock : pthread_mutex_unlock)(&a->reading);
}

/* ---- taking ---- */

static struct slot *find(struct ahead *a, const char *module)
{
    for (int i = 0; i < a->most; i++)
        if (a->slot[i].fill != EMPTY && !strcmp(a->slot[i].module, module))
            return &a->slot[i];
    return NULL;
}

/* Another linear is wanted than was expected: forget what has been read. */
static void start_at(struct ahead *a, const char *module)
{
    for (int i = 0; i < a->most; i++)
        if (a->slot[i].fill == READY) {
            ledger_return(a->ledger, &a->slot[i].f.loan);
            a->slot[i].fill = EMPTY;
        }
    go_to(a, module);
}

/* The module's frame, when it has been read, and what it says.  False: it has not. */
static bool take(struct ahead *a, const char *module, struct frame *f,
                 struct lent_fp8 *said)
{
    struct slot *s;
    bool ready;

    pthread_mutex_lock(&a->lock);
    s = find(a, module);
    if (!s)
        start_at(a, module);
    a->starved = false;
    pthread_cond_signal(&a->work);
    while (!(s = find(a, module)) && !a->starved)
        pthread_cond_wait(&a->news, &a->lock);
    while (s && s->fill == READING)
        pthread_cond_wait(&a->news, &a->lock);
    ready = s && s->fill == READY;
    if (!s) { /* the caller reads it */
        go_to(a, module);
        a->next++;
    }
    if (ready) {
        *f = s->f;
        *said = s->said;
        f->data = f->about ? said : NULL;
    } else if (s) {
        ledger_return(a->ledger, &s->f.loan);
    }
    if (s)
        s->fill = EMPTY;
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->lock);
    return ready;
}

int ahead_write(struct ahead *a, const char *module, struct stream_writer *w,
                uint64_t *bytes, struct err *e)
{
    struct weights_item it;
    struct lent_fp8 said;
    struct frame f;

    if (!a || !a->running || !stored(a, module, &it))
        return 0;
    if (stream_flush(w, e) < 0) /* the Hessian need not wait */
        return e->code;
    if (!a->asked && !ledger_lends(a->ledger, LEDGER_WEIGHTS))
        end_thread(a);
    a->asked = true;
    if (!a->running || !take(a, module, &f, &said))
        return 0;
    *bytes = f.len;
    return stream_write(w, &f, e) < 0 ? e->code : 1;
}
