/* read_ahead.c - see read_ahead.h. */
#include "model/read_ahead.h"

#include <string.h>

#include "model/internal.h"

enum { THREADS_OF_A_READER = 2 };

static void read_item(void *arg)
{
    struct reader *r = arg;
    struct read_ahead *a = r->of;

    r->rc = r->turn < a->turns ? a->read(a->ctx, r->turn, r->item, &r->err) : 0;
}

static void start(struct reader *r, int64_t turn)
{
    r->turn = turn;
    threads_start(&r->task, read_item, r);
}

void readers_start(struct read_ahead *a, const struct model *m)
{
    int n = threads_count() / THREADS_OF_A_READER;
    int most = model_on_device(m) ? READERS : READERS / 2;

    a->here = m->on && m->tuning;
    a->n = a->here ? 1 : n < 2 ? 2 : n < most ? n : most;
    for (int i = 0; i < a->n; i++) {
        a->r[i].of = a;
        a->r[i].item = (char *)a->item + (size_t)i * a->size;
        if (!a->here)
            start(&a->r[i], i);
    }
}

int readers_next(struct read_ahead *a, int64_t turn, void *item, struct err *e)
{
    struct reader *r = &a->r[turn % a->n];

    memcpy(item, &r->item, sizeof(r->item));
    if (a->here) {
        r->turn = turn;
        read_item(r);
    } else
        threads_join(&r->task);
    if (r->rc < 0)
        *e = r->err;
    return r->rc;
}

void readers_go_on(struct read_ahead *a, int64_t turn)
{
    struct reader *r = &a->r[turn % a->n];

    a->release(r->item);
    if (!a->here)
        start(r, turn + a->n);
}

void readers_end(struct read_ahead *a)
{
    for (int i = 0; i < a->n; i++) {
        if (!a->here)
            threads_join(&a->r[i].task);
        a->release(a->r[i].item);
    }
}
