/* quantized.c - see quantized.h. */
#include "model/quantized.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/io/stream.h"
#include "common/math/quant.h"
#include "common/math/threads.h"
#include "model/scratch.h"

/* A file whose payloads are read on demand. */
struct source {
    struct stream_reader *in;
    size_t users; /* reference count: its modules, and quantized_read() */
    char path[];
};

/* A frame's payload, in memory or in the module's file. */
struct payload {
    void *p; /* NULL: in the file, at offset `at` */
    uint64_t at;
    size_t len; /* 0: no such frame yet */
};

/* A linear, or some of its rows, which come as a module of their own. */
struct module {
    char *name;            /* of the linear */
    struct name_rows part; /* of 0: all rows */
    struct source *from;   /* NULL: in memory */
    uint64_t rows, cols;
    struct payload codes; /* [rows, cols] of `bits` bits */
    int bits;             /* 4 or 8 */
    struct payload meta;  /* [rows, groups] of uint32_t */
    uint64_t meta_rows, groups;
    uint32_t group;
    enum dtype scale_dtype;
};

struct quantized {
    struct module *module;
    size_t count;
};

static void source_release(struct source *s)
{
    if (!s || --s->users)
        return;
    stream_close(s->in);
    free(s);
}

int quantized_create(struct quantized **c, struct err *e)
{
    *c = mem_zero(1, sizeof(**c), "codes", e);
    return *c ? 0 : e->code;
}

void quantized_truncate(struct quantized *c, size_t n)
{
    for (; c->count > n; c->count--) {
        struct module *m = &c->module[c->count - 1];

        source_release(m->from);
        free(m->name);
        free(m->codes.p);
        free(m->meta.p);
    }
}

void quantized_free(struct quantized *c)
{
    if (!c)
        return;
    quantized_truncate(c, 0);
    free(c->module);
    free(c);
}

size_t quantized_count(const struct quantized *c)
{
    return c->count;
}

const char *quantized_module(const struct quantized *c, size_t i)
{
    return c->module[i].name;
}

/* Its rows from `first` on. */
static struct module *find_rows(const struct quantized *c, const char *name,
                                size_t len, uint64_t first)
{
    for (size_t i = 0; i < c->count; i++) {
        struct module *m = &c->module[i];

        if (m->part.first == first && !strncmp(m->name, name, len) &&
            !m->name[len])
            return m;
    }
    return NULL;
}

static struct module *find(const struct quantized *c, const char *name)
{
    return find_rows(c, name, strlen(name), 0);
}

void quantized_remove(struct quantized *c, const char *module)
{
    struct module *m = find(c, module), *last = c->module + c->count - 1;

    if (m) {
        struct module gone = *m;

        *m = *last;
        *last = gone;
        quantized_truncate(c, c->count - 1);
    }
}

/* ---- reading ---- */

static struct module *add(struct quantized *c, const char *name,
                          struct source *from, struct err *e)
{
    struct name_rows part = { 0 };
    struct module *m;
    size_t len;

    (void)name_rows_of(name, &len, &part);
    m = find_rows(c, name, len, part.first);
    if (m)
        return m;
    if (mem_grow(&c->module, (c->count + 1) * sizeof(*m), name, e) < 0)
        return NULL;
    m = &c->module[c->count];
    memset(m, 0, sizeof(*m));
    m->part = part;
    m->name = mem_zero(len + 1, 1, name, e);
    if (!m->name)
        return NULL;
    memcpy(m->name, name, len);
    m->from = from;
    if (from)
        from->users++;
    c->count++;
    return m;
}

/* A payload that came with its frame, or the place of one that was skimmed. */
static int hold(struct payload *p, const struct frame *f, uint64_t at)
{
    *p = (struct payload){ (void *)(uintptr_t)f->data, at, f->len };
    return 0;
}

static int take_codes(struct module *m, const struct frame *f, uint64_t at,
                      struct err *e)
{
    if (m->codes.len)
        return err_set(e, E_DATA, "'%s': two frames of codes", f->name);
    if ((f->dtype != DT_U4 && f->dtype != DT_U8) || f->ndim != 2 ||
        f->dims[1] % 2 || !f->len)
        return err_set(e, E_DATA,
                       "'%s': codes are not U4 or U8 [rows, even columns]",
                       f->name);
    m->bits = (int)dtype_bits(f->dtype);
    m->rows = f->dims[0];
    m->cols = f->dims[1];
    return hold(&m->codes, f, at);
}

static int take_meta(struct module *m, const struct frame *f, uint64_t at,
                     struct err *e)
{
    if (m->meta.len)
        return err_set(e, E_DATA, "'%s': two frames of qmeta", f->name);
    if (f->dtype != DT_QMETA4 || f->ndim != 2 || !f->group || !f->len)
        return err_set(e, E_DATA,
                       "'%s': qmeta is not QMETA4 [rows, groups] with a group",
                       f->name);
    m->meta_rows = f->dims[0];
    m->groups = f->dims[1];
    m->group = f->group;
    m->scale_dtype = f->scale_dtype ? f->scale_dtype : DT_F16;
    return hold(&m->meta, f, at);
}

/* Add a frame; from: the file in which it was skimmed, its payload at offset
 * `at`; NULL: it has its payload. */
static int take(struct quantized *c, const struct frame *f, struct source *from,
                uint64_t at, struct err *e)
{
    struct module *m;

    if (f->role != ROLE_CODES && f->role != ROLE_QMETA)
        return 0;
    m = add(c, f->name, from, e);
    if (!m)
        return e->code;
    if (m->from != from)
        return err_set(e, E_DATA, "'%s': two frames of %s", f->name,
                       role_name(f->role));
    return f->role == ROLE_CODES ? take_codes(m, f, at, e) :
                                   take_meta(m, f, at, e);
}

int quantized_add(struct quantized *c, const struct frame *f, struct err *e)
{
    int rc = take(c, f, NULL, 0, e);

    if (rc < 0)
        free((void *)(uintptr_t)f->data);
    return rc;
}

int quantized_check(const struct quantized *c, struct err *e)
{
    for (size_t i = 0; i < c->count; i++) {
        const struct module *m = &c->module[i];

        if (!m->meta.len || !m->codes.len)
            return err_set(e, E_DATA, "'%s' has %s, but no %s", m->name,
                           m->meta.len ? "qmeta" : "codes",
                           m->meta.len ? "codes" : "qmeta");
        if (m->meta_rows != m->rows ||
            m->groups != quant_groups(m->cols, m->group))
            return err_set(e, E_DATA,
                           "'%s': qmeta %llux%llu does not fit codes "
                           "%llux%llu in groups of %u",
                           m->name, (unsigned long long)m->meta_rows,
                           (unsigned long long)m->groups,
                           (unsigned long long)m->rows,
                           (unsigned long long)m->cols, m->group);
    }
    return 0;
}

bool quantized_has(const struct quantized *c, const char *module)
{
    return find(c, module);
}

static int skim(struct quantized *c, struct source *s, struct err *e)
{
    struct stream_expect none = { 0 };
    size_t before = c->count;
    struct frame f;
    bool others =
        false; /* of a layer that is left as it is there may be notes */
    uint64_t at;
    int rc;

    if (stream_open(&s->in, s->path, &none, e) < 0)
        return e->code;
    while ((rc = stream_skim(s->in, &f, &at, e)) > 0) {
        if (take(c, &f, s, at, e) < 0)
            return err_prefix(e, "'%s'", s->path);
        others |= f.role != ROLE_NOTE && !f.ancillary;
    }
    if (rc >= 0 && others && c->count == before)
        return err_set(e, E_DATA, "'%s': there are no codes in it", s->path);
    if (rc >= 0 && quantized_check(c, e) < 0)
        return err_prefix(e, "'%s'", s->path);
    return rc;
}

int quantized_read(struct quantized *c, const char *path, struct err *e)
{
    size_t len = strlen(path) + 1;
    struct source *s = mem_zero(1, sizeof(*s) + len, path, e);
    int rc;

    if (!s)
        return e->code;
    memcpy(s->path, path, len);
    s->users = 1;
    rc = skim(c, s, e);
    source_release(s);
    return rc;
}

/* *data: the payload in memory; *own: memory to free after use, or NULL. */
static int fetch(const struct module *m, const struct payload *p,
                 const void **data, void **own, struct err *e)
{
    *own = NULL;
    *data = p->p;
    if (p->p)
        return 0;
    *own = mem_alloc(p->len, m->name, e);
    *data = *own;
    return *own ? stream_payload(m->from->in, p->at, *own, p->len, e) : e->code;
}

/* ---- floats ---- */

struct job {
    const struct module *m;
    const uint8_t *codes;
    const uint32_t *meta;
    enum dtype dtype;
    void *w;
    bool failed; /* set by any thread, never cleared */
};

static void dequantize(void *ctx, size_t begin, size_t end)
{
    struct job *j = ctx;
    const struct module *m = j->m;
    size_t n = (size_t)m->cols;
    struct err e;
    uint8_t *code = scratch_thread(n * (1 + sizeof(float)) + 64, &e);
    float *row;

    if (!code) {
        __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
        return;
    }
    row = (float *)(void *)(code + (n + 63) / 64 * 64);
    for (size_t r = begin; r < end; r++) {
        float *to = j->dtype == DT_F32 ? (float *)j->w + r * n : row;

        quant_unpack_row(code, j->codes + r * quant_row_bytes(n, m->bits), n,
                         m->bits);
        quant_dequantize_row(to, code, n, j->meta + r * m->groups, m->group,
                             m->scale_dtype);
        if (j->dtype != DT_F32 &&
            !from_f32((uint16_t *)j->w + r * n, j->dtype, row, n))
            __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
    }
}

/* Codes and grids say the bits of a code alike. */
static int check_bits(const struct module *m, const uint32_t *meta,
                      struct err *e)
{
    if (quant_bits(meta[0]) == m->bits &&
        quant_same_bits(meta, m->rows * m->groups))
        return 0;
    return err_set(e, E_DATA, "'%s': grids of other than %d bits, as its codes",
                   m->name, m->bits);
}

/* The rows of j->m, into j->w. */
static int dequantize_rows(struct job *j, struct err *e)
{
    const struct module *m = j->m;
    const void *codes, *meta = NULL;
    void *own[2] = { NULL, NULL };
    int rc = fetch(m, &m->codes, &codes, &own[0], e);

    if (rc == 0)
        rc = fetch(m, &m->meta, &meta, &own[1], e);
    if (rc == 0)
        rc = check_bits(m, meta, e);
    if (rc == 0) {
        j->codes = codes;
        j->meta = meta;
        threads_for((size_t)m->rows, 16, dequantize, j);
    }
    free(own[0]);
    free(own[1]);
    return rc == 0 && j->failed ?
               err_set(e, E_TEMP, "'%s': cannot allocate a row", m->name) :
               rc;
}

static int check_shape(const struct module *m, int64_t rows, int64_t cols,
                       struct err *e)
{
    uint64_t of = m->part.of ? m->part.of : m->rows;

    if (of != (uint64_t)rows || m->cols != (uint64_t)cols)
        return err_set(
            e, E_DATA,
            "'%s': the codes are %llux%llu, the config says %lldx%lld", m->name,
            (unsigned long long)of, (unsigned long long)m->cols,
            (long long)rows, (long long)cols);
    if (m->part.of && m->rows != m->part.end - m->part.first)
        return err_set(e, E_DATA, "'%s': %llu rows of codes from row %llu on",
                       m->name, (unsigned long long)m->rows,
                       (unsigned long long)m->part.first);
    return 0;
}

int quantized_codes(const struct quantized *c, const char *module, int64_t rows,
                    int64_t cols, struct forward_codes *q, struct err *e)
{
    const struct module *m = find(c, module);

    if (!m || m->part.of || m->bits != 4 || !m->codes.p || !m->meta.p)
        return 0;
    if (check_bits(m, m->meta.p, e) < 0)
        return e->code;
    q->scale_dtype = m->scale_dtype;
    q->rows = rows;
    q->depth = cols;
    q->group = m->group;
    q->nibbles = m->codes.p;
    q->meta = m->meta.p;
    return check_shape(m, rows, cols, e) < 0 ? e->code : 1;
}

int quantized_linear(const struct quantized *c, const char *module,
                     int64_t rows, int64_t cols, enum dtype dtype, void **w,
                     struct err *e)
{
    struct job j = { .m = find(c, module), .dtype = dtype };
    size_t n, row;
    int rc = 0;
    char *all;

    if (!j.m)
        return 0;
    if (check_shape(j.m, rows, cols, e) < 0)
        return e->code;
    if (size_mul((size_t)cols, dtype == DT_F32 ? sizeof(float) : 2, &row) ||
        size_mul((size_t)rows, row, &n))
        return err_set(e, E_TEMP, "'%s': too large for memory", module);
    all = mem_pages(n, module, e);
    if (!all)
        return e->code;
    for (uint64_t r = 0; rc == 0 && r < (uint64_t)rows;) {
        j.m = find_rows(c, module, strlen(module), r);
        j.w = all + r * row;
        rc = j.m ?
                 check_shape(j.m, rows, cols, e) :
                 err_set(e, E_DATA, "'%s': codes from row %llu on are missing",
                         module, (unsigned long long)r);
        if (rc == 0)
            rc = dequantize_rows(&j, e);
        r += rc == 0 ? j.m->rows : 0;
    }
    if (rc < 0) {
        free(all);
        return rc;
    }
    *w = all;
    return 1;
}
