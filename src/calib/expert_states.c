/* expert_states.c - see expert_states.h. */
#include "calib/expert_states.h"

#include <stdlib.h>
#include <string.h>

#include "calib/emit.h"

void expert_states_frame(const struct model_config *c, int64_t layer,
                         enum routed which, bool reference, int64_t tokens,
                         struct frame *f)
{
    static const char *const part[] = { "experts", "experts", "scores",
                                        "mass" };
    bool mass = which == ROUTED_MASS;

    *f = (struct frame){ .role = ROLE_ROUTING,
                         .dtype = mass                    ? DT_F64 :
                                  which == ROUTED_EXPERTS ? DT_I32 :
                                                            DT_F32,
                         .ndim = mass ? 1 : 2,
                         .dims = { (uint64_t)tokens, (uint64_t)c->moe.top_k } };
    if (mass) {
        f->dims[0] = (uint64_t)c->moe.n_experts;
        f->dims[1] = 0;
    }
    f->len = (size_t)(mass ? c->moe.n_experts : tokens * c->moe.top_k) *
             dtype_bits(f->dtype) / 8;
    layer_tensor_name(layer, part[which], f->name);
    if (reference)
        strcat(f->name, companion_suffix(COMPANION_ORIGINAL));
}

void *expert_states_payload(const struct routing *r, enum routed which)
{
    void *const of[] = { r->experts, r->weights, r->scores, r->mass };

    return of[which];
}

int expert_states_check(const struct model_config *c, const struct frame *f,
                        const struct routing *r, enum routed which,
                        struct err *e)
{
    for (int64_t i = 0; which == ROUTED_EXPERTS && i < r->n * r->top_k; i++)
        if (r->experts[i] < 0 || r->experts[i] >= c->moe.n_experts)
            return err_set(e, E_DATA, "'%s': no expert %d", f->name,
                           r->experts[i]);
    return 0;
}

/* The streams that there are; returns their number. */
static int list(const struct calib_experts *ex, const struct mixture *of[2])
{
    of[0] = &ex->mix;
    of[1] = &ex->reference;
    return ex->run->reference ? 2 : 1;
}

/* The frame of sequence i's activations. */
static struct frame activation(const struct calib_experts *ex, int64_t i,
                               bool reference)
{
    const struct emit_place p = { ex->layer, POINT_MLP_IN,
                                  reference ? COMPANION_ORIGINAL :
                                              COMPANION_NONE };
    const struct model *m = ex->run->c->m;
    const struct sequence *q = &ex->run->s->sequence[i];
    uint64_t h = (uint64_t)model_config(m)->hidden_size;
    struct frame f = { .role = ROLE_ACTIVATION,
                       .dtype = model_dtype(m),
                       .ndim = 2,
                       .dims = { (uint64_t)q->length, h },
                       .sequence = q->number };

    f.len = f.dims[0] * h * dtype_bits(f.dtype) / 8;
    emit_state_name(&p, f.name);
    return f;
}

static int write_rows(const struct calib_experts *ex, const struct mixture *x,
                      bool reference, struct stream_writer *w, struct err *e)
{
    const char *rows = x->in;
    void *host = NULL;
    int rc = 0;

    for (int64_t i = 0; i < ex->run->s->n_sequences && rc >= 0; i++) {
        struct frame f = activation(ex, i, reference);

        f.data = rows;
        if (model_on_device(x->m)) {
            rc = mem_grow(&host, f.len, "activations", e);
            if (rc >= 0)
                rc = model_get(x->m, host, rows, f.len, e);
            f.data = host;
        }
        if (rc >= 0)
            rc = stream_write(w, &f, e);
        rows += f.len;
    }
    free(host);
    return rc;
}

int expert_states_write(const struct calib_experts *ex, struct stream_writer *w,
                        struct err *e)
{
    const struct mixture *of[2];
    int n = list(ex, of);

    for (int i = 0; i < n; i++)
        for (enum routed k = 0; k < ROUTED; k++) {
            const struct routing *r = &of[i]->routing;
            struct frame f;

            expert_states_frame(model_config(of[i]->m), ex->layer, k, i, r->n,
                                &f);
            f.data = expert_states_payload(r, k);
            if (stream_write(w, &f, e) < 0)
                return e->code;
        }
    for (int i = 0; i < n; i++)
        if (write_rows(ex, of[i], i, w, e) < 0)
            return e->code;
    return 0;
}

static int read_rows(struct calib_experts *ex, const struct mixture *x,
                     bool reference, struct batch_reader *f, struct err *e)
{
    char *rows = x->in;

    for (int64_t i = 0; i < ex->run->s->n_sequences; i++) {
        struct frame want = activation(ex, i, reference);
        const void *data;

        if (batch_reader_inside(f, &want, &data, e) < 0)
            return e->code;
        if (!model_on_device(x->m))
            memcpy(rows, data, want.len);
        else if (model_put(x->m, rows, data, want.len, e) < 0)
            return e->code;
        rows += want.len;
    }
    return 0;
}

int expert_states_read(struct calib_experts *ex, struct batch_reader *f,
                       struct err *e)
{
    const struct mixture *of[2];
    int n = list(ex, of);

    for (int i = 0; i < n; i++)
        for (enum routed k = 0; k < ROUTED; k++) {
            const struct model_config *c = model_config(of[i]->m);
            const struct routing *r = &of[i]->routing;
            const void *data;
            struct frame want;

            expert_states_frame(c, ex->layer, k, i, r->n, &want);
            if (batch_reader_inside(f, &want, &data, e) < 0)
                return e->code;
            memcpy(expert_states_payload(r, k), data, want.len);
            if (expert_states_check(c, &want, r, k, e) < 0)
                return e->code;
        }
    for (int i = 0; i < n && !ex->run->c->outputs.count; i++)
        if (read_rows(ex, of[i], i, f, e) < 0)
            return e->code;
    return 0;
}
