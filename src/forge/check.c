/* check.c - the checks before any work; see request.h. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arch/lacks.h"
#include "common/io/npy.h"
#include "forge/arguments.h"
#include "forge/command.h"
#include "forge/env.h"
#include "forge/request.h"
#include "gguf/check.h"
#include "forge/stops.h"
#include "model/model.h"
#include "pack/preflight.h"
#include "tune/tune.h"

/* ---- paths ---- */

static int check_work(const struct request *r, struct err *e)
{
    const char *work = r->work_path;

    if (path_inside(work, r->j.model))
        return err_set(e, E_CREATE, "'%s': --work lies in the model '%s'", work,
                       r->j.model);
    if (path_inside(work, r->j.out))
        return err_set(e, E_CREATE, "'%s': --work lies in OUT", work);
    return place_check(work, e);
}

bool text_piped(const struct request *r)
{
    return r->text && !strcmp(r->text, "-");
}

/* Whether the model has a file of this name, or a path that is too long. */
static bool has(const struct request *r, const char *name)
{
    char path[PATH_MAX];

    return (size_t)snprintf(path, sizeof(path), "%s/%s", r->model, name) >=
               sizeof(path) ||
           !access(path, F_OK);
}

/* Text is for the model's tokenizer.json; ids (.npy) are not.  Where there is no model at
 * all, check_model() says so. */
static int check_tokenizer(const struct request *r, struct err *e)
{
    char begin[sizeof(NPY_MAGIC) - 1];
    FILE *f = fopen(r->text, "rb");
    bool ids = f && fread(begin, 1, sizeof(begin), f) == sizeof(begin) &&
               !memcmp(begin, NPY_MAGIC, sizeof(begin));

    if (f)
        fclose(f);
    if (ids || has(r, "tokenizer.json") || !has(r, "config.json"))
        return 0;
    return err_set(e, E_NOINPUT,
                   "'%s' has no tokenizer.json: want ids (.npy) as --text, "
                   "which the model's own tokenizer makes",
                   r->model);
}

int check_paths(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    struct stat st;
    int rc = 0;

    if (find_model(&r->model, r->found, e) < 0)
        return e->code;
    if (j->method == METHOD_GPTQ)
        rc = check_text(r->text, e);
    if (!rc && j->method == METHOD_GPTQ && !text_piped(r))
        rc = check_tokenizer(r, e);
    if (rc || path_absolute(r->model, j->model, e) < 0 ||
        path_absolute(r->out, j->out, e) < 0 ||
        (r->text && !text_piped(r) && path_absolute(r->text, j->text, e) < 0))
        return e->code;
    if (r->work)
        rc = path_absolute(r->work, r->work_path, e);
    else if ((size_t)snprintf(r->work_path, PATH_MAX, "%s.work", j->out) >=
             PATH_MAX)
        rc = err_set(e, E_USAGE, "'%.200s...': path is too long", j->out);
    if (r->scratch &&
        (!*r->scratch || path_absolute(r->scratch, j->scratch, e)))
        return *r->scratch ? e->code :
                             err_set(e, E_USAGE, "--scratch: a path is empty");
    if (r->scratch && !env_away() &&
        (stat(j->scratch, &st) || !S_ISDIR(st.st_mode) ||
         access(j->scratch, W_OK | X_OK)))
        return err_set(e, E_CREATE,
                       "--scratch: '%s' is no directory to write in",
                       j->scratch);
    if (rc || check_out(r->out, j->out, j->model, e) < 0)
        return e->code;
    return check_work(r, e);
}

/* ---- the model ---- */

static bool skips_experts(const struct module_choice *choice,
                          const struct model_config *c)
{
    struct linear l;

    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        int64_t first = model_linear_common(c, layer);

        if (!model_layer_experts(c, layer))
            continue;
        model_linear(c, layer, first, &l); /* all are chosen alike */
        if (!module_chosen(choice, l.module))
            return true;
    }
    return false;
}

static int check_choice(const struct job *j, const struct module_choice *choice,
                        struct err *e)
{
    bool gptq = j->layout == LAYOUT_GPTQ || j->layout == LAYOUT_GPTQ_V2;
    const struct grid_rules rules = job_grids(j);
    struct model_config c;
    int rc = job_config(j, &c, e);

    if (rc)
        return rc;
    if (j->only.n || j->skip.n)
        rc = module_choice_check(choice, &c, e);
    if (!rc)
        rc = grid_rules_check(&rules, choice, &c, e);
    if (!rc && gptq && !c.moe.n_experts && !module_choice_uniform(choice, &c))
        warning(
            "--layout gptq: transformers loads it only where the same linears "
            "are quantized in all layers");
    if (!rc && j->layout == LAYOUT_CT && skips_experts(choice, &c))
        warning("--layout compressed-tensors: transformers does not load "
                "mixtures with experts that are not quantized");
    model_config_release(&c);
    return rc;
}

static int count_layer_bytes(struct request *r, struct err *e)
{
    struct stops s;
    uint64_t whole;

    if (stops_list(&s, &r->j, e) < 0)
        return e->code;
    r->layer_bytes = (double)stops_layer_bytes(&s, r->j.parts, &whole);
    r->layer_kept = (double)stops_kept_bytes(&s);
    stops_layer_steps(&s, r->j.parts, r->layer_steps);
    r->layer_whole = (double)whole;
    stops_release(&s);
    return 0;
}

/* Whether the layout can hold the model; warns, before hours of work, of what
 * some runtimes refuse.  Also checks sidecars. */
static int check_layout(struct request *r, const struct module_choice *choice,
                        struct err *e)
{
    const struct job *j = &r->j;
    bool gguf = j->layout == JOB_GGUF;
    const struct preflight p = { .model = j->model,
                                 .layout = job_layout(j),
                                 .grids = job_grids(j),
                                 .silent = gguf || (r->bits > 0 && j->grids.n),
                                 .chooses = r->bits > 0,
                                 .choice = *choice };
    const struct gguf_want w = { .dir = j->model,
                                 .grids = job_grids(j),
                                 .q8 = j->rest == GGUF_REST_Q8_0,
                                 .choice = choice };
    uint64_t linears;

    if (gguf && gguf_check(&w, &r->gguf_bytes, e) < 0)
        return e->code;
    if (gguf && grid_rules_any(&w.grids, false)) /* forge-gguf counts them */
        warning("Q4_1 holds zero points times scales, rounded to F16: weights "
                "change by less than 1/128 of their scale");
    return preflight_check(&p, &linears, e);
}

/* Whether all linears' groups are such as the GPU solves (forge-solve(1)). */
static bool groups_fit_gpu(const struct job *j, const struct model_config *c)
{
    enum { GPU_GROUP = 128 };
    const struct module_choice choice = job_choice(j);
    const struct grid_rules rules = job_grids(j);
    bool fit = true;

    for (int64_t k = 0; k < c->n_layers && fit; k++)
        for (int64_t i = 0; i < model_linear_count(c, k) && fit; i++) {
            struct linear l;

            model_linear(c, k, i, &l);
            fit = !module_chosen(&choice, l.module) ||
                  quant_group(grid_rules_find(&rules, l.module).group,
                              (uint64_t)l.cols) <= GPU_GROUP;
        }
    return fit;
}

/* Refuse what the effort or the device do not do for the model's family; find which
 * efforts solve rows together. */
static int check_family(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    bool cuda = !strncmp(j->device, "cuda", 4) && j->method == METHOD_GPTQ;
    struct model_config c;
    const char *lacks;
    double rate;
    int rc = model_config_read(&c, j->model, e);

    if (rc)
        return rc;
    lacks = model_gradient_lacks(&c, j->seqlen);
    r->fisher[EFFORT_BEST] = !lacks && j->method == METHOD_GPTQ;
    r->fisher[EFFORT_DEFAULT] =
        r->fisher[EFFORT_BEST] && c.hidden_size <= FISHER_HIDDEN;
    j->fisher = r->fisher[j->effort];
    if (j->effort == EFFORT_BEST && j->method == METHOD_GPTQ && lacks)
        rc = err_set(e, E_CONFIG,
                     "--effort best: %s has %s, whose gradients are not "
                     "supported: the default effort is",
                     c.family->model_type, lacks);
    if (!rc && j->tune > 0 && lacks)
        rc = err_set(e, E_CONFIG,
                     "--tune: %s has %s, whose gradients are not supported",
                     c.family->model_type, lacks);
    rate = tune_rate(&c);
    if (!rc && j->tune > 0 &&
        tune_reach(rate, j->tune) < TUNE_REACH * tuned_near(rate))
        warning("--tune %" PRId64 ": hardly a code will change; with %" PRId64
                " inputs it takes some %.0f steps",
                j->tune, c.hidden_size,
                ceil(2 * TUNE_REACH * tuned_near(rate) / rate));
    lacks = model_device_lacks(&c, j->seqlen);
    if (!rc && cuda && lacks)
        rc = err_set(e, E_DEVICE,
                     "--device cuda: %s has %s, which layers on a GPU do not "
                     "support: --device auto is",
                     c.family->model_type, lacks);
    if (!rc && cuda && j->effort != EFFORT_FAST && !groups_fit_gpu(j, &c))
        rc = err_set(e, E_DEVICE,
                     "--device cuda: in this effort the GPU does not solve "
                     "groups of more than 128 inputs: --device auto solves "
                     "them on the CPU");
    model_config_release(&c);
    return rc;
}

/* The last file is hashed behind the last layer, by one thread (writeshards.h). */
static uint64_t shard_size(const struct request *r)
{
    enum { FILES = 8, LEAST = 128000000 };
    uint64_t part = r->plan.bytes_out / FILES;

    if (r->shard_size)
        return r->shard_size;
    return part < LEAST ? LEAST : part < SHARD_SIZE ? part : SHARD_SIZE;
}

int check_model(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    const struct module_choice choice = job_choice(j);
    const struct grid_rules grids = job_grids(j);

    if (check_family(r, e) < 0 || ((j->only.n || j->skip.n || j->grids.n) &&
                                   check_choice(j, &choice, e) < 0))
        return e->code;
    plan_release(&r->plan);
    /* first whether it can be quantized at all */
    if (plan_model(&r->plan, j->model, &grids, &choice, e) < 0 ||
        check_plain(r->model, r->plan.packed, e) < 0 ||
        model_look(j->model, j->method == METHOD_GPTQ ? j->seqlen : 0,
                   request_gradients(r) || j->tune > 0, e) < 0 ||
        check_layout(r, &choice, e) < 0)
        return e->code;
    if (j->parts > 1 && count_layer_bytes(r, e) < 0)
        return e->code;
    j->layers = r->plan.layers;
    j->modules = r->plan.modules;
    j->bytes_in = r->plan.bytes_in;
    j->shard_size = shard_size(r);
    /* transformers runs the experts of this layout in the type of their
     * scales */
    j->bf16_scales = j->layout == LAYOUT_CT && r->plan.bf16_experts;
    return 0;
}

/* ---- the tools ---- */

int check_launch(struct err *e)
{
    enum { RETRIES_MAX = 1000000 };
    static const char *const known[] = { "local", "srun", "ssh" };
    const char *launch = env_text("FORGE_LAUNCH"), *name;
    char first[PATH_MAX];
    int64_t retries;

    if (env_number("FORGE_RETRIES", RETRIES_MAX, &retries, e) < 0)
        return e->code;
    snprintf(first, sizeof(first), "%.*s", (int)strcspn(launch, " \t\n"),
             launch);
    name = strrchr(first, '/') ? strrchr(first, '/') + 1 : first;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!*launch || !strcmp(name, known[i]))
            return 0;
    return err_set(e, E_USAGE, "FORGE_LAUNCH: '%s' is no local, srun or ssh",
                   launch);
}

/* Compare the version string inside a program (base.c) with ours.  A file
 * without such a string (a wrapper script) is accepted. */
static int check_tool(const char *name, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    const char *p;
    void *map;
    bool same;
    int fd;

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", env_bindir(), name) >=
        sizeof(path))
        return err_set(e, E_NOINPUT, "'%s': path is too long", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || access(path, X_OK)) {
        if (fd >= 0)
            close(fd);
        return err_set(e, E_NOINPUT, "'%s':", path);
    }
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return 0;
    p = memmem(map, (size_t)st.st_size, forge_what, WHAT_PREFIX);
    same = !p || !strncmp(p, forge_what, strlen(forge_what) + 1);
    munmap(map, (size_t)st.st_size);
    return same ? 0 :
                  err_set(e, E_CONFIG,
                          "'%s': is not of version %s, as this forge is", path,
                          FORGE_VERSION);
}

int check_tools(struct err *e)
{
    static const char *const tools[] = {
        "forge-tokens",  "forge-calib", "forge-hessian", "forge-gradient",
        "forge-weights", "forge-bits",  "forge-grid",    "forge-solve",
        "forge-split",   "forge-pack",  "forge-shard",   "forge-gguf",
        "forge-device",  "forge-tune",  "forge-generate"
    };

    for (size_t i = 0; i < ARRAY_LEN(tools); i++)
        if (check_tool(tools[i], e) < 0)
            return e->code;
    return 0;
}
