/* job.c - see job.h. */
#include "forge/job.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io/file.h"
#include "common/math/cpu.h"
#include "gptq/grid/grid.h"
#include "gptq/hessian_file.h"
#include "work/settings.h"

enum { LAYERS_MAX = 1 << 20 };

static const char format[] = "4bit-forge work 1";

/* ---- names ---- */

static const char *stage_dir(const char *stage, const char *key,
                             char dir[STAGE_DIR])
{
    snprintf(dir, STAGE_DIR, "%s-%s", stage, key);
    return dir;
}

const char *job_tokens_dir(const struct job *j, char dir[STAGE_DIR])
{
    return stage_dir("tokens", j->tkey, dir);
}

const char *job_calib_dir(const struct job *j, char dir[STAGE_DIR])
{
    return stage_dir("calib", j->ckey, dir);
}

const char *job_solve_dir(const struct job *j, char dir[STAGE_DIR])
{
    return stage_dir("solve", j->skey, dir);
}

const char *job_codes_dir(const struct job *j, char dir[STAGE_DIR])
{
    return stage_dir(j->tune ? "tuned" : "solve", j->ukey, dir);
}

const char *job_packed_dir(const struct job *j, char dir[STAGE_DIR])
{
    return stage_dir("packed", j->ukey, dir);
}

const char *job_scratch_dir(const struct job *j, uint64_t inode,
                            char dir[SCRATCH_DIR])
{
    snprintf(dir, SCRATCH_DIR, "forge-%s-%" PRIu64, j->skey, inode);
    return dir;
}

enum layout job_layout(const struct job *j)
{
    return j->layout == JOB_GGUF ? LAYOUT_CT : (enum layout)j->layout;
}

const char *job_layout_name(const struct job *j)
{
    return j->layout == JOB_GGUF ? "gguf" : layout_name(job_layout(j));
}

PRINTF(2, 3)
static void add_word(struct job_words *w, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(w->text[w->n++], JOB_WORD, fmt, ap);
    va_end(ap);
}

void job_grid(const struct job *j, struct job_words *w)
{
    w->n = 0;
    add_word(w, "--group");
    add_word(w, "%" PRId64, job_group_word(j));
    add_word(w, j->symmetric ? "--symmetric" : "--asymmetric");
    if (j->bf16_scales) {
        add_word(w, "--scale-dtype");
        add_word(w, "bf16");
    }
    if (j->search == SEARCH_ABSMAX) {
        add_word(w, "--search");
        add_word(w, "absmax");
    }
    /* above EFFORT_FAST forge-solve chooses grids itself; these serve for
     * comparison */
    if (j->method == METHOD_GPTQ && j->effort != EFFORT_FAST) {
        add_word(w, "--candidates");
        add_word(w, "%d", GRID_CANDIDATES_FEW);
    }
}

void job_solve(const struct job *j, struct job_words *w)
{
    char word[JOB_WORD];

    w->n = 0;
    add_word(w, "--method");
    add_word(w, "%s", opt_word(METHOD_WORDS, j->method, word));
    add_word(w, "--effort");
    add_word(w, "%s", opt_word(EFFORT_WORDS, j->effort, word));
    add_word(w, "--prior");
    add_word(w, "%d", HESSIAN_PRIOR);
}

/* ---- the choice of linears ---- */

int globs_add(struct globs *g, const char *glob, struct err *e)
{
    if (!*glob || strlen(glob) >= MODULE_PATH_MAX)
        return err_set(e, E_USAGE, "--modules, --skip, --grid: a pattern %s",
                       *glob ? "is longer than a module's path" : "is empty");
    if (g->n == JOB_GLOBS)
        return err_set(e, E_USAGE,
                       "--modules, --skip, --grid: more than %d patterns",
                       JOB_GLOBS);
    if (mem_grow(&g->item, ((size_t)g->n + 1) * sizeof(*g->item), "globs", e) <
        0)
        return e->code;
    g->item[g->n] = mem_text(glob, strlen(glob), "globs", e);
    if (!g->item[g->n])
        return e->code;
    g->n++;
    return 0;
}

static void globs_release(struct globs *g)
{
    for (int i = 0; i < g->n; i++)
        free(g->item[i]);
    free(g->item);
    *g = (struct globs){ 0 };
}

struct module_choice job_choice(const struct job *j)
{
    return (struct module_choice){ (const char *const *)j->only.item, j->only.n,
                                   (const char *const *)j->skip.item,
                                   j->skip.n };
}

int job_config(const struct job *j, struct model_config *c, struct err *e)
{
    const struct module_choice choice = job_choice(j);

    if (model_config_read(c, j->model, e) < 0)
        return e->code;
    module_choice_apply(&choice, c);
    return 0;
}

struct grid_rules job_grids(const struct job *j)
{
    return (struct grid_rules){ .rule = (const char *const *)j->grids.item,
                                .n = j->grids.n,
                                .group = (uint64_t)j->group,
                                .symmetric = j->symmetric };
}

/* ---- writing ---- */

static void put_text(struct json_writer *w, const char *name, const char *v)
{
    jw_key(w, name), jw_string(w, v);
}

static void put_int(struct json_writer *w, const char *name, int64_t v)
{
    jw_key(w, name), jw_int(w, v);
}

static void put_word(struct json_writer *w, const char *name, const char *words,
                     int i)
{
    char word[JOB_WORD];

    put_text(w, name, opt_word(words, i, word));
}

static void put_globs(struct json_writer *w, const char *name,
                      const struct globs *g)
{
    jw_key(w, name), jw_begin(w, '[');
    for (int i = 0; i < g->n; i++)
        jw_string(w, g->item[i]);
    jw_end(w, ']');
}

static void put_all(struct json_writer *w, const struct job *j)
{
    char dir[STAGE_DIR];

    put_text(w, "format", format);
    put_text(w, "version", FORGE_VERSION);
    put_text(w, "model", j->model);
    put_text(w, "text", j->text);
    put_text(w, "out", j->out);
    put_word(w, "layout", JOB_LAYOUTS, j->layout);
    put_word(w, "rest", GGUF_REST_WORDS, j->rest);
    put_word(w, "method", METHOD_WORDS, j->method);
    put_word(w, "search", SEARCH_WORDS, j->search);
    put_word(w, "effort", EFFORT_WORDS, j->effort);
    put_word(w, "propagate", PROPAGATE_WORDS, j->propagate);
    put_int(w, "sequences", j->sequences);
    put_int(w, "seqlen", j->seqlen);
    put_int(w, "group", job_group_word(j));
    put_int(w, "blend", j->blend);
    put_int(w, "tune", j->tune);
    put_int(w, "tune_batch", j->tune_batch);
    put_int(w, "threads", j->threads);
    put_int(w, "jobs", j->jobs);
    put_int(w, "layers", j->layers);
    put_int(w, "modules", j->modules);
    put_int(w, "parts", j->parts);
    put_int(w, "step", j->step);
    jw_key(w, "away"), jw_bool(w, j->away);
    put_text(w, "scratch", j->scratch);
    put_globs(w, "only", &j->only);
    put_globs(w, "skip", &j->skip);
    put_globs(w, "grids", &j->grids);
    jw_key(w, "symmetric"), jw_bool(w, j->symmetric);
    jw_key(w, "bf16_scales"), jw_bool(w, j->bf16_scales);
    jw_key(w, "fisher"), jw_bool(w, j->fisher);
    put_text(w, "device", j->device);
    put_text(w, "cpu", j->cpu);
    put_text(w, "gpu", j->gpu);
    put_int(w, "gpu_memory", (int64_t)j->gpu_memory);
    put_int(w, "gpu_states", (int64_t)j->gpu_states);
    put_int(w, "states_memory", (int64_t)j->states_memory);
    put_int(w, "shard_size", (int64_t)j->shard_size);
    put_text(w, "T", job_tokens_dir(j, dir));
    put_text(w, "C", job_calib_dir(j, dir));
    put_text(w, "S", job_solve_dir(j, dir));
    put_text(w, "U", job_codes_dir(j, dir));
    if (j->command)
        jw_key(w, "command"), jw_raw(w, j->command);
    jw_key(w, "seconds"), jw_number(w, j->seconds);
    put_int(w, "started", j->started);
    put_int(w, "before", j->before);
    put_int(w, "bytes_in", (int64_t)j->bytes_in);
    jw_key(w, "most"), jw_number(w, j->most);
    inputs_write(w, &j->in);
}

int job_command(struct job *j, const char *name, int argc, char **argv,
                struct err *e)
{
    struct json_writer w;

    jw_init(&w, 0);
    jw_begin(&w, '[');
    jw_string(&w, "forge");
    jw_string(&w, name);
    for (int i = 1; i < argc; i++)
        jw_string(&w, argv[i]);
    jw_end(&w, ']');
    j->command = w.text;
    return w.failed ? err_set(e, E_TEMP, "settings: out of memory") : 0;
}

int job_write(const struct job *j, const char *work, struct err *e)
{
    struct json_writer w;
    char path[PATH_MAX];
    int rc;

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", work, SETTINGS_FILE) >=
        sizeof(path))
        return err_set(e, E_CREATE, "'%.200s...': path is too long", work);
    jw_init(&w, 1);
    jw_begin(&w, '{');
    put_all(&w, j);
    jw_end(&w, '}');
    rc = w.failed ? err_set(e, E_TEMP, "settings: out of memory") :
                    publish_text(path, w.text, w.len, e);
    free(w.text);
    return rc;
}

/* ---- reading ---- */

struct reader {
    const struct work_settings *s;
    const char *bad; /* name of the first wrong member; NULL: none */
};

static void get_path(struct reader *r, const char *name, char to[PATH_MAX],
                     bool optional)
{
    const char *v = settings_text(r->s, name);

    if ((*v != '/' && !(optional && !*v)) || strlen(v) >= PATH_MAX)
        r->bad = r->bad ? r->bad : name;
    else
        strcpy(to, v);
}

static void get_int(struct reader *r, const char *name, int64_t least,
                    int64_t most, int64_t *to)
{
    *to = settings_number(r->s, name, -1);
    if (*to < least || *to > most)
        r->bad = r->bad ? r->bad : name;
}

static void get_word(struct reader *r, const char *name, const char *words,
                     int *to)
{
    const char *v = settings_text(r->s, name);
    char word[JOB_WORD];
    int n = 1;

    for (const char *p = words; *p; p++)
        n += *p == '|';
    for (*to = 0; *to < n; ++*to)
        if (!strcmp(v, opt_word(words, *to, word)))
            return;
    *to = 0;
    r->bad = r->bad ? r->bad : name;
}

static void get_key(struct reader *r, const char *name, const char *stage,
                    char key[KEY_LEN + 1])
{
    const char *v = settings_text(r->s, name);
    size_t n = strlen(stage);

    if (strncmp(v, stage, n) != 0 || v[n] != '-' ||
        strlen(v + n + 1) != KEY_LEN ||
        strspn(v + n + 1, "0123456789abcdef") != KEY_LEN)
        r->bad = r->bad ? r->bad : name;
    else
        strcpy(key, v + n + 1);
}

static int get_globs(struct reader *r, const char *name, struct globs *to,
                     struct err *e)
{
    const struct json *list = json_get(json_root(r->s->doc), name);
    const char *glob;

    if (!list || json_type(list) != JSON_ARRAY) {
        r->bad = r->bad ? r->bad : name;
        return 0;
    }
    for (const struct json *v = json_first(list); v; v = json_after(v)) {
        int rc = json_string(v, &glob) ? globs_add(to, glob, e) : E_DATA;

        if (rc == E_TEMP)
            return rc;
        if (rc)
            r->bad = r->bad ? r->bad : name;
    }
    return 0;
}

static void get_all(struct reader *r, struct job *j)
{
    const char *device = settings_text(r->s, "device");
    struct err e;
    int64_t n;

    if (strcmp(settings_text(r->s, "format"), format) != 0)
        r->bad = "format";
    get_path(r, "model", j->model, false);
    get_path(r, "text", j->text, true);
    get_path(r, "out", j->out, false);
    get_path(r, "scratch", j->scratch, true);
    get_word(r, "layout", JOB_LAYOUTS, &j->layout);
    get_word(r, "rest", GGUF_REST_WORDS, &j->rest);
    get_word(r, "method", METHOD_WORDS, &j->method);
    if (*settings_text(r->s, "search")) /* trees before had none */
        get_word(r, "search", SEARCH_WORDS, &j->search);
    get_word(r, "effort", EFFORT_WORDS, &j->effort);
    get_word(r, "propagate", PROPAGATE_WORDS, &j->propagate);
    get_int(r, "sequences", 1, 1 << 30, &j->sequences);
    get_int(r, "seqlen", 1, 1 << 30, &j->seqlen);
    get_int(r, "group", -1, GROUP_ALL, &j->group);
    if (grid_options(&j->group, NULL, 0, &e))
        r->bad = r->bad ? r->bad : "group";
    get_int(r, "blend", 0, 1000000, &j->blend);
    get_int(r, "tune", 0, TUNE_MAX, &j->tune);
    get_int(r, "tune_batch", 1, TUNE_BATCH_MAX, &j->tune_batch);
    get_int(r, "threads", 0, 4096, &j->threads);
    get_int(r, "jobs", 1, 1024, &j->jobs);
    get_int(r, "layers", 1, LAYERS_MAX, &j->layers);
    get_int(r, "modules", 0, INT64_MAX, &j->modules);
    get_int(r, "parts", 1, PARTS_MAX, &j->parts);
    get_int(r, "step", STEP_COST_AUTO, STEP_COST_MAX, &j->step);
    get_int(r, "started", 0, INT64_MAX, &j->started);
    get_int(r, "before", 0, INT64_MAX, &j->before);
    get_int(r, "gpu_memory", 0, INT64_MAX, &n);
    j->gpu_memory = (uint64_t)n;
    get_int(r, "gpu_states", 0, INT64_MAX, &n);
    j->gpu_states = (uint64_t)n;
    get_int(r, "states_memory", -1, INT64_MAX, &n); /* trees before had none */
    j->states_memory = n > 0 ? (uint64_t)n : 0;
    get_int(r, "shard_size", 1, INT64_MAX, &n);
    j->shard_size = (uint64_t)n;
    get_int(r, "bytes_in", 0, INT64_MAX, &n);
    j->bytes_in = (uint64_t)n;
    j->away = settings_flag(r->s, "away");
    j->symmetric = settings_flag(r->s, "symmetric");
    j->bf16_scales = settings_flag(r->s, "bf16_scales");
    j->fisher = settings_flag(r->s, "fisher");
    if (!json_number(json_get(json_root(r->s->doc), "seconds"), &j->seconds) ||
        !(j->seconds >= 0))
        j->seconds = 0;
    if (!json_number(json_get(json_root(r->s->doc), "most"), &j->most) ||
        !(j->most >= 0))
        j->most = 0;
    if (strlen(device) >= DEVICE_LEN ||
        strspn(device, "autocpdc:0123456789") != strlen(device))
        r->bad = r->bad ? r->bad : "device";
    else
        strcpy(j->device, device);
    if (strlen(settings_text(r->s, "gpu")) >= GPU_LEN)
        r->bad = r->bad ? r->bad : "gpu";
    snprintf(j->gpu, sizeof(j->gpu), "%s", settings_text(r->s, "gpu"));
    if (!cpu_level_known(settings_text(r->s, "cpu")))
        r->bad = r->bad ? r->bad : "cpu";
    snprintf(j->cpu, sizeof(j->cpu), "%s", settings_text(r->s, "cpu"));
    get_key(r, "T", "tokens", j->tkey);
    get_key(r, "C", "calib", j->ckey);
    get_key(r, "S", "solve", j->skey);
    get_key(r, "U", j->tune ? "tuned" : "solve", j->ukey);
}

int job_read(struct job *j, const char *work, struct err *e)
{
    struct work_settings s;
    struct reader r = { .s = &s };
    int rc;

    memset(j, 0, sizeof(*j));
    if (settings_read(&s, work, e) < 0)
        return e->code;
    get_all(&r, j);
    rc = inputs_read(&j->in, &s, e);
    if (!rc)
        rc = get_globs(&r, "only", &j->only, e);
    if (!rc)
        rc = get_globs(&r, "skip", &j->skip, e);
    if (!rc)
        rc = get_globs(&r, "grids", &j->grids, e);
    for (int i = 0; i < j->grids.n && !rc && !r.bad; i++)
        if (grid_rule_check(j->grids.item[i], e))
            r.bad = "grids";
    if (!rc && r.bad)
        rc = err_set(e, E_DATA, "'%s': \"%s\" is not what forge writes", s.path,
                     r.bad);
    settings_release(&s);
    if (rc)
        job_release(j);
    return rc;
}

void job_release(struct job *j)
{
    free(j->command);
    j->command = NULL;
    globs_release(&j->only);
    globs_release(&j->skip);
    globs_release(&j->grids);
    inputs_release(&j->in);
}
