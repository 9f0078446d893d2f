/* join.c - see join.h. */
#include "checkpoint/join.h"

struct join {
    struct weights_plan *p;
    const struct weights_choice *choice;
    struct stream_writer *out;
    struct progress *progress;
    struct err *e;
};

static int write_module(const char *module, void *arg)
{
    struct join *j = arg;
    uint64_t bytes;
    int r = weights_write_module(j->p, j->choice, module, j->out, &bytes, j->e);

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

int join_weights(struct weights_plan *p, const struct weights_choice *choice,
                 struct stream_reader *in, struct stream_writer *out,
                 struct progress *progress, struct err *e)
{
    struct join j = { p, choice, out, progress, e };
    bool first = true;
    struct frame f;
    int r;

    stream_pass(in, out, ROLE_HESSIAN, NULL, NULL);
    while ((r = stream_next(in, &f, e)) > 0) {
        if (first && stream_inherit(out, stream_head(in), e) < 0)
            return e->code;
        first = false;
        if ((r = one(&j, &f)) < 0)
            return r;
    }
    return r;
}
