/* positions.c - see internal.h: what depends on the position in a sequence, on the
 * host and where layers run. */
#include "model/internal.h"

int64_t model_longest(const int64_t *first, int64_t n)
{
    int64_t longest = 0;

    for (int64_t i = 0; i < n; i++)
        if (first[i + 1] - first[i] > longest)
            longest = first[i + 1] - first[i];
    return longest;
}

int model_rope(struct model *m, int64_t layer, int64_t n, const float **cs,
               int64_t *rotary, struct err *e)
{
    const struct model_config *c = &m->config;
    const struct rope *r = model_layer_rope(c, layer);
    struct rope_table *t = r == &c->local_rope ? &m->local_rope : &m->rope;

    if (rope_table_reserve(t, r ? r : &c->rope, c->rotary, n, e) < 0)
        return e->code;
    *cs = t->cs;
    *rotary = r ? c->rotary : 0;
    return 0;
}

/* *to: a copy of n numbers of the host in b, made when `known` of them are there
 * already. */
static int copy_table(struct model *m, struct buffer *b, int64_t known,
                      const float *host, int64_t n, const char *what,
                      const float **to, struct err *e)
{
    size_t bytes = (size_t)n * sizeof(*host);

    if (known != n && (model_reserve(m, b, n, 1, sizeof(*host), what, e) < 0 ||
                       model_put(m, b->p, host, bytes, e) < 0))
        return e->code;
    *to = b->p;
    return 0;
}

int model_angles(struct model *m, int64_t layer, int64_t longest,
                 const float **cs, int64_t *rotary, struct err *e)
{
    bool local = model_layer_rope(&m->config, layer) == &m->config.local_rope;
    struct rope_table *t = local ? &m->local_rope : &m->rope;
    int64_t n, *known = &m->angle_rows[local];

    if (model_rope(m, layer, longest, cs, rotary, e) < 0)
        return e->code;
    if (!m->on)
        return 0;
    n = t->n * m->config.rotary;
    if (copy_table(m, &m->angles[local], *known, t->cs, n, "positions", cs, e) <
        0) {
        *known = 0;
        return e->code;
    }
    *known = n;
    return 0;
}

/* m->growth = the factors of at least n positions. */
static int grow_table(struct model *m, int64_t n, struct err *e)
{
    if (n <= m->grown)
        return 0;
    m->grown = 0;
    if (buffer_reserve(&m->growth, n, 1, sizeof(float), "positions", e) < 0)
        return e->code;
    for (int64_t i = 0; i < n; i++)
        ((float *)m->growth.p)[i] = query_factor(&m->config.query_growth, i);
    m->grown = n;
    return 0;
}

int model_growth(struct model *m, int64_t layer, int64_t longest,
                 const float **by, struct err *e)
{
    const struct model_config *c = &m->config;

    *by = NULL;
    if (c->query_growth.scale <= 0 || model_layer_rope(c, layer))
        return 0;
    if (grow_table(m, longest, e) < 0)
        return e->code;
    *by = m->growth.p;
    if (!m->on)
        return 0;
    if (copy_table(m, &m->growth_there, m->grown_there, m->growth.p, m->grown,
                   "positions", by, e) < 0) {
        m->grown_there = 0;
        return e->code;
    }
    m->grown_there = m->grown;
    return 0;
}
