/* token_weights.c - see token_weights.h. */
#include "hessian/token_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/stream.h"
#include "common/math/threads.h"
#include "hessian/hessian_entry.h"

struct part {
    char *name;
    uint64_t sequence, tokens, linears, offset;
    size_t at; /* its tokens in root */
};

struct token_weights {
    struct stream_reader *in;
    struct part *part; /* sorted by name, then by sequence */
    size_t n;
    const char *name; /* whose weights are in root; NULL: none */
    float *root;
};

static int by_place(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order ? order :
                   (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

static int add(struct token_weights *w, const struct frame *f, uint64_t offset,
               struct err *e)
{
    size_t n = strlen(f->name) + 1;
    struct part *p;

    if (f->data)
        return err_set(e, E_USAGE, "weights of tokens must be a regular file");
    if (f->role != ROLE_ACTIVATION || f->dtype != DT_F32 || f->ndim != 2 ||
        !f->dims[1])
        return err_set(e, E_DATA,
                       "'%s': no weights of tokens: want float32 "
                       "[tokens, linears]",
                       f->name);
    if (mem_grow(&w->part, (w->n + 1) * sizeof(*p), "weights", e) < 0)
        return e->code;
    p = &w->part[w->n];
    *p = (struct part){ .sequence = f->sequence,
                        .tokens = f->dims[0],
                        .linears = f->dims[1],
                        .offset = offset,
                        .name = mem_alloc(n, "weights", e) };
    if (!p->name)
        return e->code;
    memcpy(p->name, f->name, n);
    w->n++;
    return 0;
}

static int skim(struct token_weights *w, struct err *e)
{
    struct frame f;
    uint64_t offset;
    int rc;

    while ((rc = stream_skim(w->in, &f, &offset, e)) > 0)
        if (!f.ancillary && (rc = add(w, &f, offset, e)) < 0)
            break;
    if (rc < 0)
        return rc;
    if (w->n)
        qsort(w->part, w->n, sizeof(*w->part), by_place);
    for (size_t i = 1; i < w->n; i++)
        if (!by_place(&w->part[i - 1], &w->part[i]))
            return err_set(e, E_DATA, "'%s': weights of a sequence come twice",
                           w->part[i].name);
    return 0;
}

int token_weights_open(struct token_weights **out, const char *path,
                       const char *key, struct err *e)
{
    struct stream_expect expect = { .key = key };
    struct token_weights *w;

    *out = NULL;
    if (!path)
        return 0;
    w = mem_zero(1, sizeof(*w), "weights", e);
    if (!w)
        return e->code;
    if (stream_open(&w->in, path, &expect, e) < 0 || skim(w, e) < 0) {
        token_weights_close(w);
        return err_prefix(e, "'%s'", path);
    }
    *out = w;
    return 0;
}

void token_weights_close(struct token_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n; i++)
        free(w->part[i].name);
    free(w->part);
    free(w->root);
    if (w->in)
        stream_close(w->in);
    free(w);
}

const char *token_weights_head(const struct token_weights *w)
{
    return w ? stream_head(w->in) : NULL;
}

/* The first part of a name, or the one behind all that are less. */
static size_t first_of(const struct token_weights *w, const char *name)
{
    size_t low = 0, high = w->n;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (strcmp(w->part[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_of(const struct token_weights *w, size_t i, const char *name)
{
    return i < w->n && !strcmp(w->part[i].name, name);
}

bool token_weights_have(const struct token_weights *w, const char *name)
{
    return w && is_of(w, first_of(w, name), name);
}

/* root[tokens] = sqrt of the mean of g[tokens, linears], each linear's divided by its
 * mean; where that is 0, a linear says nothing, and where all are 0, root is 1. */
static int take_roots(const float *g, size_t tokens, size_t linears,
                      float *root, struct err *e)
{
    double *mean = mem_zero(linears, sizeof(*mean), "weights", e), n = 0;

    if (!mean)
        return e->code;
    for (size_t t = 0; t < tokens; t++)
        for (size_t i = 0; i < linears; i++)
            mean[i] += (double)g[t * linears + i] / (double)tokens;
    for (size_t i = 0; i < linears; i++)
        n += mean[i] != 0;
    for (size_t t = 0; t < tokens; t++) {
        double sum = 0;

        for (size_t i = 0; i < linears; i++)
            sum += mean[i] != 0 ? (double)g[t * linears + i] / mean[i] : 0;
        root[t] = n > 0 ? (float)sqrt(sum / n) : 1;
        if (!(sum >= 0) || !isfinite(root[t])) {
            free(mean);
            return err_set(e, E_DATA,
                           "token %zu: the weight is negative or not finite",
                           t);
        }
    }
    free(mean);
    return 0;
}

/* Read the parts first..end-1, of one name. */
static int load(struct token_weights *w, size_t first, size_t end,
                struct err *e)
{
    size_t tokens = 0, linears = w->part[first].linears;
    float *g;
    int rc = 0;

    w->name = NULL;
    for (size_t i = first; i < end; i++) {
        w->part[i].at = tokens;
        tokens += w->part[i].tokens;
        if (w->part[i].linears != linears)
            return err_set(e, E_DATA, "another number of linears before");
    }
    g = mem_alloc((tokens * linears + 1) * sizeof(*g), "weights", e);
    if (!g)
        return e->code;
    for (size_t i = first; i < end && rc >= 0; i++)
        rc = stream_payload(w->in, w->part[i].offset,
                            g + w->part[i].at * linears,
                            w->part[i].tokens * linears * sizeof(*g), e);
    if (rc >= 0)
        rc = mem_grow(&w->root, (tokens + 1) * sizeof(*w->root), "weights", e);
    if (rc >= 0)
        rc = take_roots(g, tokens, linears, w->root, e);
    free(g);
    if (rc >= 0)
        w->name = w->part[first].name;
    return rc;
}

int token_weights_get(struct token_weights *w, const char *name,
                      uint64_t sequence, uint64_t n, const float **root,
                      struct err *e)
{
    size_t first = first_of(w, name), end = first;
    const struct part *p;

    while (is_of(w, end, name))
        end++;
    if ((!w->name || strcmp(w->name, name)) && end > first &&
        load(w, first, end, e) < 0)
        return err_prefix(e, "weights of '%s'", name);
    for (size_t i = first; i < end; i++) {
        p = &w->part[i];
        if (p->sequence == sequence && p->tokens == n) {
            *root = w->root + p->at;
            return 0;
        }
    }
    return err_set(e, E_DATA,
                   "'%s': no weights of %llu tokens of sequence %llu", name,
                   (unsigned long long)n, (unsigned long long)sequence - 1);
}

struct weighing {
    const struct frame *f;
    const float *root;
    char *to;
};

static void weigh_rows(void *ctx, size_t begin, size_t end)
{
    const struct weighing *j = ctx;
    size_t cols = j->f->dims[1], item = dtype_bits(j->f->dtype) / 8;
    float part[1024];

    for (size_t t = begin; t < end; t++)
        for (size_t i = 0; i < cols; i += ARRAY_LEN(part)) {
            size_t n = cols - i < ARRAY_LEN(part) ? cols - i : ARRAY_LEN(part);
            size_t at = (t * cols + i) * item;

            (void)!to_f32(part, (const char *)j->f->data + at, j->f->dtype, n);
            for (size_t k = 0; k < n; k++)
                part[k] *= j->root[t];
            (void)!from_f32(j->to + at, j->f->dtype, part, n);
        }
}

int token_weights_apply(struct frame *f, const float *root, struct room *room,
                        struct err *e)
{
    struct weighing j = { .f = f, .root = root };

    if (room_need(room, f->len, f->name, e) < 0)
        return e->code;
    j.to = room->p;
    threads_for(f->dims[0], 16, weigh_rows, &j);
    f->data = room->p;
    return 0;
}
