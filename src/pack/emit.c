/* emit.c - see emit.h. */
#include "pack/emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/runfacts.h"

int emit_tensors(struct stream_writer *out, const char *module,
                 const struct packed_tensor *t, int n, struct err *e)
{
    struct frame f = { .role = ROLE_TENSOR };

    for (int i = 0; i < n; i++) {
        if ((size_t)snprintf(f.name, sizeof(f.name), "%s.%s", module,
                             t[i].part) >= sizeof(f.name))
            return err_set(e, E_DATA, "%s: name is too long", module);
        f.dtype = t[i].dtype;
        f.ndim = t[i].ndim;
        memcpy(f.dims, t[i].dims, sizeof(t[i].dims));
        f.data = t[i].data;
        f.len = t[i].len;
        if (stream_write(out, &f, e))
            return e->code;
    }
    return 0;
}

int emit_weight(struct stream_writer *out, const struct frame *f, struct err *e)
{
    struct frame t = *f;
    size_t n = strlen(f->name);

    if (n + sizeof(".weight") > sizeof(t.name))
        return err_set(e, E_DATA, "%s: name is too long", f->name);
    strcpy(t.name + n, ".weight");
    t.role = ROLE_TENSOR;
    return stream_write(out, &t, e);
}

int emit_rounded(struct stream_writer *out, const char *module, struct err *e)
{
    static const char text[] = "{\"method\":\"rtn\"}";
    struct frame f = { .role = ROLE_NOTE,
                       .dtype = DT_U8,
                       .ndim = 1,
                       .dims = { sizeof(text) - 1 },
                       .data = text,
                       .len = sizeof(text) - 1 };

    snprintf(f.name, sizeof(f.name), "%s", module);
    return stream_write(out, &f, e);
}

int emit_run_note(struct stream_writer *out, struct pack_run *run, bool last,
                  struct err *e)
{
    struct run_facts facts = { .layout = run->layout,
                               .bits = run->bits,
                               .group = run->group,
                               .symmetric = run->symmetric,
                               .scale_dtype = run->scale_dtype,
                               .act_order = run->act_order > 0,
                               .capability = run->capability };
    const struct pack_kind *most = run->kind;
    struct frame f = {
        .role = ROLE_NOTE, .dtype = DT_U8, .ndim = 1, .name = RUN_NOTE
    };
    char *text = NULL;
    int rc;

    if (!run->modules ||
        (last ? run->told && run->told_order == run->act_order : run->mixed))
        return 0;
    run->told = true;
    run->told_order = run->act_order;
    for (int i = 1; run->mixed && i < run->n_kinds; i++) {
        const struct pack_kind *k = &run->kind[i];

        /* GPTQ and AWQ have zeros in any case, and one word about them */
        facts.mixed |= k->group != run->kind->group ||
                       k->bits != run->kind->bits || run->layout == LAYOUT_CT;
        most = k->modules > most->modules ? k : most;
    }
    if (facts.mixed) {
        facts.bits = most->bits;
        facts.group = most->group;
        if (run->layout == LAYOUT_CT)
            facts.symmetric = most->symmetric;
    }
    if (run_facts_write(&facts, &text, e))
        return e->code;
    f.data = text;
    f.len = f.dims[0] = strlen(text);
    rc = stream_write(out, &f, e);
    free(text);
    return rc;
}
