/* bits.c - see bits.h. */
#include "forge/bits.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch/lacks.h"
#include "common/io/file.h"
#include "common/io/hash.h"
#include "forge/stage_tools.h"
#include "gptq/bits/errors.h"

/* Tokens that costs are estimated from. */
enum { BITS_TOKENS = 8192, TRIES = BITS_GRIDS - 1 };

struct tries {
    char word[TRIES][WORD];
    int n;
};

/* The grids beside the default: groups of 128, 64 and 32, with zeros and without if
 * --asym allows them, and 8 bits. */
static void list_tries(const struct job *j, struct tries *t)
{
    static const int64_t groups[] = { 128, 64, 32 };

    t->n = 0;
    snprintf(t->word[t->n++], WORD, "8bit,sym");
    if (j->layout == JOB_GGUF)
        return;
    for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
        if (groups[i] != j->group)
            snprintf(t->word[t->n++], WORD, "%" PRId64, groups[i]);
        if (!j->symmetric)
            snprintf(t->word[t->n++], WORD, "%" PRId64 ",sym", groups[i]);
    }
}

/* ---- checks ---- */

/* The least bits for each weight. */
static double least_bits(const struct job *j, const struct model_config *c)
{
    const struct module_choice choice = job_choice(j);
    double bits = 0, weights = 0;
    struct tries t;
    struct linear l;

    list_tries(j, &t);
    for (int64_t layer = 0; layer < c->n_layers; layer++)
        for (int64_t i = 0; i < model_linear_count(c, layer); i++) {
            struct module_grid g = { (uint64_t)j->group, j->symmetric, 4 };
            double least;

            model_linear(c, layer, i, &l);
            if (!module_chosen(&choice, l.module))
                continue;
            least = bits_taken(g, (uint64_t)l.rows, (uint64_t)l.cols);
            for (int k = 0; k < t.n; k++) {
                char rule[WORD + 2];
                const char *one = rule;
                const struct grid_rules rules = { &one, 1, (uint64_t)j->group,
                                                  j->symmetric };
                double taken;

                snprintf(rule, sizeof(rule), "*=%s", t.word[k]);
                g = grid_rules_find(&rules, l.module);
                taken = bits_taken(g, (uint64_t)l.rows, (uint64_t)l.cols);
                if ((uint64_t)l.cols % g.group == 0 && taken < least)
                    least = taken;
            }
            bits += least;
            weights += (double)l.rows * (double)l.cols;
        }
    return weights > 0 ? bits / weights : 0;
}

int bits_check(const struct request *r, struct err *e)
{
    const struct job *j = &r->j;
    struct model_config c;
    double least;

    if (r->bits <= 0)
        return 0;
    if (j->method == METHOD_RTN || j->grids.n || r->grids.count)
        return err_set(e, E_USAGE, "--bits: %s",
                       j->method == METHOD_RTN ?
                           "--method rtn has no text to measure costs on" :
                           "--grid says the grids itself");
    if (j->layout == LAYOUT_AWQ)
        return err_set(e, E_CONFIG,
                       "--bits: a checkpoint in layout awq has one grid");
    if (j->layout == JOB_GGUF && (!j->symmetric || j->group != 32))
        return err_set(e, E_CONFIG,
                       "--bits: with layout gguf it chooses between Q4_0 and "
                       "Q8_0: leave out --asym and --group");
    if (job_config(j, &c, e) < 0)
        return e->code;
    least = least_bits(j, &c);
    model_config_release(&c);
    return r->bits >= least - 1e-6 ?
               0 :
               err_set(e, E_CONFIG,
                       "--bits %g: the least of the grids is %.4f bits for "
                       "each weight, scales included",
                       r->bits, least);
}

/* ---- the pipes ---- */

static void add_tokens(struct stage *s)
{
    const struct job *j = &s->j;
    int64_t n = (BITS_TOKENS + j->seqlen - 1) / j->seqlen;

    pipes_init(&s->p);
    s->p.captured = true;
    command_add(pipes_add(&s->p, "forge-tokens"), "-q", "--sequences",
                number_word(s->counts[1], n < j->sequences ? n : j->sequences),
                "--seqlen", number_word(s->counts[2], j->seqlen), j->model,
                j->text, NULL);
}

static int make_fisher(struct stage *s, const char *fisher, struct err *e)
{
    struct command *gradient, *hessian;

    add_tokens(s);
    if (stage_gradients(s, &gradient, &hessian, e) < 0)
        return e->code;
    command_add(gradient, s->j.model, NULL);
    command_add(hessian, "-o", fisher, NULL);
    return pipes_run(&s->p, e);
}

/* Weights of all linears: those that are left as they are may stand for others. */
static void add_weights(struct stage *s)
{
    struct command *c = stage_tool(s, "forge-weights");

    if (s->kv_b)
        command_add(c, "--modules", "*", NULL);
    command_add(c, "--join", s->j.model, NULL);
}

/* The model runs as it is; the Hessians of each layer meet its weights.  fisher:
 * NULL: none. */
static int make_rules(struct stage *s, double bits, const char *fisher,
                      const char *path, struct err *e)
{
    const struct job *j = &s->j;
    struct command *c;
    struct tries t;

    list_tries(j, &t);
    snprintf(s->counts[4], WORD, "%.9g", bits);
    add_tokens(s);
    command_add(stage_calib(s), j->model, NULL);
    command_add(stage_hessian(s), "--skip-tokens", "1", NULL);
    add_weights(s);
    c = stage_tool(s, "forge-bits");
    stage_choice(s, c);
    command_add(c, "--bits", s->counts[4], "--group",
                number_word(s->counts[3], j->group), NULL);
    if (!j->symmetric)
        command_add(c, "--asymmetric", NULL);
    for (int i = 0; i < t.n; i++)
        command_add(c, "--try", t.word[i], NULL);
    if (fisher)
        command_add(c, "--fisher", fisher, NULL);
    command_add(c, "-o", path, j->model, NULL);
    return pipes_run(&s->p, e);
}

/* Whether gradients say what an error costs: the family has them. */
static int find_gradients(const struct job *j, bool *are, struct err *e)
{
    struct model_config c;

    if (model_config_read(&c, j->model, e) < 0)
        return e->code;
    *are = !model_gradient_lacks(&c, j->seqlen);
    model_config_release(&c);
    return 0;
}

static int make(const struct request *r, const char *path, struct err *e)
{
    char fisher[PATH_MAX + 16];
    struct stage *s = mem_zero(1, sizeof(*s), "bits", e);
    bool gradients = false;
    int rc;

    if (!s)
        return e->code;
    s->j = r->j;
    s->kv_b = r->plan.kv_b;
    number_word(s->threads, r->j.threads);
    number_word(s->memory, (int64_t)r->j.gpu_memory);
    snprintf(fisher, sizeof(fisher), "%s.fisher", path);
    /* steps have their temporary files there, too */
    rc = setenv("TMPDIR", r->work_path, 1) ?
             err_set(e, E_TEMP, "out of memory") :
             find_gradients(&r->j, &gradients, e);
    if (!rc && gradients)
        rc = make_fisher(s, fisher, e);
    if (!rc)
        rc = make_rules(s, r->bits, gradients ? fisher : NULL, path, e);
    unlink(fisher);
    free(s);
    return rc > 0 ? err_set(e, E_BUG, "a step ended with 1") : rc;
}

/* ---- the rules ---- */

/* The last line: the hash of those before it. */
#define SEAL "#xxh3 %016" PRIx64 "\n"
enum { SEAL_LEN = 6 + 16 + 1, RULES_MAX = 1 << 24 };

static int seal(const char *path, struct err *e)
{
    char *text, *sealed = NULL;
    size_t len;
    int n, rc = file_slurp(&text, &len, path, RULES_MAX - SEAL_LEN, e);

    if (rc)
        return rc;
    n = asprintf(&sealed, "%s" SEAL, text, XXH3_64bits(text, len));
    rc = n < 0 ? err_set(e, E_TEMP, "bits: out of memory") :
                 publish_text(path, sealed, (size_t)n, e);
    if (n >= 0)
        free(sealed);
    free(text);
    return rc;
}

/* *text = the rules, to be freed; NULL: there are none that are whole. */
static int read_rules(const char *path, char **text, struct err *e)
{
    char last[SEAL_LEN + 1];
    size_t len;
    int rc = file_slurp(text, &len, path, RULES_MAX, e);

    if (rc) {
        *text = NULL;
        return rc == E_NOINPUT ? 0 : rc;
    }
    if (len >= SEAL_LEN) {
        len -= SEAL_LEN;
        snprintf(last, sizeof(last), SEAL, XXH3_64bits(*text, len));
        if (!strcmp(*text + len, last)) {
            (*text)[len] = 0;
            return 0;
        }
    }
    free(*text);
    *text = NULL;
    return 0;
}

static int take(struct request *r, char *text, struct err *e)
{
    char *line, *next;
    int rc = 0;

    for (line = text; !rc && *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next)
            *next++ = 0;
        if (*line == '#' && !r->quiet && r->progress != PROGRESS_JSON)
            remark("bits:%s", line + 1);
        else if (*line != '#' && (rc = grid_rule_check(line, e)) == 0)
            rc = globs_add(&r->j.grids, line, e);
    }
    return rc;
}

int bits_settle(struct request *r, struct err *e)
{
    char path[PATH_MAX], *text;
    int rc;

    if (keys_bits(r, path, e) < 0 || read_rules(path, &text, e) < 0)
        return e->code;
    if (!text) {
        rc = make(r, path, e);
        if (!rc && inputs_same(&r->j.in, r->j.model, r->j.text, e) < 0) {
            unlink(path);
            rc = e->code;
        }
        if (!rc)
            rc = seal(path, e);
        if (!rc)
            rc = read_rules(path, &text, e);
        if (rc)
            return rc;
    }
    rc = text ? take(r, text, e) : err_set(e, E_DATA, "it is not whole");
    free(text);
    return rc ? err_prefix(e, "'%s'", path) : check_model(r, e);
}
