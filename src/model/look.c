/* look.c - see model.h: whether the checkpoint has what the forward pass reads. */
#include "model/internal.h"
#include "model/moe.h"

static int look_at_experts(struct model *m, int64_t layer, struct err *e)
{
    int64_t n = model_linear_count(&m->config, layer);
    struct router *r;

    if (router_load(m, layer, &r, e) < 0)
        return e->code;
    router_release(r);
    for (int64_t i = model_linear_common(&m->config, layer); i < n; i++) {
        struct loaded l = { 0 };
        int rc;

        model_linear(&m->config, layer, i, &l.of);
        rc = model_load_linear(m, NULL, &l, e);
        loaded_release(&l);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int look_at_layer(struct model *m, int64_t layer, struct err *e)
{
    struct layer *l;

    if (model_load_layer(m, layer, POINT_IN, POINT_OUT, NULL, &l, e) < 0)
        return e->code;
    layer_release(l);
    return model_layer_experts(&m->config, layer) ?
               look_at_experts(m, layer, e) :
               0;
}

static int look_at_head(struct model *m, bool wanted, struct err *e)
{
    struct head *h;

    if (model_headless(m))
        return wanted ? err_set(e, E_CONFIG,
                                "the model has no output head, so no gradients "
                                "of what it predicts: take --effort fast") :
                        0;
    if (model_load_head(m, &h, e) < 0)
        return e->code;
    head_release(h);
    return 0;
}

static int look(struct model *m, bool head, struct err *e)
{
    if (model_load_embedding(m, e) < 0 || look_at_head(m, head, e) < 0)
        return e->code;
    for (int64_t i = 0; i < m->config.n_layers; i++)
        if (look_at_layer(m, i, e) < 0)
            return e->code;
    return 0;
}

int model_look(const char *dir, int64_t length, bool head, struct err *e)
{
    struct model *m;
    int rc;

    if (model_open(&m, dir, DT_BF16, e) < 0)
        return e->code;
    m->looks = true;
    checkpoint_look(m->ck);
    rc = model_supports(&m->config, length, e);
    if (rc >= 0)
        rc = look(m, head, e);
    if (rc >= 0)
        model_warn_of_length(&m->config, length);
    model_close(m);
    return rc;
}
