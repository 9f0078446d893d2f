/* parallel.c - see parallel.h. */
#include "pack/parallel.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PARALLEL_MAX = 64 /* devices, at most */ };

/* The linears of one name in all layers and experts:
 * "mlp.experts.*.down_proj". */
struct kind {
    char name[MODULE_PATH_MAX];
    struct linear linear; /* one of them */
};

struct kinds {
    struct kind *item;
    size_t n, cap;
};

/* Bit k is set: the linear can be cut over 2^k devices, with this group
 * size. */
static unsigned linear_bits(const struct model_config *c,
                            const struct linear *l, uint64_t group)
{
    unsigned bits = 0;

    for (unsigned k = 0; 1 << k <= PARALLEL_MAX; k++) {
        uint64_t n = (uint64_t)1 << k;

        if ((uint64_t)l->cols % (n * group) == 0 &&
            (l->part != PART_O || (uint64_t)c->n_heads % n == 0))
            bits |= 1u << k;
    }
    return bits;
}

/* The path inside the layer, an expert's number replaced by a star. */
static void name_kind(char name[MODULE_PATH_MAX], const struct linear *l)
{
    const char *p = l->module;
    size_t n = 0;

    for (int dots = 0; *p && dots < 3; p++)
        dots += *p == '.';
    while (*p && n + 1 < MODULE_PATH_MAX) {
        size_t digits =
            l->expert >= 0 && p[-1] == '.' ? strspn(p, "0123456789") : 0;

        name[n++] = digits ? '*' : *p;
        p += digits ? digits : 1;
    }
    name[n] = 0;
}

static int add(struct kinds *all, const struct linear *l, struct err *e)
{
    struct kind k = { .linear = *l };

    if (l->part != PART_O && l->part != PART_DOWN)
        return 0;
    name_kind(k.name, l);
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(all->item[i].name, k.name) &&
            all->item[i].linear.cols == l->cols)
            return 0;
    if (all->n == all->cap) {
        size_t cap = 2 * all->cap + 8;

        if (mem_grow(&all->item, cap * sizeof(*all->item), "kinds", e))
            return e->code;
        all->cap = cap;
    }
    all->item[all->n++] = k;
    return 0;
}

/* The kinds of all layers; of experts the first one is enough. */
static int collect(struct kinds *all, const struct model_config *c,
                   struct err *e)
{
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        int64_t n = model_linear_count(c, layer);

        for (int64_t i = 0; i < n; i++) {
            struct linear l;

            model_linear(c, layer, i, &l);
            if (l.expert > 0)
                break;
            if (add(all, &l, e))
                return e->code;
        }
    }
    return 0;
}

static void print_sizes(FILE *out, unsigned bits)
{
    for (unsigned k = 0; 1 << k <= PARALLEL_MAX; k++)
        if (bits & 1u << k)
            fprintf(out, " %d", 1 << k);
    fputs(bits ? "\n" : " none\n", out);
}

static unsigned common_bits(const struct kinds *all,
                            const struct model_config *c, uint64_t group)
{
    unsigned bits = ~0u;

    for (size_t i = 0; i < all->n; i++)
        bits &= linear_bits(c, &all->item[i].linear, group);
    return bits;
}

int parallel_print(FILE *out, const struct model_config *c, uint64_t group,
                   struct err *e)
{
    static const uint64_t usual[] = { 128, 64, 32 };
    struct kinds all = { 0 };
    int rc = collect(&all, c, e), wide = 12;

    for (size_t i = 0; !rc && i < all.n; i++)
        if ((int)strlen(all.item[i].name) > wide)
            wide = (int)strlen(all.item[i].name);
    if (!rc)
        fprintf(out, "%-*s %7s  tensor-parallel sizes, group %" PRIu64 "\n",
                wide, "linear", "inputs", group);
    for (size_t i = 0; !rc && i < all.n; i++) {
        const struct kind *k = &all.item[i];

        fprintf(out, "%-*s %7" PRId64 " ", wide, k->name, k->linear.cols);
        print_sizes(out, linear_bits(c, &k->linear, group));
    }
    if (!rc) {
        fprintf(out, "%-*s %7s ", wide, "all", "");
        print_sizes(out, common_bits(&all, c, group));
    }
    for (size_t i = 0; !rc && i < ARRAY_LEN(usual); i++)
        if (usual[i] != group) {
            fprintf(out, "all with group %-*" PRIu64 " ", wide - 7, usual[i]);
            print_sizes(out, common_bits(&all, c, usual[i]));
        }
    free(all.item);
    return rc;
}
