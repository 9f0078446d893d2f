/* workdir.c - see workdir.h. */
#include "report/workdir.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arch/tensor_name.h"
#include "common/io/json.h"
#include "report/runstream.h"

enum { METER_MAX = 4096, LAYERS_MAX = 1 << 20 };

static int join(char path[PATH_MAX], const char *a, const char *b,
                struct err *e)
{
    if ((size_t)snprintf(path, PATH_MAX, "%s/%s", a, b) >= PATH_MAX)
        return err_set(e, E_DATA, "'%s': path is too long", a);
    return 0;
}

static bool ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);

    return n > k && !strcmp(name + n - k, suffix);
}

/* ---- directories ---- */

/* Counts the files of a directory whose names have a certain end, and their
 * bytes; hidden and temporary files do not count.  visit: called for each; or
 * NULL. */
struct files {
    const char *suffix;
    double bytes;
    size_t files;
    int (*visit)(void *arg, const char *path, struct err *e);
    void *arg;
};

static int files_in(struct files *t, const char *dir, struct err *e)
{
    char path[PATH_MAX];
    struct dirent *d;
    struct stat st;
    DIR *p = opendir(dir);
    int rc = 0;

    if (!p)
        return errno == ENOENT || errno == ENOTDIR ?
                   0 :
                   err_set(e, err_open_code(errno), "'%s':", dir);
    while (rc >= 0 && (d = readdir(p))) {
        if (strstr(d->d_name, ".tmp.") || !ends(d->d_name, t->suffix))
            continue;
        rc = join(path, dir, d->d_name, e);
        if (rc < 0 || stat(path, &st) || !S_ISREG(st.st_mode))
            continue;
        t->bytes += (double)st.st_size;
        t->files++;
        if (t->visit)
            rc = t->visit(t->arg, path, e);
    }
    closedir(p);
    return rc;
}

static int visit_hits(void *arg, const char *path, struct err *e)
{
    struct workdir *w = arg;
    const struct runstream s = { .hits = &w->hits };

    return runstream_read(&s, path, e);
}

static int visit_tokens(void *arg, const char *path, struct err *e)
{
    struct workdir *w = arg;
    const struct runstream s = { .hits = &w->hits, .tokens = &w->tokens };

    return runstream_read(&s, path, e);
}

static int read_stages(struct workdir *w, const char *work, struct err *e)
{
    static const char *const name[STAGES] = { "T", "C", "S" };
    char dir[PATH_MAX];

    for (int i = 0; i < STAGES; i++) {
        const char *key = settings_text(&w->run, name[i]);
        struct files t = { .suffix = ".fts", .arg = w };

        t.visit = i == STAGE_TOKENS ? visit_tokens :
                  i == STAGE_CALIB  ? visit_hits :
                                      NULL;
        if (!*key || strchr(key, '/'))
            continue;
        if (join(dir, work, key, e) < 0 || files_in(&t, dir, e) < 0)
            return e->code;
        w->stage_bytes[i] = t.bytes;
        w->stage_files[i] = t.files;
    }
    return 0;
}

/* ---- records ---- */

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static int read_codes(struct workdir *w, const char *work, struct err *e)
{
    const struct runstream s = { .records = &w->records,
                                 .hits = &w->hits,
                                 .head = &w->history };
    const char *key = settings_text(&w->run, "S");
    char path[PATH_MAX];
    struct stat st;

    for (int64_t i = 0; i < w->layers; i++) {
        if ((size_t)snprintf(path, sizeof(path), "%s/%s/codes-%lld.fts", work,
                             key, (long long)i) >= sizeof(path))
            return err_set(e, E_DATA, "'%s': path is too long", work);
        if (stat(path, &st))
            continue;
        if (!S_ISREG(st.st_mode)) /* a FIFO would be waited for */
            return err_set(e, E_DATA, "'%s': not a regular file", path);
        if (runstream_read(&s, path, e) < 0)
            return e->code;
        w->layers_done++;
    }
    return 0;
}

static int read_steps(struct workdir *w, const char *work, struct err *e)
{
    char dir[PATH_MAX], path[PATH_MAX];

    if (join(dir, work, settings_text(&w->run, "S"), e) < 0 ||
        join(path, dir, "stages.jsonl", e) < 0)
        return e->code;
    return exists(path) ? records_read(&w->records, RECORD_STEP, path, e) : 0;
}

static int read_meter(struct workdir *w, const char *work, struct err *e)
{
    char path[PATH_MAX];
    struct json_doc *d;

    w->seconds = w->peak_bytes = NAN;
    if (join(path, work, "meter.json", e) < 0)
        return e->code;
    if (!exists(path))
        return 0;
    if (json_read_file(&d, path, METER_MAX, e) < 0)
        return e->code;
    if (!json_number(json_get(json_root(d), "seconds"), &w->seconds))
        w->seconds = NAN;
    if (!json_number(json_get(json_root(d), "peak_bytes"), &w->peak_bytes))
        w->peak_bytes = NAN;
    json_free(d);
    return 0;
}

/* ---- experts ---- */

/* Add a hit map from the samples of modules begin..end-1, all of one layer. */
static int add_samples(struct hitmaps *h, const struct module *begin,
                       const struct module *end, struct err *e)
{
    struct frame f = { .role = ROLE_HITMAP, .dtype = DT_F32, .ndim = 2 };
    const struct module *first = NULL;
    int64_t experts = 0;
    float *value;
    int rc;

    for (const struct module *m = begin; m < end; m++) {
        if (m->expert >= experts && m->samples >= 0)
            experts = m->expert + 1;
        if (m->expert >= 0 && m->samples >= 0 && !first)
            first = m;
    }
    if (!first || experts > HIT_EXPERTS_MAX)
        return 0;
    value = mem_zero((size_t)experts, HITS * sizeof(*value), "hit map", e);
    if (!value)
        return e->code;
    for (const struct module *m = begin; m < end; m++)
        if (m->kind == first->kind && m->expert >= 0 && m->samples >= 0)
            value[m->expert * HITS + HIT_TOKENS] = (float)m->samples;
    layer_tensor_name(first->layer, "mlp", f.name);
    f.dims[0] = (uint64_t)experts;
    f.dims[1] = HITS;
    f.len = (size_t)experts * HITS * sizeof(*value);
    f.data = value;
    rc = hitmaps_add(h, &f, e);
    free(value);
    return rc;
}

/* Without hit maps: take the numbers of tokens from the notes of each expert's
 * first linear; the other columns are 0. */
static int hits_from_samples(struct hitmaps *h, const struct records *r,
                             struct err *e)
{
    size_t end;

    for (size_t i = 0; i < r->modules; i = end) {
        for (end = i + 1;
             end < r->modules && r->module[end].layer == r->module[i].layer;)
            end++;
        if (r->module[i].layer >= 0 &&
            add_samples(h, r->module + i, r->module + end, e) < 0)
            return e->code;
    }
    return 0;
}

/* ---- workdir_read() ---- */

static int read_all(struct workdir *w, const char *work, struct err *e)
{
    int rc;

    w->layers = settings_number(&w->run, "layers", -1);
    w->modules = settings_number(&w->run, "modules", -1);
    if (w->layers < 0 || w->layers > LAYERS_MAX)
        return err_set(e, E_DATA, "'%s': no number of layers", w->run.path);
    if ((rc = read_codes(w, work, e)) < 0 ||
        (rc = read_steps(w, work, e)) < 0 || (rc = read_meter(w, work, e)) < 0)
        return rc;
    if ((rc = read_stages(w, work, e)) < 0 || w->hits.count)
        return rc;
    return hits_from_samples(&w->hits, &w->records, e);
}

int workdir_read(struct workdir *w, const char *path, struct err *e)
{
    int rc;

    *w = (struct workdir){ .seconds = NAN, .peak_bytes = NAN };
    if (settings_read(&w->run, path, e) < 0)
        return e->code;
    rc = read_all(w, path, e);
    if (rc < 0)
        workdir_release(w);
    return rc;
}

void workdir_release(struct workdir *w)
{
    settings_release(&w->run);
    records_release(&w->records);
    hitmaps_release(&w->hits);
    free(w->history);
    w->history = NULL;
}

int hitmaps_read(struct hitmaps *h, const char *path, struct err *e)
{
    const struct runstream s = { .hits = h };

    if (runstream_read(&s, path, e) < 0)
        return e->code;
    if (!h->count)
        return err_set(e, E_DATA, "'%s': no hit maps in it", path);
    return 0;
}
