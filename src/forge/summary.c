/* summary.c - see summary.h. */
#include "forge/summary.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "arch/tensor_name.h"
#include "checkpoint/checkpoint.h"
#include "common/cli/units.h"
#include "common/io/stream.h"

enum { NAMES_SHOWN = 8, FEW = 128 };

uint64_t summary_bytes(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *f;
    uint64_t sum = 0;
    struct stat st;

    if (!d && !stat(dir, &st)) /* GGUF */
        return (uint64_t)st.st_size;
    while (d && (f = readdir(d))) {
        const char *dot = strrchr(f->d_name, '.');

        if (dot && !strcmp(dot, ".safetensors") &&
            !fstatat(dirfd(d), f->d_name, &st, 0))
            sum += (uint64_t)st.st_size;
    }
    if (d)
        closedir(d);
    return sum;
}

/* Linears of the model that are quantized. */
struct linears {
    uint64_t eight;       /* in 8 bits */
    double weights, bits; /* bits: of their tensors */
};

/* Of GGUF the bits, which follow from the grids. */
static void count_linears(const struct job *j, const struct model_config *c,
                          struct linears *to)
{
    const struct module_choice choice = job_choice(j);
    const struct grid_rules rules = job_grids(j);

    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int64_t i = 0; i < model_linear_count(c, layer); i++) {
            struct module_grid g;
            struct linear l;

            model_linear(c, layer, i, &l);
            if (!module_chosen(&choice, l.module))
                continue;
            g = grid_rules_find(&rules, l.module);
            to->eight += g.bits == 8;
            to->weights += (double)l.rows * (double)l.cols;
            if (j->layout == JOB_GGUF)
                to->bits += (double)l.rows * (double)l.cols *
                            layout_gguf_bits(j->symmetric, g.bits);
        }
}

static int sum_parts(const char *out, const struct model_config *c,
                     struct linears *to, struct err *e)
{
    struct checkpoint *k;

    if (checkpoint_open(&k, out, e) < 0)
        return e->code;
    for (size_t i = 0; i < checkpoint_count(k); i++) {
        const struct ck_tensor *t = checkpoint_tensor(k, i);
        char module[MODULE_PATH_MAX];
        struct linear l;
        size_t n;

        if (!layout_is_part(t->name, &n) || n >= sizeof(module))
            continue;
        snprintf(module, sizeof(module), "%.*s", (int)n, t->name);
        if (model_find_linear(c, module, &l))
            to->bits += 8 * (double)t->bytes;
    }
    checkpoint_close(k);
    return 0;
}

static void print_modules(const struct request *r, size_t modules,
                          size_t rounded)
{
    struct linears n = { .eight = 0 };
    struct model_config c;
    struct err ignored;
    char kinds[64];
    int rc = job_config(&r->j, &c, &ignored);

    if (!rc) {
        count_linears(&r->j, &c, &n);
        if (r->j.layout != JOB_GGUF)
            rc = sum_parts(r->j.out, &c, &n, &ignored);
        model_config_release(&c);
    }
    n.eight = n.eight < modules ? n.eight : modules;
    printf("modules   %s, %zu of them rounded to nearest\n",
           layout_kinds_text(kinds, modules - n.eight, n.eight), rounded);
    if (!rc && n.weights > 0)
        printf("bits      %.3f for each of their weights, scales included\n",
               n.bits / n.weights);
}

static void print_loss(const struct request *r, const struct records *all)
{
    const struct module *worst = NULL;
    double sum = 0, rtn = 0;
    size_t rounded = 0;

    for (size_t i = 0; i < all->modules; i++) {
        const struct module *m = &all->module[i];

        rounded += !strcmp(m->method, "rtn");
        if (isnan(module_ratio(m)))
            continue;
        sum += m->loss;
        rtn += m->loss_rtn;
        if (!worst || module_ratio(m) > module_ratio(worst))
            worst = m;
    }
    if (r->j.search == SEARCH_ABSMAX) /* packed without records */
        print_modules(r, (size_t)r->plan.modules, (size_t)r->plan.modules);
    else
        print_modules(r, all->modules, rounded);
    if (worst)
        printf("loss      %.3f of round-to-nearest, at worst %.3f: %s\n",
               sum / rtn, module_ratio(worst), worst->name);
}

/* Print the linears of which rows kept their weights as the target, since the
 * corrected one was too far (gptq/solve/target.h). */
static void print_kept(const struct records *all)
{
    int64_t rows = 0;
    size_t n = 0;

    for (size_t i = 0; i < all->modules; i++) {
        rows += all->module[i].kept;
        n += all->module[i].kept > 0;
    }
    if (!n)
        return;
    printf("targets   %lld rows of %zu modules stayed, too far to correct:",
           (long long)rows, n);
    n = 0;
    for (size_t i = 0; i < all->modules; i++)
        if (all->module[i].kept > 0 && n++ < NAMES_SHOWN)
            printf(" %s", all->module[i].name);
    printf(n > NAMES_SHOWN ? " ...\n" : "\n");
}

/* Print " 3.mlp.experts.7", the expert's name without the linear's. */
static void print_expert(const struct module *m)
{
    struct tensor_name n;

    tensor_name_parse(&n, m->name);
    printf(" %lld.%.*s.%lld", (long long)n.layer, (int)n.experts.len,
           n.experts.at, (long long)n.expert);
}

/* Count, and print, the experts with least..most tokens; each by its first
 * linear. */
static size_t list_experts(const struct records *all, int64_t least,
                           int64_t most, bool print)
{
    const struct module *first = NULL;
    size_t n = 0;

    for (size_t i = 0; i < all->modules; i++) {
        const struct module *m = &all->module[i];

        first = !first && m->expert >= 0 ? m : first;
        if (m->expert < 0 || m->samples < least || m->samples > most ||
            m->kind != first->kind)
            continue;
        if (print && n < NAMES_SHOWN)
            print_expert(m);
        n++;
    }
    if (print && n > NAMES_SHOWN)
        printf(" ...");
    return n;
}

/* Print the names of experts with few tokens or none. */
static void print_experts(const struct records *all)
{
    size_t n = list_experts(all, 0, INT64_MAX, false);
    size_t few = list_experts(all, 1, FEW - 1, false);
    size_t none = list_experts(all, 0, 0, false);

    if (!n)
        return;
    printf("experts   %zu; ", n);
    if (few) {
        printf("%zu with less than %d tokens:", few, FEW);
        list_experts(all, 1, FEW - 1, true);
    }
    if (none) {
        printf("%s%zu with none:", few ? "; " : "", none);
        list_experts(all, 0, 0, true);
    }
    printf(few || none ? "\n" : "each with %d tokens or more\n", FEW);
}

/* Print the size of the calibration set; a text may have given less than asked
 * for. */
static void print_data(const struct request *r)
{
    const struct stream_expect expect = { 0 };
    char dir[STAGE_DIR], path[PATH_MAX + 128], way[OPT_WORD];
    uint64_t sequences = 0, tokens = 0, at;
    struct stream_reader *in;
    struct frame f;
    struct err e;

    job_tokens_dir(&r->j, dir);
    snprintf(path, sizeof(path), "%s/%s/tokens.fts", r->work_path, dir);
    if (stream_open(&in, path, &expect, &e) < 0)
        return;
    while (stream_skim(in, &f, &at, &e) > 0)
        if (f.role == ROLE_TOKENS) {
            sequences++;
            tokens += f.dims[0];
        }
    stream_close(in);
    printf("data      %llu tokens in %llu sequences, propagate %s\n",
           (unsigned long long)tokens, (unsigned long long)sequences,
           opt_word(PROPAGATE_WORDS, r->j.propagate, way));
    fflush(stdout);
    if (sequences < (uint64_t)r->j.sequences && r->progress != PROGRESS_JSON)
        warning("'%s': %llu sequences, %lld were asked for", r->text,
                (unsigned long long)sequences, (long long)r->j.sequences);
}

void summary_print(const struct request *r, const struct records *all,
                   double seconds, uint64_t peak)
{
    uint64_t after = summary_bytes(r->j.out), before = r->plan.bytes_in;
    char a[UNIT_TEXT], b[UNIT_TEXT];

    printf("%s -> %s: layout %s, group %lld, %s, method %s\n", r->model, r->out,
           job_layout_name(&r->j), (long long)job_group_word(&r->j),
           r->j.symmetric ? "symmetric" : "asymmetric",
           r->j.method == METHOD_RTN ? "rtn" : "gptq");
    printf("size      %s -> %s, %llu %%\n", size_text(a, (double)before),
           size_text(b, (double)after),
           (unsigned long long)(before ? after * 100 / before : 0));
    print_loss(r, all);
    print_kept(all);
    print_experts(all);
    if (r->j.method == METHOD_GPTQ)
        print_data(r);
    printf("cost      %s, %s of memory at most\n", span_text(a, seconds),
           size_text(b, (double)peak));
}
