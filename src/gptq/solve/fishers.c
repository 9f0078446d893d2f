/* fishers.c - see fishers.h. */
#include "gptq/solve/fishers.h"

#include <stdlib.h>

#include "arch/tensor_name.h"
#include "gptq/hessian_file.h"
#include "gptq/solve/solve_cost.h"

enum { KEPT = 3 }; /* gate, up and down of a layer's experts */

struct fishers {
    struct hessian_file *file;
    struct loaded {
        const struct hessian_entry *entry;
        float *data;
    } * loaded; /* [n] */
    int n;
    bool experts; /* they are all of experts */
};

int fishers_open(struct fishers **out, const char *path, struct err *e)
{
    struct fishers *f;

    *out = NULL;
    if (!path)
        return 0;
    f = mem_zero(1, sizeof(*f), "solve", e);
    if (!f)
        return e->code;
    if (hessian_file_open(&f->file, path, NULL, e) < 0) {
        free(f);
        return e->code;
    }
    f->experts = true;
    *out = f;
    return 0;
}

static void drop(struct fishers *f)
{
    while (f->n > 0)
        free(f->loaded[--f->n].data);
    f->experts = true;
}

void fishers_close(struct fishers *f)
{
    if (!f)
        return;
    drop(f);
    free(f->loaded);
    hessian_file_close(f->file);
    free(f);
}

const char *fishers_head(const struct fishers *f)
{
    return f ? hessian_file_head(f->file) : NULL;
}

bool fishers_have(const struct fishers *f, const char *module)
{
    return f && hessian_file_has(f->file, module);
}

int fishers_get(struct fishers *f, const char *module, uint64_t rows,
                const float **fisher, struct err *e)
{
    struct hessian_entry *entry;
    struct loaded *l;

    if (hessian_file_find(f->file, module, rows, &entry, e) < 0)
        return e->code;
    if (entry->block)
        return err_set(e, E_DATA, "'%s': blocks of moments are too little",
                       entry->name);
    for (int i = 0; i < f->n; i++)
        if (f->loaded[i].entry == entry) {
            *fisher = f->loaded[i].data;
            return 0;
        }
    if (mem_grow(&f->loaded, ((size_t)f->n + 1) * sizeof(*l), "solve", e) < 0)
        return e->code;
    l = &f->loaded[f->n];
    if (hessian_file_load(f->file, entry, &l->data, e) < 0)
        return e->code;
    (void)hessian_file_add_prior(entry, HESSIAN_PRIOR, l->data);
    l->entry = entry;
    f->n++;
    f->experts &= tensor_name_is_expert(module);
    *fisher = l->data;
    return 0;
}

void fishers_done(struct fishers *f)
{
    if (f->n > KEPT || !f->experts)
        drop(f);
}

int fishers_sweeps(int asked, enum effort effort, const char *module)
{
    if (asked >= 0)
        return asked;
    if (tensor_name_is_expert(module))
        return FISHER_SWEEPS_EXPERT;
    return effort == EFFORT_BEST ? FISHER_SWEEPS_BEST : FISHER_SWEEPS_DEFAULT;
}
