/* order.c - see order.h. */
#include "shard/order.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "layout/layout.h"

/* Compare names; runs of digits as numbers, the rest by bytes. */
static int natural(const char *a, const char *b)
{
    while (*a && *b) {
        size_t na = strspn(a, "0123456789"), nb = strspn(b, "0123456789");

        if (na && nb) {
            int c;

            for (; na > 1 && *a == '0'; na--)
                a++;
            for (; nb > 1 && *b == '0'; nb--)
                b++;
            c = na != nb ? (na < nb ? -1 : 1) : strncmp(a, b, na);
            if (c)
                return c;
            a += na;
            b += nb;
        } else if (*a != *b) {
            return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
        } else {
            a++;
            b++;
        }
    }
    return *a ? 1 : *b ? -1 : 0;
}

static int compare_names(const char *a, const char *b)
{
    int c = natural(a, b);

    return c ? c : strcmp(a, b); /* natural("1", "01") is 0 */
}

int order_compare(const void *a, const void *b)
{
    const struct out_tensor *x = a, *y = b;
    bool last_x = x->layer < 0, last_y = y->layer < 0;

    return last_x != last_y ? last_x - last_y : compare_names(x->name, y->name);
}

/* ---- what has come ---- */

static int by_text(const void *a, const void *b)
{
    return compare_names(*(char *const *)a, *(char *const *)b);
}

int arrival_open(struct arrival *a, const struct model_config *config,
                 bool in_order, struct err *e)
{
    struct linear l;

    a->in_order = in_order;
    for (int64_t layer = 0; layer < config->n_layers; layer++)
        for (int64_t i = 0; i < model_linear_count(config, layer); i++) {
            model_linear(config, layer, i, &l);
            if (names_add(&a->due, l.module, strlen(l.module), e))
                return e->code;
        }
    a->come = mem_zero(a->due.n + 1, sizeof(*a->come), "linears", e);
    if (!a->come)
        return e->code;
    if (a->due.n)
        qsort(a->due.item, a->due.n, sizeof(*a->due.item), by_text);
    return 0;
}

/* All of the linear is there. */
static void mark(struct arrival *a, const char *module)
{
    char **at = a->due.n ? bsearch(&module, a->due.item, a->due.n,
                                   sizeof(*a->due.item), by_text) :
                           NULL;

    if (at)
        a->come[at - a->due.item] = true;
    while (a->first < a->due.n && a->come[a->first])
        a->first++;
}

void arrival_add(struct arrival *a, const struct out_tensor *t)
{
    size_t n = strlen(t->name), tail = strlen(".weight");
    bool part = t->layer >= 0 && layout_is_part(t->name, &n);
    char module[MODULE_PATH_MAX];

    if (!part && n > tail && !strcmp(t->name + n - tail, ".weight"))
        n -= tail;
    if (n >= sizeof(module))
        return;
    memcpy(module, t->name, n);
    module[n] = 0;
    if (!part) {
        mark(a, module);
        return;
    }
    if (!strcmp(module, a->module))
        return;
    mark(a, a->module); /* it has no more parts */
    strcpy(a->module, module);
    while (a->in_order && a->first < a->due.n &&
           (a->come[a->first] ||
            tensor_name_layer(a->due.item[a->first]) < t->layer))
        a->first++;
}

bool arrival_passed(const struct arrival *a, const struct out_tensor *t)
{
    return t->layer >= 0 && (a->first == a->due.n ||
                             natural(t->name, a->due.item[a->first]) < 0);
}

void arrival_release(struct arrival *a)
{
    names_release(&a->due);
    free(a->come);
}
