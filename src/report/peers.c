/* peers.c - see peers.h. */
#include "report/peers.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const struct figures *figures_whole(const struct records *r)
{
    const struct figures *last = NULL;

    for (size_t i = 0; i < r->n_figures; i++)
        if (!last || r->figures[i].layer < 0 || last->layer >= 0)
            last = &r->figures[i];
    return last;
}

const char *peers_file(const char *arg)
{
    size_t n = strcspn(arg, "=");

    return n && n < PEER_NAME && arg[n] && arg[n + 1] ? arg + n + 1 : NULL;
}

int peers_new(const char *const *arg, int i, struct err *e)
{
    size_t n = strcspn(arg[i], "=");

    for (int k = 0; k < i; k++)
        if (strcspn(arg[k], "=") == n && !strncmp(arg[k], arg[i], n))
            return err_set(e, E_USAGE, "--compare: '%.*s' is given twice",
                           (int)n, arg[i]);
    return 0;
}

int peers_add(struct peers *p, const char *arg, struct err *e)
{
    const char *file = peers_file(arg);
    struct peer *to = &p->peer[p->count];

    if (!file)
        return err_set(e, E_USAGE, "'%s': want NAME=FILE", arg);
    if (p->count == PEERS_MAX)
        return err_set(e, E_USAGE, "more than %d checkpoints beside the run",
                       PEERS_MAX);
    p->count++;
    snprintf(to->name, sizeof(to->name), "%.*s", (int)(file - 1 - arg), arg);
    if (records_read(&to->figures, RECORD_FIGURES, file, e) < 0)
        return e->code;
    if (!to->figures.n_figures)
        return err_set(e, E_DATA, "'%s': no figures in it", file);
    return 0;
}

/* The perplexity of the original is that of the same model on the same tokens,
 * up to the order of sums; that of another type differs by more. */
static bool same_original(const struct figures *a, const struct figures *b)
{
    return a->tokens == b->tokens &&
           (!*a->sha256 || !*b->sha256 || !strcmp(a->sha256, b->sha256)) &&
           !(fabs(a->ppl_original - b->ppl_original) > 1e-3 * a->ppl_original);
}

int peers_check(const struct peers *p, const struct records *run, struct err *e)
{
    const struct figures *ours = figures_whole(run), *f;

    if (!p->count)
        return 0;
    if (!ours)
        return err_set(e, E_DATA,
                       "the run itself was not evaluated: nothing to show "
                       "'%s' beside",
                       p->peer[0].name);
    for (size_t i = 0; i < p->count; i++) {
        f = figures_whole(&p->peer[i].figures);
        if (!same_original(ours, f))
            return err_set(e, E_DATA,
                           "'%s' was evaluated on other tokens or another "
                           "model: %" PRId64 " tokens, perplexity of the "
                           "original %.6g, here %" PRId64 ", %.6g",
                           p->peer[i].name, f->tokens, f->ppl_original,
                           ours->tokens, ours->ppl_original);
    }
    return 0;
}

void peers_release(struct peers *p)
{
    for (size_t i = 0; i < p->count; i++)
        records_release(&p->peer[i].figures);
}
