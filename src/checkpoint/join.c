/* join.c - see join.h. */
#include "checkpoint/join.h"

struct join {
    struct weights_plan *p;
    const struct weights_choice *choice;
    struct ahead *ahead;
    struct stream_writer *out;
    struct progress *progress;
    struct err *e;
};

static int write_module(const char *module, void *arg)
{
    struct join *j = arg;
    uint64_t bytes;
    int r = ahead_write(j->ahead, module, j->out, &bytes, j->e);

    if (!r) {
        ahead_hold(j->ahead, true);
        r = weights_write_module(j->p, j->choice, module, j->out, &bytes, j->e);
        ahead_hold(j->ahead, false);
    }
    if (r > 0)
        progress_step(j->progress, module, bytes);
    return r < 0 ? r : 0;
}

static int one(struct join *j, const struct frame *f)
{
    if (!f->passed && stream_write(j->out, f, j->e) < 0)
        return j->e->code;
    return f->role == ROLE_HESSIAN && f->modules ?
               frame_each_module(f, write_module, j) :
               0;
}

static int join(struct join *j, struct stream_reader *in)
{
    bool first = true;
    struct frame f;
    int r;

    while ((r = stream_next(in, &f, j->e)) > 0) {
        if (first && stream_inherit(j->out, stream_head(in), j->e) < 0)
            return j->e->code;
        first = false;
        if ((r = one(j, &f)) < 0)
            return r;
    }
    return r;
}

int join_weights(struct weights_plan *p, const struct weights_choice *choice,
                 struct ledger *l, struct stream_reader *in,
                 struct stream_writer *out, struct progress *progress,
                 struct err *e)
{
    struct join j = {
        .p = p, .choice = choice, .out = out, .progress = progress, .e = e
    };
    int r = ahead_open(&j.ahead, p, choice, l, e);

    stream_pass(in, out, ROLE_HESSIAN, NULL, NULL);
    if (!r)
        r = join(&j, in);
    ahead_close(j.ahead);
    return r;
}
