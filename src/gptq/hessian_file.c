/* hessian_file.c - see hessian_file.h. */
#include "gptq/hessian_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/stream.h"
#include "common/math/threads.h"

struct module {
    const char *name; /* into names */
    size_t entry;
};

struct hessian_file {
    char *path, *head;
    struct stream_reader *in;
    struct hessian_entry *entry;
    size_t n_entries;
    struct module *module; /* sorted by name */
    size_t n_modules;
    struct hessian_entry current; /* the input's own; name NULL: none */
};

static char *copy(const char *s, struct err *e)
{
    size_t n = strlen(s) + 1;
    char *p = mem_alloc(n, "hessians", e);

    return p ? memcpy(p, s, n) : NULL;
}

/* The c with c(c+1)/2 = n, or 0. */
static uint64_t triangle_cols(uint64_t n)
{
    uint64_t c = (uint64_t)((sqrt(8 * (double)n + 1) - 1) / 2);

    for (uint64_t k = c ? c - 1 : 0; k <= c + 1; k++)
        if (k && k <= UINT32_MAX && k * (k + 1) / 2 == n)
            return k;
    return 0;
}

static uint64_t frame_cols(const struct frame *f)
{
    if (f->dtype != DT_F32)
        return 0;
    if (!f->block)
        return f->ndim == 1 ? triangle_cols(f->dims[0]) : 0;
    return f->ndim == 3 && f->dims[1] == f->block && f->dims[2] == f->block ?
               f->dims[0] * f->block :
               0;
}

static int add_entry(struct hessian_file *h, const struct frame *f,
                     uint64_t offset, struct err *e)
{
    struct hessian_entry *t;

    if (f->data)
        return err_set(e, E_USAGE, "'%s': hessians must be a regular file",
                       h->path);
    if (mem_grow(&h->entry, (h->n_entries + 1) * sizeof(*t), "hessians", e) < 0)
        return e->code;
    t = &h->entry[h->n_entries++];
    *t = (struct hessian_entry){ .offset = offset,
                                 .len = f->len,
                                 .samples = f->samples,
                                 .block = f->block,
                                 .cols = frame_cols(f) };
    t->name = copy(f->name, e);
    /* NULL: no module reads it (a layer's mlp_in, there for hessian/blend.h) */
    t->modules = t->name ? copy(f->modules ? f->modules : "", e) : NULL;
    if (!t->modules)
        return e->code;
    return t->cols ?
               0 :
               err_set(e, E_DATA, "'%s': '%s' is no hessian", h->path, f->name);
}

static int skim(struct hessian_file *h, struct err *e)
{
    struct frame f;
    uint64_t offset;
    int rc;

    while ((rc = stream_skim(h->in, &f, &offset, e)) > 0) {
        if (!h->head && stream_head(h->in) &&
            !(h->head = copy(stream_head(h->in), e)))
            return e->code;
        if (f.role == ROLE_HESSIAN && (rc = add_entry(h, &f, offset, e)) < 0)
            return rc;
    }
    if (!rc && !h->n_entries)
        return err_set(e, E_DATA, "'%s': there are no hessians in it", h->path);
    return rc;
}

/* ---- modules ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct module *)a)->name,
                  ((const struct module *)b)->name);
}

static int index_entry(struct hessian_file *h, size_t entry, struct err *e)
{
    char *s = h->entry[entry].modules;

    while (*s) {
        char *end = s + strcspn(s, "\n");
        bool more = *end;

        if (mem_grow(&h->module, (h->n_modules + 1) * sizeof(*h->module),
                     "hessians", e) < 0)
            return e->code;
        *end = 0;
        h->module[h->n_modules++] = (struct module){ s, entry };
        s = more ? end + 1 : end;
    }
    return 0;
}

static int index_modules(struct hessian_file *h, struct err *e)
{
    for (size_t i = 0; i < h->n_entries; i++)
        if (index_entry(h, i, e) < 0)
            return e->code;
    if (h->n_modules)
        qsort(h->module, h->n_modules, sizeof(*h->module), by_name);
    for (size_t i = 1; i < h->n_modules; i++)
        if (!strcmp(h->module[i - 1].name, h->module[i].name))
            return err_set(e, E_DATA,
                           "'%s': two hessians for '%s' (forge-hessian merges "
                           "them)",
                           h->path, h->module[i].name);
    return 0;
}

int hessian_file_open(struct hessian_file **out, const char *path,
                      const char *expect_key, struct err *e)
{
    struct stream_expect expect = { .key = expect_key };
    struct hessian_file *h = mem_zero(1, sizeof(*h), "hessians", e);
    int rc;

    if (!h)
        return e->code;
    if (!path) {
        *out = h;
        return 0;
    }
    h->path = copy(path, e);
    rc = h->path ? stream_open(&h->in, path, &expect, e) : e->code;
    if (rc < 0 || (rc = skim(h, e)) < 0 || (rc = index_modules(h, e)) < 0) {
        hessian_file_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

static void release(struct hessian_entry *t)
{
    free(t->name);
    free(t->modules);
    free(t->diagonal);
    free(t->payload);
    *t = (struct hessian_entry){ 0 };
}

void hessian_file_close(struct hessian_file *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->n_entries; i++)
        release(&h->entry[i]);
    release(&h->current);
    free(h->entry);
    free(h->module);
    if (h->in)
        stream_close(h->in);
    free(h->head);
    free(h->path);
    free(h);
}

const char *hessian_file_head(const struct hessian_file *h)
{
    return h->head;
}

bool hessian_file_any(const struct hessian_file *h)
{
    return h->path || h->current.name;
}

/* Whether module is one of the lines. */
static bool names(const char *lines, const char *module)
{
    size_t n = strlen(module);

    for (const char *p = lines; (p = strstr(p, module)); p += n)
        if ((p == lines || p[-1] == '\n') && (!p[n] || p[n] == '\n'))
            return true;
    return false;
}

static struct hessian_entry *find(struct hessian_file *h, const char *name)
{
    const struct module key = { .name = name };
    struct module *m;

    if (h->current.name && names(h->current.modules, name))
        return &h->current;
    m = h->n_modules ?
            bsearch(&key, h->module, h->n_modules, sizeof(key), by_name) :
            NULL;
    return m ? &h->entry[m->entry] : NULL;
}

bool hessian_file_has(struct hessian_file *h, const char *module)
{
    return find(h, module) != NULL;
}

struct hessian_entry *hessian_file_taken(struct hessian_file *h)
{
    return &h->current;
}

int hessian_file_find(struct hessian_file *h, const char *module, uint64_t cols,
                      struct hessian_entry **entry, struct err *e)
{
    struct hessian_entry *t = find(h, module);
    const char *path = h->path ? h->path : "<stdin>";

    if (!t)
        return err_set(e, E_DATA, "'%s': no hessian in '%s'", module, path);
    if (t->block ? t->cols < cols || t->cols - cols >= t->block :
                   t->cols != cols)
        return err_set(e, E_DATA,
                       "'%s': %llu inputs, but the hessian '%s' in '%s' has "
                       "%llu",
                       module, (unsigned long long)cols, t->name,
                       t == &h->current ? "<stdin>" : path,
                       (unsigned long long)t->cols);
    *entry = t;
    return 0;
}

int hessian_file_read(struct hessian_file *h, const struct hessian_entry *entry,
                      float *to, struct err *e)
{
    return stream_payload(h->in, entry->offset, to, entry->len, e);
}

int hessian_file_load(struct hessian_file *h, const struct hessian_entry *entry,
                      float **data, struct err *e)
{
    int rc;

    if (entry == &h->current) {
        *data = h->current.payload;
        h->current.payload = NULL;
        return *data ? 0 : err_set(e, E_BUG, "'%s': is gone", entry->name);
    }
    *data = mem_pages(entry->len, "hessian", e);
    if (!*data)
        return e->code;
    rc = hessian_file_read(h, entry, *data, e);
    if (rc < 0) {
        free(*data);
        *data = NULL;
    }
    return rc;
}

/* Index of diagonal element i in the payload. */
static uint64_t diagonal_at(const struct hessian_entry *t, uint64_t i)
{
    uint64_t g = t->block;

    return g ? (i / g * g + i % g) * g + i % g : i * (i + 3) / 2;
}

/* The next element. */
static int take_diagonal(struct hessian_entry *t, float d, struct err *e)
{
    t->diagonal[t->looked] = d;
    return d >= 0 && isfinite(d) ?
               0 :
               err_set(e, E_DATA, "'%s': diagonal element %llu is %g", t->name,
                       (unsigned long long)t->looked, (double)d);
}

/* Take the diagonal elements from floats first..first+n-1 of the payload, in
 * `data`. */
static int look(struct hessian_entry *t, uint64_t first, const float *data,
                uint64_t n, struct err *e)
{
    for (; t->looked < t->cols; t->looked++) {
        uint64_t at = diagonal_at(t, t->looked);

        if (at - first >= n)
            return 0;
        if (take_diagonal(t, data[at - first], e) < 0)
            return e->code;
    }
    return 0;
}

static int open_diagonal(struct hessian_entry *t, struct err *e)
{
    t->looked = 0;
    t->diagonal = mem_alloc(t->cols * sizeof(*t->diagonal), "hessians", e);
    return t->diagonal ? 0 : e->code;
}

double hessian_file_add_prior(const struct hessian_entry *t, double k,
                              float *data)
{
    double sum = 0, prior;

    for (uint64_t i = 0; i < t->cols; i++)
        sum += data[diagonal_at(t, i)];
    prior = t->samples ? k * sum / (double)t->samples : 0;
    if (!(prior > 0 && isfinite(prior)))
        return 0;
    for (uint64_t i = 0; i < t->cols; i++)
        if (data[diagonal_at(t, i)] > 0)
            data[diagonal_at(t, i)] += (float)prior;
    return prior;
}

int hessian_file_diagonal(struct hessian_file *h, struct hessian_entry *t,
                          const float **diagonal, struct err *e)
{
    float *data;
    int rc;

    *diagonal = t->diagonal;
    if (t->diagonal)
        return 0;
    if (hessian_file_load(h, t, &data, e) < 0)
        return e->code;
    rc = open_diagonal(t, e);
    if (rc >= 0)
        rc = look(t, 0, data, t->len / sizeof(*data), e);
    free(data);
    if (rc < 0) {
        free(t->diagonal);
        t->diagonal = NULL;
        return err_prefix(e, "'%s'", h->path ? h->path : "<stdin>");
    }
    *diagonal = t->diagonal;
    return 0;
}

static int take_entry(struct hessian_entry *t, const struct frame *f,
                      struct err *e)
{
    release(t);
    t->name = copy(f->name, e);
    t->modules = t->name ? copy(f->modules ? f->modules : "", e) : NULL;
    if (!t->modules)
        return e->code;
    t->len = f->len;
    t->samples = f->samples;
    t->block = f->block;
    t->cols = frame_cols(f);
    return t->cols ? 0 : err_set(e, E_DATA, "'%s' is no hessian", f->name);
}

int hessian_file_take(struct hessian_file *h, const struct frame *f,
                      struct err *e)
{
    struct hessian_entry *t = &h->current;

    if (take_entry(t, f, e) < 0 ||
        !(t->payload = mem_pages(f->len, f->name, e)))
        return e->code;
    threads_copy(t->payload, f->data, f->len);
    return 0;
}

int hessian_file_told(struct hessian_file *h, const struct frame *f,
                      struct err *e)
{
    struct hessian_entry *t = &h->current;
    const float *d = f->data;

    if (take_entry(t, f, e) < 0 || open_diagonal(t, e) < 0)
        return e->code;
    if (f->about != t->cols * sizeof(*d))
        return err_set(e, E_DATA, "'%s': lent without its diagonal", f->name);
    for (; t->looked < t->cols; t->looked++)
        if (take_diagonal(t, d[t->looked], e) < 0)
            return e->code;
    return 0;
}

int hessian_file_look(void *hessian_file, const struct frame *f, uint64_t at,
                      const void *piece, size_t n, struct err *e)
{
    struct hessian_entry *t = &((struct hessian_file *)hessian_file)->current;

    if (!at && (take_entry(t, f, e) < 0 || open_diagonal(t, e) < 0))
        return e->code;
    return look(t, at / sizeof(float), piece, n / sizeof(float), e);
}
