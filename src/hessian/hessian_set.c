/* hessian_set.c - see hessian_set.h. */
#include "hessian/hessian_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/threads.h"
#include "device/ledger.h"
#include "hessian/hessian_entry.h"
#include "hessian/hessian_rows.h"
#include "hessian/token_weights.h"

int hessian_set_open(struct hessian_set **c, const struct hessian_set_params *p,
                     struct err *e)
{
    *c = mem_zero(1, sizeof(**c), "hessians", e);
    if (!*c)
        return e->code;
    (*c)->params = *p;
    (*c)->blend.k = p->blend;
    return 0;
}

void hessian_set_lend(struct hessian_set *c, struct ledger *l)
{
    c->lends = l;
}

void hessian_set_close(struct hessian_set *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->count; i++) {
        entry_drop(&c->entry[i]);
        free(c->entry[i].name);
        free(c->entry[i].modules);
        free(c->entry[i].given);
    }
    for (int k = 0; k < PAIRS; k++)
        free(c->pair[k].room.p);
    for (int k = 0; k < PAIRS; k++)
        free(c->pair_weighted[k].p);
    free(c->weighted.p);
    free(c->fetched.p);
    blend_release(&c->blend);
    free(c->entry);
    free(c);
}

/* The entry that is not emitted yet and has this name, or NULL. */
static struct entry *find(const struct hessian_set *c, const char *name)
{
    for (size_t i = c->count; i-- > 0;)
        if (!c->entry[i].emitted && !strcmp(c->entry[i].name, name))
            return &c->entry[i];
    return NULL;
}

static char *copy(const char *s, struct err *e)
{
    size_t n = strlen(s) + 1;
    char *p = mem_alloc(n, "hessians", e);

    return p ? memcpy(p, s, n) : NULL;
}

static struct entry *append(struct hessian_set *c, const struct frame *f,
                            struct err *e)
{
    size_t inputs = (size_t)(c->params.n_inputs > 0 ? c->params.n_inputs : 1);
    struct entry *t;

    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->entry[i].name, f->name)) {
            err_set(e, E_DATA, "'%s': comes again after it was complete",
                    f->name);
            return NULL;
        }
    if (mem_grow(&c->entry, (c->count + 1) * sizeof(*t), "hessians", e) < 0)
        return NULL;
    t = &c->entry[c->count++];
    memset(t, 0, sizeof(*t));
    t->emitted = true; /* so that nobody finds it before it is complete */
    t->name = copy(f->name, e);
    t->given = t->name ? mem_zero(inputs, 1, "hessians", e) : NULL;
    if (!t->given || (f->modules && !(t->modules = copy(f->modules, e))))
        return NULL;
    t->emitted = false;
    return t;
}

static int same_modules(const struct entry *t, const struct frame *f,
                        struct err *e)
{
    if (!t->modules == !f->modules &&
        (!t->modules || !strcmp(t->modules, f->modules)))
        return 0;
    return err_set(e, E_DATA,
                   "'%s': its frames disagree about the modules that read it",
                   f->name);
}

/* ---- activations ---- */

/* Of the products of activations like f. */
static enum dtype type_of(const struct hessian_set *c, const struct frame *f)
{
    return c->params.dtype     ? c->params.dtype :
           f->dtype == DT_BF16 ? DT_BF16 :
                                 DT_F32;
}

/* An entry for activations like f, without its accumulator. */
static int new_entry(struct hessian_set *c, const struct frame *f,
                     struct hessian_shape *s, struct entry **out, struct err *e)
{
    struct entry *t = append(c, f, e);

    if (!t)
        return e->code;
    *s = (struct hessian_shape){ .cols = f->dims[1],
                                 .block = c->params.block,
                                 .dtype = type_of(c, f) };
    if (hessian_elements(s->cols, s->block, &t->elements, e) < 0)
        return err_prefix(e, "'%s'", f->name);
    t->cols = s->cols;
    t->block = (uint32_t)s->block;
    t->ndim = s->block ? 3 : 1;
    t->dims[0] = s->block ? (s->cols + s->block - 1) / s->block : t->elements;
    t->dims[1] = t->dims[2] = s->block;
    *out = t;
    return 0;
}

static int new_accumulator(struct hessian_set *c, const struct frame *f,
                           struct entry **out, struct err *e)
{
    struct hessian_shape s;

    if (new_entry(c, f, &s, out, e) < 0)
        return e->code;
    return hessian_open(&(*out)->acc, &s, e) < 0 ?
               err_prefix(e, "'%s'", f->name) :
               0;
}

bool hessian_set_lease(struct hessian_set *c, const char *name,
                       uint64_t elements, struct hessian_lease *l)
{
    *l = (struct hessian_lease){ 0 };
    return ledger_lends(c->lends, LEDGER_HESSIANS) &&
           blend_can_there(&c->blend, name, elements) &&
           ledger_lease(c->lends, elements * sizeof(float), &l->block,
                        &l->loan);
}

void hessian_set_unlease(struct hessian_set *c, struct hessian_lease *l)
{
    if (l->block)
        ledger_return(c->lends, &l->loan);
    l->block = NULL;
}

int hessian_set_given(struct hessian_set *c, const struct frame *f,
                      struct hessian_made *m, struct err *e)
{
    struct hessian_shape s;
    struct entry *t;

    if (new_entry(c, f, &s, &t, e) < 0 ||
        hessian_given(&t->acc, &s, m->tokens, m->data, e) < 0) {
        hessian_set_unlease(c, &m->lease);
        free(m->data);
        return e->code;
    }
    t->lease = m->lease;
    return 0;
}

/* Let t->acc be that of the part of the tokens that f belongs to. */
static int take_part(struct hessian_set *c, struct entry *t,
                     const struct frame *f, struct err *e)
{
    struct hessian_shape s = { t->cols, c->params.block, type_of(c, f) };
    int64_t part;

    if (c->params.parts <= 1 || tensor_name_is_expert(f->name))
        return 0;
    if (!f->sequence)
        return err_set(e, E_DATA, "'%s': --parts wants numbered sequences",
                       f->name);
    part = (int64_t)((f->sequence - 1) % (uint64_t)c->params.parts);
    if (part != t->part && hessian_tokens(t->acc) &&
        (entry_merge(t, e) < 0 || hessian_open(&t->acc, &s, e) < 0))
        return err_prefix(e, "'%s'", f->name);
    t->part = part;
    return 0;
}

/* ---- companions of an activation ---- */

/* The kind of companion by a frame's name; PAIRS: it is none. */
static int pair_kind(const char *name)
{
    size_t len;
    enum companion c = companion_of(name, &len);
    int k = 0;

    while (k < PAIRS && pair_companion[k] != c)
        k++;
    return k;
}

static int keep_pair(struct hessian_set *c, int kind, const struct frame *f,
                     struct err *e)
{
    struct pair *p = &c->pair[kind];

    if (f->ndim != 2 || !f->dims[1] || !dtype_is_float(f->dtype))
        return err_set(e, E_DATA, "'%s': an activation is [tokens, inputs]",
                       f->name);
    p->f = *f;
    p->f.modules = NULL;
    if (f->loan.lent)
        return 0;
    if (room_need(&p->room, f->len, f->name, e) < 0)
        return e->code;
    if (f->len) /* no token: no room either */
        threads_copy(p->room.p, f->data, f->len);
    p->f.data = p->room.p;
    return 0;
}

/* Whether p is a companion of the activation f: name, sequence, shape. */
static bool pair_fits(const struct pair *p, int kind, const struct frame *f)
{
    size_t n = strlen(f->name);

    return p->f.role && !strncmp(p->f.name, f->name, n) &&
           !strcmp(p->f.name + n, companion_suffix(pair_companion[kind])) &&
           p->f.sequence == f->sequence && p->f.dims[0] == f->dims[0] &&
           (kind != DRIFT || p->f.dims[1] == f->dims[1]);
}

static int open_cross(struct entry *t, int kind, const struct pair *p,
                      const struct frame *f, struct err *e)
{
    bool bf16 = f->dtype == DT_BF16 && p->f.dtype == DT_BF16;
    struct cross_shape s = { .rows = p->f.dims[1],
                             .cols = f->dims[1],
                             .dtype = bf16 ? DT_BF16 : DT_F32 };

    t->cross_rows[kind] = s.rows;
    return cross_open(&t->cross[kind], &s, e);
}

/* Match the kept companions with the activation f.  The first activation of a
 * name decides which kinds there are, and every later one must have the
 * same. */
static int match_pairs(struct hessian_set *c, struct entry *t,
                       const struct frame *f, struct err *e)
{
    bool first = !hessian_tokens(t->acc);

    for (int k = 0; k < PAIRS && !c->params.block; k++) {
        struct pair *p = &c->pair[k];
        bool fits = pair_fits(p, k, f);
        int rc = 0;

        p->f.role = ROLE_NONE;
        if (fits && first && !t->cross[k])
            rc = open_cross(t, k, p, f, e);
        if (rc >= 0 && fits != !!t->cross[k])
            return err_set(e, E_DATA, "'%s': sequence %llu: '%s' is missing",
                           f->name, (unsigned long long)f->sequence - 1,
                           companion_suffix(pair_companion[k]));
        if (rc >= 0 && fits && t->cross_rows[k] != p->f.dims[1])
            rc = err_set(e, E_DATA, "another shape before");
        if (rc < 0)
            return err_prefix(e, "'%s%s'", f->name,
                              companion_suffix(pair_companion[k]));
    }
    return 0;
}

/* ---- tokens ---- */

bool hessian_set_alone(const struct hessian_set *c, const struct frame *f)
{
    if (f->role != ROLE_ACTIVATION || find(c, f->name) ||
        pair_kind(f->name) < PAIRS)
        return false;
    for (int k = 0; k < PAIRS; k++)
        if (pair_fits(&c->pair[k], k, f))
            return false;
    return true;
}

int hessian_set_activation(struct hessian_set *c, const struct frame *f,
                           struct err *e)
{
    struct entry *t = find(c, f->name);
    int kind = pair_kind(f->name), rc;
    uint64_t n = f->dims[0];

    if (kind < PAIRS)
        return keep_pair(c, kind, f, e);
    if (f->ndim != 2 || !f->dims[1] || !dtype_is_float(f->dtype))
        return err_set(e, E_DATA, "'%s': an activation is [tokens, inputs]",
                       f->name);
    if (!t && (rc = new_accumulator(c, f, &t, e)) < 0)
        return rc;
    if (!t->acc || t->cols != f->dims[1])
        return err_set(e, E_DATA,
                       "'%s': %llu inputs here, another shape before", f->name,
                       (unsigned long long)f->dims[1]);
    if ((rc = same_modules(t, f, e)) < 0 || (rc = take_part(c, t, f, e)) < 0)
        return rc;
    if (c->params.max_tokens) {
        uint64_t left = c->params.max_tokens - hessian_tokens(t->acc);

        n = n < left ? n : left;
    }
    return match_pairs(c, t, f, e) < 0 ? e->code : entry_add(c, t, f, n, e);
}

/* ---- merging ---- */

static int check_part(const struct frame *f, const struct moments_piece *p,
                      struct err *e)
{
    bool good = f->dtype == DT_F32;

    if (f->block)
        good = good && f->ndim == 3 && f->dims[1] == f->block &&
               f->dims[2] == f->block && p->rows.of == f->dims[0];
    else
        good = good && f->ndim == 1 && hessian_cols(p->rows.of) &&
               p->rows.of <= UINT64_MAX / sizeof(float) &&
               p->rows.end - p->rows.first == f->dims[0];
    return good ? 0 :
                  err_set(e, E_DATA,
                          "'%s': not a hessian: want float32 "
                          "[C(C+1)/2] or blocks [n, g, g]",
                          f->name);
}

/* Which of `of` numbers, or rows, from *first on are wanted: *n. */
static void wanted(const struct hessian_set *c, uint64_t of, uint64_t *first,
                   uint64_t *n)
{
    struct name_rows r = { *first, *first + *n, of };

    if (c->params.piece >= 0 && c->params.pieces > 1)
        (void)piece_rows(of, c->params.piece, c->params.pieces, &r);
    *first = r.first;
    *n = r.end - r.first;
}

/* Where the payload of a frame is added. */
struct place {
    struct merging *m; /* NULL: nothing of it is wanted */
    uint64_t start;    /* its first number, of all */
};

/* The samples of a name are those of its frames that have its first number. */
static int add_samples(const struct frame *f, const struct moments_piece *p,
                       uint64_t first, uint64_t *samples, struct err *e)
{
    if (p->rows.first > first || p->rows.end <= first)
        return 0;
    return size_add(*samples, f->samples, samples) ?
               err_set(e, E_DATA, "'%s': too many samples", f->name) :
               0;
}

static void begin_whole(struct hessian_set *c, struct entry *t,
                        const struct frame *f)
{
    t->elements = t->whole.n = f->block ? f->len / sizeof(float) : f->dims[0];
    if (!f->block)
        wanted(c, t->elements, &t->whole.first, &t->whole.n);
    t->block = f->block;
    t->ndim = f->ndim;
    memcpy(t->dims, f->dims, sizeof(t->dims));
}

/* The place of f, a hessian frame. */
static int begin_part(struct hessian_set *c, const struct frame *f,
                      struct place *to, struct err *e)
{
    struct moments_piece p;
    struct frame of = *f;
    struct entry *t;
    int rc;

    piece_of(f, &p);
    strcpy(of.name, p.name);
    t = find(c, p.name);
    rc = check_part(f, &p, e);
    of.dims[0] = p.rows.of;
    if (rc >= 0 && !t && !(t = append(c, &of, e)))
        rc = e->code;
    if (rc < 0)
        return rc;
    if (!t->ndim && !t->acc) {
        begin_whole(c, t, &of);
        if (!f->block && entry_cols(t, hessian_cols(t->elements), f, e) < 0)
            return e->code;
    }
    if (t->acc || t->block != f->block || t->ndim != f->ndim ||
        memcmp(t->dims, of.dims, (size_t)t->ndim * sizeof(t->dims[0])))
        return err_set(e, E_DATA, "'%s': parts of different shapes", f->name);
    if ((rc = same_modules(t, f, e)) < 0)
        return rc;
    if (f->block || piece_has(&p, t->whole.first, t->whole.n))
        *to = (struct place){ &t->whole, f->block ? 0 : p.rows.first };
    return add_samples(f, &p, f->block ? 0 : t->whole.first, &t->samples, e);
}

/* The same of f, a cross frame, of whose rows n from `first` on are wanted. */
static int begin_rows(struct entry *t, int kind, const struct frame *f,
                      const struct moments_piece *p, uint64_t first, uint64_t n,
                      struct place *to, struct err *e)
{
    struct merging *m = &t->cross_whole[kind];
    uint64_t rows = p->rows.end - p->rows.first, bytes;

    if (size_mul(p->rows.of, f->dims[1], &bytes) ||
        size_mul(bytes, sizeof(float), &bytes))
        return err_set(e, E_DATA, "'%s': too large", f->name);
    if (!t->cross_of[kind]) {
        if (entry_cols(t, f->dims[1], f, e) < 0)
            return e->code;
        t->cross_rows[kind] = n;
        t->cross_of[kind] = p->rows.of;
        m->first = first * t->cols;
        m->n = n * t->cols;
    }
    if (t->acc || t->cross_of[kind] != p->rows.of || rows != f->dims[0] ||
        t->cols != f->dims[1])
        return err_set(e, E_DATA, "'%s': parts of different shapes", f->name);
    if (piece_has(p, first, n))
        *to = (struct place){ m, p->rows.first * t->cols };
    return add_samples(f, p, first, &t->cross_samples[kind], e);
}

static int begin_cross(struct hessian_set *c, const struct frame *f,
                       struct place *to, struct err *e)
{
    int kind, rc = 1;
    struct frame of = *f;
    struct moments_piece p;
    struct entry *t;
    uint64_t first = 0, n;
    size_t len;

    piece_of(f, &p);
    kind = pair_kind(p.name);
    if (kind == PAIRS || f->ndim != 2 || f->dtype != DT_F32 || !f->dims[1])
        return err_set(e, E_DATA, "'%s': no cross moments of an input",
                       f->name);
    companion_of(p.name, &len);
    snprintf(of.name, sizeof(of.name), "%.*s", (int)len, p.name);
    t = find(c, of.name);
    if (!t && !(t = append(c, &of, e)))
        return e->code;
    if (same_modules(t, f, e) < 0)
        return e->code;
    of.dims[0] = p.rows.of;
    if (c->params.rows && kind != DRIFT && !tensor_name_is_expert(f->name))
        rc = rows_cut(c->params.rows, &of, &first, e);
    n = of.dims[0];
    wanted(c, p.rows.of, &first, &n);
    return rc > 0 ? begin_rows(t, kind, f, &p, first, n, to, e) : rc;
}

static int begin_merge(struct hessian_set *c, const struct frame *f,
                       struct place *to, struct err *e)
{
    *to = (struct place){ 0 };
    return f->role == ROLE_HESSIAN ? begin_part(c, f, to, e) :
                                     begin_cross(c, f, to, e);
}

int hessian_set_part(struct hessian_set *c, const struct frame *f,
                     struct err *e)
{
    struct moments_piece p;
    struct place to;

    if (f->passed)
        return 0;
    piece_named(f->name, &p);
    if (p.rows.of)
        return err_set(e, E_USAGE,
                       "'%s': pieces of moments want files, and several",
                       f->name);
    if (begin_merge(c, f, &to, e) < 0)
        return e->code;
    return to.m ? merging_add(to.m, f->data, f->samples, e) : 0;
}

int hessian_set_later(struct hessian_set *c, const struct frame *f,
                      struct stream_reader *r, uint64_t at, struct err *e)
{
    struct place to;

    if (begin_merge(c, f, &to, e) < 0)
        return e->code;
    return to.m ? merging_leave(to.m,
                                &(struct merging_part){ r, at, f->len, to.start,
                                                        f->samples },
                                e) :
                  0;
}

void hessian_set_take_prior(struct hessian_set *c, struct hessian_set *from)
{
    struct blend *b = &from->blend;

    c->blend = *b;
    *b = (struct blend){ .k = b->k };
}

bool hessian_set_complete(struct hessian_set *c, const char *name, int input)
{
    struct entry *t = find(c, name);
    bool complete = t;

    if (t)
        t->given[input] = true;
    for (int i = 0; i < c->params.n_inputs && t; i++)
        complete &= t->given[i];
    return complete;
}

bool hessian_set_wants(const struct hessian_set *c, const char *name)
{
    struct moments_piece p;
    struct tensor_name at;
    uint64_t first = 0, n;

    piece_named(name, &p);
    if (c->params.prior)
        return blend_keeps(&c->blend, p.name);
    n = p.rows.of;
    wanted(c, p.rows.of, &first, &n);
    if (n && !piece_has(&p, first, n))
        return false;
    tensor_name_parse(&at, name);
    if (c->params.piece >= 0 && at.expert >= 0)
        return false;
    return !c->params.shares || at.expert < 0 ||
           at.expert % c->params.shares == c->params.share;
}
