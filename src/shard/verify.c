/* verify.c - see verify.h. */
#include "shard/verify.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "common/io/modeldir.h"
#include "common/math/threads.h"
#include "shard/complete.h"

enum { INDEX_MAX = 512 * 1024 * 1024 };

struct state {
    const struct verify *v;
    struct verify_report *r;
    struct checkpoint *out, *source;
    struct model_config config;
    struct named_set names, source_names;
    struct run_facts facts;
    bool packed;
};

/* ---- the layout that config.json names ---- */

/* Whether modules differ in their grids, by the shapes and names of their
 * tensors. */
static bool are_mixed(const struct state *s)
{
    const char *codes = layout_part(s->facts.layout, true, false, 0);
    struct run_facts facts = s->facts;
    bool zeros = false, none = false, other = false;

    facts.mixed = true;
    for (size_t i = 0; i < s->names.n; i++) {
        const char *name = s->names.item[i].name, *dot = strrchr(name, '.');
        char module[MODULE_PATH_MAX];
        struct module_grid g;
        struct linear l;

        if (!dot || strcmp(dot + 1, codes) != 0 ||
            (size_t)snprintf(module, sizeof(module), "%.*s", (int)(dot - name),
                             name) >= sizeof(module) ||
            !model_find_linear(&s->config, module, &l))
            continue;
        g = complete_grid(&s->names, module, (uint64_t)l.cols, &facts);
        zeros |= !g.symmetric;
        none |= g.symmetric;
        other |= g.group != facts.group || g.bits != facts.bits;
    }
    return (layout_takes_grids(facts.layout) || checkpoint_group(s->out) < 1) &&
           (other || (facts.layout == LAYOUT_CT && zeros && none));
}

/* The group where the config says one for all inputs: what was packed, or as many as
 * the linear with the most has, with which all have one. */
static uint64_t whole_group(const struct state *s)
{
    uint64_t most = 8;

    if (s->v->facts)
        return s->v->facts->group;
    for (int64_t layer = 0; layer < s->config.n_layers; layer++)
        for (int64_t i = 0; i < model_linear_count(&s->config, layer); i++) {
            struct linear l;

            model_linear(&s->config, layer, i, &l);
            if ((uint64_t)l.cols > most)
                most = (uint64_t)l.cols;
        }
    return most;
}

static int find_facts(struct state *s, struct err *e)
{
    static const enum layout of[] = { [STORAGE_PLAIN] = LAYOUT_CT,
                                      [STORAGE_AWQ] = LAYOUT_AWQ,
                                      [STORAGE_GPTQ] = LAYOUT_GPTQ,
                                      [STORAGE_GPTQ_V2] = LAYOUT_GPTQ_V2,
                                      [STORAGE_CT] = LAYOUT_CT,
                                      [STORAGE_INT4PACK] = LAYOUT_INT4PACK,
                                      [STORAGE_INT4PACK_XPU] =
                                          LAYOUT_INT4PACK_XPU };
    enum storage st = checkpoint_storage(s->out);
    int64_t group = checkpoint_group(s->out);
    bool whole =
        group < 1 && st != STORAGE_INT4PACK && st != STORAGE_INT4PACK_XPU;

    s->packed = st != STORAGE_PLAIN;
    if (!s->packed && s->v->facts)
        return err_set(e, E_BUG, "the config does not say what was packed");
    if (!s->packed)
        return 0;
    if (group < 1 && !whole)
        return err_set(e, E_CONFIG, "one scale a row: not a layout of ours");
    s->facts =
        (struct run_facts){ .layout = of[st],
                            .bits = checkpoint_bits(s->out),
                            .group = whole ? whole_group(s) : (uint64_t)group,
                            .symmetric = true,
                            .scale_dtype = DT_F16,
                            .capability = checkpoint_capability(s->out) };
    for (size_t i = 0; i < s->names.n; i++) {
        const char *dot = strrchr(s->names.item[i].name, '.');

        if (!dot)
            continue;
        if (!strcmp(dot, ".weight_zero_point"))
            s->facts.symmetric = false;
        if (!strcmp(dot, ".weight_g_idx") || !strcmp(dot, ".input_perm"))
            s->facts.act_order = true;
        if (!strcmp(dot, ".scales") || !strcmp(dot, ".weight_scale") ||
            !strcmp(dot, ".scales_and_zeros"))
            s->facts.scale_dtype = s->names.item[i].dtype;
    }
    s->facts.mixed =
        are_mixed(s) || (whole && s->v->facts && s->v->facts->mixed);
    if ((st != STORAGE_CT || s->facts.mixed) &&
        s->v->facts) { /* no tensor tells, only the config */
        s->facts.symmetric = s->v->facts->symmetric;
        s->facts.act_order |= s->v->facts->act_order;
    }
    return 0;
}

/* ---- the index ---- */

static int check_entries(const struct state *s, const struct json *map,
                         int64_t total, struct err *e)
{
    size_t n = checkpoint_count(s->out);
    uint64_t bytes = 0;

    for (size_t i = 0; i < n; i++) {
        const struct ck_tensor *t = checkpoint_tensor(s->out, i);
        const char *file = "";
        char name[1024];

        checkpoint_stored_name(s->out, t->name, name, sizeof(name));
        bytes += t->bytes;
        if (!json_string(json_get(map, name), &file))
            return err_set(e, E_DATA, "'%s' is in '%s' but not in the index",
                           t->name, t->file);
        if (strcmp(file, t->file))
            return err_set(e, E_DATA, "'%s' is in '%s', the index says '%s'",
                           t->name, t->file, file);
    }
    if (json_count(map) != n)
        return err_set(e, E_DATA,
                       "the index lists %zu tensors, the files "
                       "hold %zu",
                       json_count(map), n);
    if (total >= 0 && (uint64_t)total != bytes)
        return err_set(e, E_DATA,
                       "the index says %" PRId64 " bytes, the "
                       "tensors have %" PRIu64,
                       total, bytes);
    return 0;
}

static int check_index(const struct state *s, struct err *e)
{
    static const char name[] = "model.safetensors.index.json";
    struct json_doc *d = NULL;
    struct modeldir dir;
    char *text = NULL;
    size_t len = 0;
    int64_t total = -1;
    int rc = 0;

    if (modeldir_open(&dir, s->v->dir, e))
        return e->code;
    if (modeldir_has(&dir, name)) {
        rc = modeldir_slurp(&dir, name, INDEX_MAX, &text, &len, e);
        if (!rc)
            rc = json_parse(&d, text, len, name, e);
        if (!rc) {
            const struct json *root = json_root(d);

            if (!json_int(json_get(json_get(root, "metadata"), "total_size"),
                          &total))
                total = -1; /* other writers may leave it out */
            rc = check_entries(s, json_get(root, "weight_map"), total, e);
        }
        json_free(d);
        free(text);
    }
    modeldir_close(&dir);
    return rc;
}

/* ---- all elements are finite ---- */

enum { PIECE = 8 << 20 };

/* Threads take pieces of the tensors one after the other. */
struct scan {
    struct checkpoint *out;
    pthread_mutex_t lock; /* of what follows, and of reading whole tensors */
    size_t tensor;        /* the next piece: in which, */
    uint64_t at;          /* and where in it */
    struct threads_error error; /* by tensor */
    atomic_bool failed;
};

struct piece {
    size_t tensor;
    uint64_t at, n; /* bytes */
};

static bool next_piece(struct scan *j, struct piece *p)
{
    bool found = false;

    pthread_mutex_lock(&j->lock);
    while (!found && j->tensor < checkpoint_count(j->out)) {
        const struct ck_tensor *t = checkpoint_tensor(j->out, j->tensor);
        uint64_t left = t->bytes - j->at;
        bool floats =
            t->dtype == DT_F32 || t->dtype == DT_F16 || t->dtype == DT_BF16;

        if (!floats || !left) {
            j->tensor++;
            j->at = 0;
            continue;
        }
        if (left > PIECE && checkpoint_has_rows(t))
            left = PIECE;
        *p = (struct piece){ j->tensor, j->at, left };
        j->at += left;
        found = true;
    }
    pthread_mutex_unlock(&j->lock);
    return found;
}

static bool is_finite(enum dtype dtype, const void *data, uint64_t bytes)
{
    bool bad = false;

    if (dtype == DT_F32) {
        const uint32_t *x = data;

        for (uint64_t i = 0; i < bytes / 4; i++)
            bad |= (x[i] & 0x7f800000) == 0x7f800000;
    } else {
        uint16_t m = dtype == DT_BF16 ? 0x7f80 : 0x7c00;
        const uint16_t *x = data;

        for (uint64_t i = 0; i < bytes / 2; i++)
            bad |= (x[i] & m) == m;
    }
    return !bad;
}

static int read_piece(struct scan *j, const struct ck_tensor *t,
                      const struct piece *p, void *buf, struct err *e)
{
    int rc;

    if (checkpoint_has_rows(t))
        return checkpoint_read_bytes(j->out, t, p->at, p->n, buf, e);
    pthread_mutex_lock(&j->lock);
    rc = checkpoint_read(j->out, t, buf, e);
    pthread_mutex_unlock(&j->lock);
    return rc;
}

static int scan_piece(struct scan *j, const struct piece *p, void **buf,
                      size_t *cap, struct err *e)
{
    const struct ck_tensor *t = checkpoint_tensor(j->out, p->tensor);

    if (mem_reserve(buf, cap, p->n, "verification", e) < 0 ||
        read_piece(j, t, p, *buf, e))
        return e->code;
    return is_finite(t->dtype, *buf, p->n) ?
               0 :
               err_set(e, E_DATA, "'%s' has a value that is not finite",
                       t->name);
}

static void scan_some(void *ctx, size_t begin, size_t end)
{
    struct scan *j = ctx;

    for (; begin < end; begin++) {
        void *buf = NULL;
        size_t cap = 0;
        struct piece p;
        struct err e;

        while (!j->failed && next_piece(j, &p))
            if (scan_piece(j, &p, &buf, &cap, &e)) {
                threads_error_add(&j->error, p.tensor, &e);
                j->failed = true;
            }
        free(buf);
    }
}

static int check_finite(const struct state *s, struct err *e)
{
    struct scan j = { .out = s->out };

    pthread_mutex_init(&j.lock, NULL);
    threads_error_init(&j.error);
    threads_for((size_t)threads_count(), 1, scan_some, &j);
    pthread_mutex_destroy(&j.lock);
    return threads_error_take(&j.error, e);
}

/* ---- a sample of linears against the source ---- */

static void keep_worst(struct verify_report *report,
                       const struct resemblance *r)
{
    struct resemblance *w = &report->worst;

    if (r->rms > w->rms)
        w->rms = r->rms;
    if (fabs(r->bias) > fabs(w->bias))
        w->bias = r->bias;
    if (r->slope < w->slope || !report->compared)
        w->slope = r->slope;
    if (fabs(r->trend) > fabs(w->trend))
        w->trend = r->trend;
    if (r->relative > w->relative)
        w->relative = r->relative;
}

static int compare(struct state *s, const char *module, struct err *e)
{
    struct ck_quantized q = { 0 };
    struct resemblance r;
    struct ck_rows rows;
    const char *wrong;
    uint16_t *w = NULL;
    int rc = checkpoint_quantized(s->out, module, &q, e);

    if (rc <= 0)
        return rc;
    rows = resemble_rows(q.rows);
    rc =
        checkpoint_linear_rows(s->source, module, &rows, q.rows, q.cols, &w, e);
    if (!rc)
        rc = resemble(&r, &q, w, e);
    wrong = rc ? NULL : resemble_verdict(&r);
    if (wrong)
        rc =
            err_set(e, E_DATA,
                    "'%s' does not resemble its source: %s (slope %.2f, bias "
                    "%.2f steps, trend %.2f; error %.2f steps, %.3g of the "
                    "weights)",
                    module, wrong, r.slope, r.bias, r.trend, r.rms, r.relative);
    if (!rc) {
        keep_worst(s->r, &r);
        s->r->compared++;
    }
    free(w);
    ck_quantized_release(&q);
    return rc;
}

/* Number k of n linears to compare: layers evenly spread, the kinds of linears
 * in turn; if the layer has experts, every second one is an expert's, these
 * evenly spread too. */
static void choose_sample(const struct state *s, int64_t k, int64_t n,
                          struct linear *l)
{
    const struct model_config *c = &s->config;
    int64_t layer = n > 1 ? k * (c->n_layers - 1) / (n - 1) : 0;
    int64_t common = model_linear_common(c, layer);
    int64_t experts = model_linear_count(c, layer) - common;
    int64_t i = k % common;

    if (experts && k % 2)
        i = common + (k * (experts - 1) / n + k / 2) % experts;
    model_linear(c, layer, i, l);
}

/* Number k of all linears of the model. */
static void find_number(const struct state *s, int64_t k, struct linear *l)
{
    const struct model_config *c = &s->config;
    int64_t layer = 0;

    while (k >= model_linear_count(c, layer))
        k -= model_linear_count(c, layer++);
    model_linear(c, layer, k, l);
}

/* Open the source, without its pruned experts. */
static int open_source(struct state *s, struct err *e)
{
    struct model_config config;
    int rc = checkpoint_open(&s->source, s->v->source, e);

    if (rc || !s->v->map)
        return rc;
    rc = model_config_read(&config, s->v->source, e);
    if (rc)
        return rc;
    rc = checkpoint_prune(s->source, s->v->map, &config, s->v->mode, e);
    model_config_release(&config);
    return rc;
}

/* Linears are compared side by side: each thread reads both checkpoints by
 * itself. */
struct sampling {
    struct state *s;
    int64_t n, all; /* linears to compare, and of the model */
    _Atomic int64_t next;
    pthread_mutex_t lock;       /* of s->r */
    struct threads_error error; /* by number in the sample */
    atomic_bool failed;
};

static void compare_some(struct sampling *j, struct state *own)
{
    struct verify_report *all = j->s->r, *r = own->r;
    struct linear l;
    struct err e;

    for (int64_t k; !j->failed && (k = j->next++) < j->n;) {
        if (j->n < j->all)
            choose_sample(own, k, j->n, &l);
        else
            find_number(own, k, &l);
        if (compare(own, l.module, &e)) {
            threads_error_add(&j->error, (uint64_t)k, &e);
            j->failed = true;
        }
    }
    if (!r->compared)
        return;
    pthread_mutex_lock(&j->lock);
    keep_worst(all, &r->worst);
    all->compared += r->compared;
    pthread_mutex_unlock(&j->lock);
}

static void sample_part(void *ctx, size_t begin, size_t end)
{
    struct sampling *j = ctx;

    for (; begin < end; begin++) {
        struct verify_report r = { 0 };
        struct state own = *j->s;
        struct err e;

        own.r = &r;
        own.out = own.source = NULL;
        if (checkpoint_open(&own.out, own.v->dir, &e) ||
            open_source(&own, &e)) {
            threads_error_add(&j->error, (uint64_t)j->n, &e);
            j->failed = true;
        } else {
            compare_some(j, &own);
        }
        checkpoint_close(own.out);
        checkpoint_close(own.source);
    }
}

static int check_sample(struct state *s, struct err *e)
{
    enum { MOST = 8 }; /* at a time: each has three parts of a linear */
    struct sampling j = { .s = s, .n = s->v->sample };
    int64_t threads = threads_count();

    for (int64_t i = 0; i < s->config.n_layers; i++)
        j.all += model_linear_count(&s->config, i);
    j.n = j.n < j.all ? j.n : j.all;
    threads = threads < j.n ? threads : j.n;
    pthread_mutex_init(&j.lock, NULL);
    threads_error_init(&j.error);
    threads_for((size_t)(threads < MOST ? threads : MOST), 1, sample_part, &j);
    pthread_mutex_destroy(&j.lock);
    return threads_error_take(&j.error, e);
}

/* ---- verify_checkpoint() ---- */

static int open_both(struct state *s, struct err *e)
{
    if (model_config_read(&s->config, s->v->dir, e) ||
        checkpoint_open(&s->out, s->v->dir, e) ||
        named_from_checkpoint(&s->names, s->out, e))
        return e->code;
    s->config.kv_b = s->config.mla.kv_lora; /* 4-bit or not */
    if (s->v->source && (open_source(s, e) ||
                         named_from_checkpoint(&s->source_names, s->source, e)))
        return e->code;
    return 0;
}

static int check_names(struct state *s, struct err *e)
{
    const struct completeness c = {
        .config = &s->config,
        .facts = s->packed ? &s->facts : NULL,
        .source = s->v->source ? &s->source_names : NULL,
        .headless = checkpoint_headless(s->out),
    };

    return complete_check(&c, &s->names, e);
}

static void count(struct state *s)
{
    for (size_t i = 0; i < checkpoint_count(s->out); i++) {
        const struct ck_tensor *t = checkpoint_tensor(s->out, i);
        char module[MODULE_PATH_MAX];
        bool first = false;

        s->r->tensors++;
        s->r->bytes += t->bytes;
        if (checkpoint_part(s->out, t, module, sizeof(module), &first) && first)
            s->r->packed++;
    }
}

int verify_checkpoint(const struct verify *v, struct verify_report *r,
                      struct err *e)
{
    struct state s = { .v = v, .r = r };
    int rc;

    *r = (struct verify_report){ 0 };
    rc = open_both(&s, e);
    if (!rc)
        rc = find_facts(&s, e);
    if (!rc && v->facts && !run_facts_equal(v->facts, &s.facts))
        rc = err_set(e, E_BUG,
                     "the files read back as another layout than "
                     "was written");
    if (!rc)
        rc = check_index(&s, e);
    if (!rc)
        rc = check_names(&s, e);
    if (!rc)
        rc = check_finite(&s, e);
    if (!rc && v->source && s.packed)
        rc = check_sample(&s, e);
    if (!rc)
        count(&s);
    free(s.names.item);
    free(s.source_names.item);
    checkpoint_close(s.out);
    checkpoint_close(s.source);
    model_config_release(&s.config);
    return rc;
}
