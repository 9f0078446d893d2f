/* hessian_tokens.c - see hessian_entry.h: tokens are added to moments. */
#include "device/device.h"
#include "hessian/hessian_entry.h"
#include "hessian/hessian_set.h"
#include "hessian/token_weights.h"

/* Tokens of an expert's loan that come to the host at a time. */
enum { PART_ROWS = 2048 };

/* ---- where they are ---- */

/* A loan becomes a payload. */
static int fetch(struct frame *f, struct room *to, struct err *e)
{
    if (!f->loan.lent)
        return 0;
    if (room_need(to, f->len, f->name, e) < 0 ||
        device_functions()->fetch(device_gpu(), to->p, f->data, f->len, e) < 0)
        return e->code;
    f->data = to->p;
    f->loan.lent = 0;
    return 0;
}

/* Whether the activation and its pairs are loans, and all moments made on the device.
 * If not, they come to the host. */
static bool stays_there(const struct hessian_set *c, const struct entry *t,
                        const struct frame *f)
{
    bool there = f->loan.lent && hessian_is_there(t->acc);

    for (int k = 0; k < PAIRS; k++)
        there &= !t->cross[k] ||
                 (cross_is_there(t->cross[k]) && c->pair[k].f.loan.lent &&
                  c->pair[k].f.dtype == f->dtype);
    return there;
}

static int bring_here(struct hessian_set *c, const struct entry *t,
                      struct frame *f, struct err *e)
{
    for (int k = 0; k < PAIRS; k++)
        if (t->cross[k] && fetch(&c->pair[k].f, &c->pair[k].room, e) < 0)
            return e->code;
    return fetch(f, &c->fetched, e);
}

/* Rows first..first+n-1 of f. */
static struct frame rows_of(const struct frame *f, uint64_t first, uint64_t n)
{
    size_t row = f->dims[1] * dtype_bits(f->dtype) / 8;
    struct frame g = *f;

    g.data = (const char *)f->data + first * row;
    g.dims[0] = n;
    g.len = n * row;
    return g;
}

/* ---- weights of tokens ---- */

/* *root NULL: they are alike. */
static int roots_of(const struct hessian_set *c, const struct frame *f,
                    const float **root, struct err *e)
{
    struct token_weights *w = c->params.weights;

    *root = NULL;
    return !f->dims[0] || tensor_name_is_expert(f->name) ||
                   !token_weights_have(w, f->name) ?
               0 :
               token_weights_get(w, f->name, f->sequence, f->dims[0], root, e);
}

/* Moments of rows times root weights are those of weighted tokens; the products are
 * rounded to the rows' dtype. */
static int weigh_all(struct hessian_set *c, const struct entry *t,
                     struct frame *f, const float *root, struct err *e)
{
    if (!root)
        return 0;
    if (token_weights_apply(f, root, &c->weighted, e) < 0)
        return e->code;
    for (int k = 0; k < PAIRS; k++)
        if (t->cross[k] && token_weights_apply(&c->pair[k].f, root,
                                               &c->pair_weighted[k], e) < 0)
            return e->code;
    return 0;
}

/* Add a part of the activation f to its cross moments, then to its Hessian,
 * which shares the packed x. */
static int add_part(struct hessian_set *c, struct entry *t,
                    const struct frame *f, struct hessian_part *p,
                    struct err *e)
{
    int rc;

    p->packed = NULL;
    for (int k = 0; k < PAIRS; k++) {
        const struct pair *y = &c->pair[k];
        size_t row = y->f.dims[1] * dtype_bits(y->f.dtype) / 8;

        if (!t->cross[k])
            continue;
        rc = cross_add(
            t->cross[k],
            &(struct cross_part){ .y = (const char *)y->f.data + p->first * row,
                                  .x = p->x,
                                  .y_dtype = y->f.dtype,
                                  .x_dtype = p->dtype,
                                  .tokens = p->tokens,
                                  .there = p->there,
                                  .root = p->root },
            e);
        if (rc < 0)
            return err_prefix(e, "'%s%s'", f->name,
                              companion_suffix(pair_companion[k]));
        if (!p->packed)
            p->packed = cross_packed(t->cross[k]);
    }
    rc = hessian_add(t->acc, p, e);
    if (rc < 0 && f->sequence)
        return err_prefix(e, "'%s': sequence %llu", f->name,
                          (unsigned long long)f->sequence - 1);
    return rc < 0 ? err_prefix(e, "'%s'", f->name) : 0;
}

/* Add the first n tokens of f but those to skip, cut at the ends of chunks where the
 * host has them.  root: of rows on the device, or NULL. */
static int add_tokens(struct hessian_set *c, struct entry *t,
                      const struct frame *f, const float *root, uint64_t n,
                      struct err *e)
{
    size_t row = f->dims[1] * dtype_bits(f->dtype) / 8;
    struct hessian_part p = { .dtype = f->dtype, .there = f->loan.lent };

    if (!tensor_name_is_expert(f->name))
        p.first = c->params.skip;
    for (; p.first < n; p.first += p.tokens) {
        uint64_t room = p.there ? n - p.first : hessian_room(t->acc);

        p.x = (const char *)f->data + p.first * row;
        p.tokens = n - p.first < room ? n - p.first : room;
        p.root = root ? root + p.first : NULL;
        if (add_part(c, t, f, &p, e) < 0)
            return e->code;
    }
    return 0;
}

/* Add the first n tokens of the expert's activation f, lent, on the host: a part of
 * them there at a time. */
static int add_parts(struct hessian_set *c, struct entry *t,
                     const struct frame *f, uint64_t n, struct err *e)
{
    struct frame pair[PAIRS];
    uint64_t part;

    for (int k = 0; k < PAIRS; k++)
        pair[k] = c->pair[k].f;
    for (uint64_t at = 0; at < n; at += part) {
        struct frame here;

        part = n - at < PART_ROWS ? n - at : PART_ROWS;
        here = rows_of(f, at, part);
        for (int k = 0; k < PAIRS; k++)
            if (t->cross[k])
                c->pair[k].f = rows_of(&pair[k], at, part);
        if (bring_here(c, t, &here, e) < 0 ||
            add_tokens(c, t, &here, NULL, part, e) < 0)
            return e->code;
    }
    return 0;
}

int entry_add(struct hessian_set *c, struct entry *t, const struct frame *f,
              uint64_t n, struct err *e)
{
    struct frame here = *f;
    const float *root;

    if (roots_of(c, f, &root, e) < 0)
        return e->code;
    if (stays_there(c, t, f))
        return add_tokens(c, t, f, root, n, e);
    if (f->loan.lent && tensor_name_is_expert(f->name))
        return add_parts(c, t, f, n, e);
    if (bring_here(c, t, &here, e) < 0 || weigh_all(c, t, &here, root, e) < 0)
        return e->code;
    return add_tokens(c, t, &here, NULL, n, e);
}
