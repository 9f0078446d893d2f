/* publisher.c - see publisher.h. */
#include "calib/publisher.h"

#include "calib/emit.h"

static int write_store(const struct publisher *p, struct stream_writer *w,
                       const struct store *s, enum companion companion,
                       struct err *e)
{
    struct buffer room = { 0 };
    int rc = 0;

    for (int64_t i = 0; i < s->n_batches && rc >= 0; i++) {
        const struct span *b = &s->batch[i];

        rc = emit_hidden(w, s, b, p->layer, companion, &room, e);
        store_leave(s, b);
    }
    buffer_release(&room);
    return rc;
}

static int write_all(struct publisher *p, struct stream_writer *w,
                     struct err *e)
{
    double start = seconds_now();

    if (stream_inherit(w, p->head, e) < 0 ||
        write_store(p, w, p->s, COMPANION_NONE, e) < 0 ||
        (p->reference &&
         write_store(p, w, p->reference, COMPANION_ORIGINAL, e) < 0))
        return e->code;
    p->seconds = seconds_now() - start;
    if (p->feedback && feedback_wait(p->feedback, p->mark, NULL, e) < 0)
        return e->code;
    return 0;
}

static void *publish(void *arg)
{
    struct publisher *p = arg;
    struct stream_output out = { .path = p->path, .key = p->key };
    struct stream_writer *w;

    p->rc = stream_create(&w, &out, &p->err);
    if (p->rc < 0)
        return NULL;
    p->rc = write_all(p, w, &p->err);
    if (p->rc < 0)
        stream_abort(w, &p->err);
    else
        p->rc = stream_finish(w, &p->err);
    return NULL;
}

int publisher_start(struct publisher *p, struct err *e)
{
    p->running = !pthread_create(&p->thread, NULL, publish, p);
    return p->running ?
               0 :
               err_set(e, E_TEMP, "'%s': cannot start a thread", p->path);
}

int publisher_join(struct publisher *p, struct err *e)
{
    if (!p->running)
        return 0;
    pthread_join(p->thread, NULL);
    p->running = false;
    if (p->rc < 0)
        *e = p->err;
    return p->rc;
}
