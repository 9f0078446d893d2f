/* gridrules.c - see gridrules.h. */
#include "arch/gridrules.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/math/quant.h"

enum { GROUP_LEAST = 8, GROUP_MOST = GROUP_ALL };

struct grid {
    uint64_t group; /* 0: not said */
    int symmetric;  /* -1: not said */
    int bits;       /* 0: not said */
};

/* The next word of a rule into *g; false: it is none, or another has said that. */
static bool word(const char **at, struct grid *g)
{
    size_t n = strcspn(*at, ",");
    const char *text = *at;
    const struct grid said = *g;
    char *end;

    *at += n + (text[n] == ',');
    if (n == 4 && (*text == '4' || *text == '8') &&
        !memcmp(text + 1, "bit", 3)) {
        g->bits = *text - '0';
        return !said.bits;
    }
    if ((n == 3 && !strncmp(text, "sym", n)) ||
        (n == 4 && !strncmp(text, "asym", n))) {
        g->symmetric = n == 3;
        return said.symmetric < 0;
    }
    if (n == 2 && !strncmp(text, "-1", n)) {
        g->group = GROUP_ALL;
        return !said.group;
    }
    if (*text < '0' || *text > '9')
        return false;
    g->group = strtoul(text, &end, 10);
    return end == text + n && !said.group && g->group >= GROUP_LEAST &&
           g->group <= GROUP_MOST;
}

/* Split a rule; false: it is none. */
static bool parse(const char *rule, char glob[MODULE_PATH_MAX], struct grid *g)
{
    const char *equals = strrchr(rule, '='), *at = equals ? equals + 1 : "";
    size_t n = equals ? (size_t)(equals - rule) : 0;

    *g = (struct grid){ .symmetric = -1 };
    if (!n || n >= MODULE_PATH_MAX || !*at)
        return false;
    memcpy(glob, rule, n);
    glob[n] = 0;
    while (*at)
        if (!word(&at, g))
            return false;
    return true;
}

int grid_rule_check(const char *rule, struct err *e)
{
    char glob[MODULE_PATH_MAX];
    struct grid g;

    return parse(rule, glob, &g) ?
               0 :
               err_set(
                   e, E_USAGE,
                   "--grid: '%.200s': want PATTERN=WORD[,WORD]... with words "
                   "4bit or 8bit, sym or asym, and the number of inputs per "
                   "scale, %d to %d or -1",
                   rule, GROUP_LEAST, GROUP_MOST);
}

static bool matches(const char *rule, const char *module, struct grid *g)
{
    char glob[MODULE_PATH_MAX];

    return parse(rule, glob, g) && fnmatch(glob, module, 0) == 0;
}

struct module_grid grid_rules_find(const struct grid_rules *r, const char *name)
{
    struct module_grid of = { r->group, r->symmetric, 4 };
    char module[MODULE_PATH_MAX];
    struct name_rows rows;
    struct grid g;
    size_t len;

    (void)name_rows_of(name, &len, &rows);
    snprintf(module, sizeof(module), "%.*s", (int)len, name);
    for (int i = 0; i < r->n; i++)
        if (matches(r->rule[i], module, &g)) {
            of.group = g.group ? g.group : of.group;
            of.symmetric = g.symmetric >= 0 ? g.symmetric : of.symmetric;
            of.bits = g.bits ? g.bits : of.bits;
        }
    return of;
}

bool grid_rules_any(const struct grid_rules *r, bool symmetric)
{
    char glob[MODULE_PATH_MAX];
    struct grid g;

    for (int i = 0; i < r->n; i++)
        if (parse(r->rule[i], glob, &g) && g.symmetric == (int)symmetric)
            return true;
    return r->symmetric == symmetric;
}

/* ---- checks ---- */

int grid_options(int64_t *group, const char *const *rule, int n, struct err *e)
{
    if (*group == -1)
        *group = GROUP_ALL;
    if (*group < GROUP_LEAST || *group > GROUP_MOST)
        return err_set(e, E_USAGE, "--group: want -1, or %d to %d", GROUP_LEAST,
                       GROUP_MOST);
    for (int i = 0; i < n; i++)
        if (grid_rule_check(rule[i], e))
            return e->code;
    return 0;
}

static int check_linear(const struct grid_rules *r, const struct linear *l,
                        bool *used, struct err *e)
{
    uint64_t group = grid_rules_find(r, l->module).group;
    struct grid g;

    for (int i = 0; i < r->n; i++)
        used[i] |= matches(r->rule[i], l->module, &g);
    if (group != r->group && group != GROUP_ALL && (uint64_t)l->cols % group)
        return err_set(e, E_CONFIG,
                       "--grid: '%s' has %" PRId64 " inputs, no multiple of "
                       "%" PRIu64,
                       l->module, l->cols, group);
    return 0;
}

static int check_layer(const struct grid_rules *r,
                       const struct module_choice *ch,
                       const struct model_config *c, int64_t layer, bool *used,
                       struct err *e)
{
    struct linear first[FUSED_KINDS], l;
    bool seen[FUSED_KINDS] = { false };

    for (int64_t i = 0; i < model_linear_count(c, layer); i++) {
        enum fused kind;

        model_linear(c, layer, i, &l);
        if (!module_chosen(ch, l.module))
            continue;
        if (check_linear(r, &l, used, e))
            return e->code;
        kind = linear_fused(&l);
        if (kind == FUSED_NONE)
            continue;
        if (!seen[kind])
            first[kind] = l;
        seen[kind] = true;
        if (!module_grid_same(grid_rules_find(r, first[kind].module),
                              grid_rules_find(r, l.module)))
            return err_set(e, E_CONFIG,
                           "--grid: '%s' and '%s' differ: runtimes load %s, "
                           "and want them alike",
                           first[kind].module, l.module, fused_words(kind));
    }
    return 0;
}

int grid_rules_check(const struct grid_rules *r, const struct module_choice *ch,
                     const struct model_config *c, struct err *e)
{
    bool *used = mem_zero((size_t)r->n + 1, sizeof(*used), "rules", e);
    int rc = used ? 0 : e->code;

    for (int64_t layer = 0; layer < c->n_layers && !rc; layer++)
        rc = check_layer(r, ch, c, layer, used, e);
    for (int i = 0; i < r->n && !rc; i++)
        if (!used[i])
            rc = err_set(e, E_CONFIG,
                         "--grid: '%.200s' matches none of the linears that "
                         "are quantized",
                         r->rule[i]);
    free(used);
    return rc;
}
