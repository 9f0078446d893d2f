/* codes.c - see codes.h. */
#include "model/codes.h"

#include <stdlib.h>
#include <string.h>

#include "common/quant.h"
#include "common/stream.h"
#include "common/threads.h"
#include "model/scratch.h"

struct module {
    char *name;
    uint64_t rows, cols;
    uint8_t *nibbles; /* [rows, cols / 2]; NULL: only qmeta so far */
    uint32_t *meta;   /* [rows, groups]; NULL: only codes so far */
    uint64_t meta_rows, groups;
    uint32_t group;
    enum dtype scale_dtype;
};

struct codes {
    struct module *module;
    size_t count;
};

int codes_create(struct codes **c, struct err *e)
{
    *c = mem_zero(1, sizeof(**c), "codes", e);
    return *c ? 0 : e->code;
}

void codes_truncate(struct codes *c, size_t n)
{
    for (; c->count > n; c->count--) {
        struct module *m = &c->module[c->count - 1];

        free(m->name);
        free(m->nibbles);
        free(m->meta);
    }
}

void codes_free(struct codes *c)
{
    if (!c)
        return;
    codes_truncate(c, 0);
    free(c->module);
    free(c);
}

size_t codes_count(const struct codes *c)
{
    return c->count;
}

const char *codes_module(const struct codes *c, size_t i)
{
    return c->module[i].name;
}

static struct module *find(const struct codes *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->module[i].name, name))
            return &c->module[i];
    return NULL;
}

void codes_remove(struct codes *c, const char *module)
{
    struct module *m = find(c, module), *last = c->module + c->count - 1;

    if (m) {
        struct module gone = *m;

        *m = *last;
        *last = gone;
        codes_truncate(c, c->count - 1);
    }
}

/* ---- reading ---- */

static struct module *add(struct codes *c, const char *name, struct err *e)
{
    struct module *m = find(c, name);
    size_t len = strlen(name) + 1;

    if (m)
        return m;
    if (mem_grow(&c->module, (c->count + 1) * sizeof(*m), name, e) < 0)
        return NULL;
    m = &c->module[c->count];
    memset(m, 0, sizeof(*m));
    m->name = mem_alloc(len, name, e);
    if (!m->name)
        return NULL;
    memcpy(m->name, name, len);
    c->count++;
    return m;
}

static void *copy(const struct frame *f, struct err *e)
{
    void *p = mem_alloc(f->len, f->name, e);

    if (p)
        memcpy(p, f->data, f->len);
    return p;
}

static int take_codes(struct module *m, const struct frame *f, struct err *e)
{
    if (m->nibbles)
        return err_set(e, E_DATA, "'%s': two frames of codes", f->name);
    if (f->dtype != DT_U4 || f->ndim != 2 || f->dims[1] % 2 || !f->dims[1])
        return err_set(e, E_DATA, "'%s': codes are not U4 [rows, even columns]",
                       f->name);
    m->rows = f->dims[0];
    m->cols = f->dims[1];
    m->nibbles = copy(f, e);
    return m->nibbles ? 0 : e->code;
}

static int take_meta(struct module *m, const struct frame *f, struct err *e)
{
    if (m->meta)
        return err_set(e, E_DATA, "'%s': two frames of qmeta", f->name);
    if (f->dtype != DT_QMETA4 || f->ndim != 2 || !f->group)
        return err_set(e, E_DATA,
                       "'%s': qmeta is not QMETA4 [rows, groups] with a group",
                       f->name);
    m->meta_rows = f->dims[0];
    m->groups = f->dims[1];
    m->group = f->group;
    m->scale_dtype = f->scale_dtype ? f->scale_dtype : DT_F16;
    m->meta = copy(f, e);
    return m->meta ? 0 : e->code;
}

int codes_add(struct codes *c, const struct frame *f, struct err *e)
{
    struct module *m;

    if (f->role != ROLE_CODES && f->role != ROLE_QMETA)
        return 0;
    m = add(c, f->name, e);
    if (!m)
        return e->code;
    return f->role == ROLE_CODES ? take_codes(m, f, e) : take_meta(m, f, e);
}

int codes_check(const struct codes *c, struct err *e)
{
    for (size_t i = 0; i < c->count; i++) {
        const struct module *m = &c->module[i];

        if (!m->meta || !m->nibbles)
            return err_set(e, E_DATA, "'%s' has %s, but no %s", m->name,
                           m->meta ? "qmeta" : "codes",
                           m->meta ? "codes" : "qmeta");
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

bool codes_has(const struct codes *c, const char *module)
{
    return find(c, module);
}

int codes_read(struct codes *c, const char *path, struct err *e)
{
    struct stream_expect none = { 0 };
    struct stream_reader *r;
    struct frame f;
    int rc;

    if (stream_open(&r, path, &none, e) < 0)
        return e->code;
    while ((rc = stream_next(r, &f, e)) > 0)
        if (codes_add(c, &f, e) < 0) {
            rc = err_prefix(e, "'%s'", path);
            break;
        }
    stream_close(r);
    if (rc >= 0 && codes_check(c, e) < 0)
        rc = err_prefix(e, "'%s'", path);
    return rc < 0 ? rc : 0;
}

/* ---- floats ---- */

struct job {
    const struct module *m;
    enum dtype dtype;
    void *w;
    bool failed; /* only ever set */
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

        quant_unpack_row(code, m->nibbles + r * (n / 2), n);
        quant_dequantize_row(to, code, n, m->meta + r * m->groups, m->group,
                             m->scale_dtype);
        if (j->dtype != DT_F32 &&
            !from_f32((uint16_t *)j->w + r * n, j->dtype, row, n))
            __atomic_store_n(&j->failed, true, __ATOMIC_RELAXED);
    }
}

int codes_linear(const struct codes *c, const char *module, int64_t rows,
                 int64_t cols, enum dtype dtype, void **w, struct err *e)
{
    struct job j = { .m = find(c, module), .dtype = dtype };
    size_t n;

    if (!j.m)
        return 0;
    if (j.m->rows != (uint64_t)rows || j.m->cols != (uint64_t)cols)
        return err_set(e, E_DATA,
                       "'%s': the codes are %llux%llu, the config says "
                       "%lldx%lld",
                       module, (unsigned long long)j.m->rows,
                       (unsigned long long)j.m->cols, (long long)rows,
                       (long long)cols);
    if (size_mul((size_t)rows, (size_t)cols, &n) ||
        size_mul(n, dtype == DT_F32 ? sizeof(float) : 2, &n))
        return err_set(e, E_TEMP, "'%s': too large for memory", module);
    j.w = mem_alloc(n, module, e);
    if (!j.w)
        return e->code;
    threads_for((size_t)rows, 16, dequantize, &j);
    if (j.failed) {
        free(j.w);
        return err_set(e, E_TEMP, "'%s': cannot allocate a row", module);
    }
    *w = j.w;
    return 1;
}
