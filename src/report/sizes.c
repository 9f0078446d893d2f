/* sizes.c - see sizes.h. */
#include "report/sizes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "arch/gridrules.h"
#include "checkpoint/checkpoint.h"
#include "layout/layout.h"

static int by_name(const void *a, const void *b)
{
    const struct module *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

/* A module's name, as bsearch() compares it. */
struct wanted {
    const char *name;
    size_t len;
};

static int beside(const void *key, const void *element)
{
    const struct wanted *w = key;
    const struct module *const *m = element;
    int order = strncmp(w->name, (*m)->name, w->len);

    return order ? order : (*m)->name[w->len] ? -1 : 0;
}

/* Whether a part of a linear is its codes. */
static bool is_codes(const char *part)
{
    return !strcmp(part, "qweight") || !strcmp(part, "weight_packed") ||
           !strcmp(part, "weight_int4pack");
}

static int sum_modules(struct records *r, const struct checkpoint *c,
                       struct err *e)
{
    struct module **sorted =
        mem_zero(r->modules + 1, sizeof(*sorted), "sizes", e);

    if (!sorted)
        return e->code;
    for (size_t i = 0; i < r->modules; i++)
        sorted[i] = &r->module[i];
    qsort(sorted, r->modules, sizeof(struct module *), by_name);
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);
        struct wanted key = { .name = t->name };
        struct module **m;

        if (!layout_is_part(t->name, &key.len))
            continue;
        m = bsearch(&key, sorted, r->modules, sizeof(struct module *), beside);
        if (!m)
            continue;
        (*m)->bytes += t->bytes;
        if (is_codes(t->name + key.len + 1) && (*m)->weights)
            (*m)->bits = 8 * t->bytes > 6 * (*m)->weights ? 8 : 4;
    }
    free(sorted);
    return 0;
}

/* In GGUF the type of a linear's blocks follows from its grid; kv_b_proj is stored
 * as two tensors of other types. */
static int gguf_modules(struct workdir *w, struct err *e)
{
    const struct json *list = json_get(json_root(w->run.doc), "grids"), *v;
    struct grid_rules rules = { .symmetric =
                                    settings_flag(&w->run, "symmetric") };
    const char **rule =
        mem_zero(json_count(list) + 1, sizeof(*rule), "sizes", e);

    if (!rule)
        return e->code;
    rules.rule = rule;
    for (v = json_first(list); v; v = json_after(v))
        if (json_string(v, &rule[rules.n]) &&
            grid_rule_check(rule[rules.n], e) >= 0)
            rules.n++;
    for (size_t i = 0; i < w->records.modules; i++) {
        struct module *m = &w->records.module[i];
        struct module_grid g = grid_rules_find(&rules, m->name);

        if (strstr(m->name, ".kv_b_proj"))
            continue;
        m->bits = g.bits;
        m->bytes = (uint64_t)((double)m->weights *
                              layout_gguf_bits(rules.symmetric, g.bits) / 8);
    }
    free(rule);
    return 0;
}

/* Open a directory's checkpoint.  1; 0: there is none that can be read;
 * E_TEMP. */
static int open_checkpoint(struct checkpoint **c, const char *dir,
                           struct err *e)
{
    int rc = *dir ? checkpoint_open(c, dir, e) : E_NOINPUT;

    return rc >= 0 ? 1 : rc == E_TEMP ? rc : 0;
}

static int read_result(struct workdir *w, const char *out, struct err *e)
{
    struct checkpoint *c;
    struct stat st;
    int rc;

    if (!stat(out, &st) && S_ISREG(st.st_mode)) { /* GGUF */
        w->bytes_out = (double)st.st_size;
        return gguf_modules(w, e);
    }
    rc = open_checkpoint(&c, out, e);
    if (rc <= 0)
        return rc;
    for (size_t i = 0; i < checkpoint_count(c); i++)
        w->bytes_out += (double)checkpoint_tensor(c, i)->stored;
    rc = sum_modules(&w->records, c, e);
    checkpoint_close(c);
    return rc;
}

static int read_model(struct workdir *w, const char *model, struct err *e)
{
    struct checkpoint *c;
    int rc = open_checkpoint(&c, model, e);

    if (rc <= 0)
        return rc;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct ck_tensor *t = checkpoint_tensor(c, i);

        w->params += 8 * t->bytes / dtype_bits(t->dtype);
        w->bytes_in += (double)t->stored;
    }
    checkpoint_close(c);
    return 0;
}

int sizes_read(struct workdir *w, struct err *e)
{
    int rc = read_model(w, settings_text(&w->run, "model"), e);

    return rc < 0 ? rc : read_result(w, settings_text(&w->run, "out"), e);
}

double sizes_module_bits(const struct module *m)
{
    return m->bytes && m->weights ? 8 * (double)m->bytes / (double)m->weights :
                                    NAN;
}

double sizes_linear_bits(const struct workdir *w)
{
    double bytes = 0, weights = 0;

    for (size_t i = 0; i < w->records.modules; i++) {
        const struct module *m = &w->records.module[i];

        if (m->bytes && m->weights) {
            bytes += (double)m->bytes;
            weights += (double)m->weights;
        }
    }
    return weights > 0 ? 8 * bytes / weights : NAN;
}

uint64_t sizes_eight(const struct workdir *w)
{
    uint64_t n = 0;

    for (size_t i = 0; i < w->records.modules; i++)
        n += w->records.module[i].bits == 8;
    return n;
}

double sizes_bits(const struct workdir *w)
{
    return w->params && w->bytes_out > 0 ?
               8 * w->bytes_out / (double)w->params :
               NAN;
}
