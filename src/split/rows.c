/* rows.c - see rows.h. */
#include "split/rows.h"

#include <stdlib.h>
#include <string.h>

#include "arch/tensor_name.h"
#include "common/math/sample.h"

/* The frames of a module, in the order in which they come and go. */
enum { CODES, GRIDS, NOTE, SECONDS, FRAMES };
enum { LOSSES = 3 };
static const char *const loss_key[LOSSES] = { "loss", "loss_rtn", "loss_gptq" };

struct joined {
    char name[FRAME_NAME_MAX + 1];
    struct frame frame[FRAMES]; /* of the first rows; then of all */
    char *data[FRAMES];         /* payloads of CODES and GRIDS */
    struct json_doc *note;      /* of the first rows */
    struct json_writer text[2]; /* the notes of all */
    double *tile[LOSSES];       /* [tiles]: NAN: not measured */
    size_t tiles[LOSSES];
    uint64_t of, rows; /* rows of the module; those whose frames have come */
    uint64_t kept;
    double seconds;
    int have; /* frames of the rows that are coming */
};

static void release(struct joined *j)
{
    for (int i = 0; i < FRAMES; i++)
        free(j->data[i]);
    for (int i = 0; i < LOSSES; i++)
        free(j->tile[i]);
    free(j->text[0].text);
    free(j->text[1].text);
    json_free(j->note);
    *j = (struct joined){ 0 };
}

void rows_release(struct rows *r)
{
    for (size_t i = 0; i < r->count; i++)
        release(&r->module[i]);
    free(r->module);
    *r = (struct rows){ 0 };
}

/* Which of the frames f is; FRAMES: none. */
static int kind_of(const struct frame *f)
{
    return f->role == ROLE_CODES ? CODES :
           f->role == ROLE_QMETA ? GRIDS :
           f->role != ROLE_NOTE  ? FRAMES :
           f->ancillary          ? SECONDS :
                                   NOTE;
}

static struct joined *find(struct rows *r, const char *module, uint64_t of,
                           struct err *e)
{
    struct joined *j = r->module;

    for (; j < r->module + r->count; j++)
        if (!strcmp(j->name, module))
            return j;
    if (mem_grow(&r->module, (r->count + 1) * sizeof(*j), "rows", e) < 0)
        return NULL;
    j = &r->module[r->count++];
    *j = (struct joined){ .of = of };
    strcpy(j->name, module);
    return j;
}

/* Append the payload, and the rows, of codes or grids. */
static int append(struct joined *j, int kind, const struct frame *f,
                  struct err *e)
{
    struct frame *to = &j->frame[kind];
    size_t have = to->len;

    if (!have) {
        *to = *f;
        memcpy(to->name, j->name, sizeof(to->name));
        to->dims[0] = to->len = 0;
        to->passed = false;
    }
    if (f->ndim != 2 || f->dtype != to->dtype || f->dims[1] != to->dims[1] ||
        f->group != to->group || f->scale_dtype != to->scale_dtype)
        return err_set(e, E_DATA, "'%s': does not fit the rows before",
                       f->name);
    if (mem_grow(&j->data[kind], have + f->len + 1, f->name, e) < 0)
        return e->code;
    memcpy(j->data[kind] + have, f->data, f->len);
    to->len = have + f->len;
    to->dims[0] += f->dims[0];
    to->data = j->data[kind];
    return 0;
}

static int append_tiles(struct joined *j, const struct json *note,
                        struct err *e)
{
    const struct json *tiles = json_get(note, "tiles");

    for (int i = 0; i < LOSSES; i++)
        for (const struct json *v = json_first(json_get(tiles, loss_key[i])); v;
             v = json_after(v)) {
            double x = NAN;

            if (!json_number(v, &x))
                x = NAN;
            if (mem_grow(&j->tile[i], (j->tiles[i] + 1) * sizeof(x), "rows",
                         e) < 0)
                return e->code;
            j->tile[i][j->tiles[i]++] = x;
        }
    return j->tiles[1] == j->tiles[0] && j->tiles[2] == j->tiles[0] ?
               0 :
               err_set(e, E_DATA, "tiles of different numbers");
}

static int take_note(struct joined *j, int kind, const struct frame *f,
                     struct err *e)
{
    struct json_doc *d;
    int64_t kept = 0;
    double seconds = 0;
    int rc = 0;

    if (json_parse(&d, f->data, f->len, f->name, e) < 0)
        return e->code;
    if (kind == SECONDS &&
        json_number(json_get(json_root(d), "seconds"), &seconds))
        j->seconds += seconds;
    if (kind == NOTE) {
        if (json_int(json_get(json_root(d), "rows_kept"), &kept) && kept > 0)
            j->kept += (uint64_t)kept;
        rc = append_tiles(j, json_root(d), e);
    }
    if (kind == NOTE && !j->note)
        j->note = d;
    else
        json_free(d);
    return rc < 0 ? err_prefix(e, "'%s'", f->name) : 0;
}

int rows_take(struct rows *r, const struct frame *f, struct err *e)
{
    char module[FRAME_NAME_MAX + 1];
    int kind = kind_of(f), rc;
    struct name_rows at;
    struct joined *j;
    size_t len;

    if (kind == FRAMES || !name_rows_of(f->name, &len, &at))
        return 0;
    memcpy(module, f->name, len);
    module[len] = 0;
    j = find(r, module, at.of, e);
    if (!j)
        return e->code;
    if (kind != j->have || at.first != j->rows || at.of != j->of ||
        (kind <= GRIDS && f->dims[0] != at.end - at.first))
        return err_set(e, E_DATA, "'%s': comes where row %llu of %llu should",
                       f->name, (unsigned long long)j->rows,
                       (unsigned long long)j->of);
    rc = kind <= GRIDS ? append(j, kind, f, e) : take_note(j, kind, f, e);
    if (rc < 0)
        return rc;
    if (++j->have == FRAMES) {
        j->have = 0;
        j->rows = at.end;
    }
    if (j->rows == j->of) {
        r->done = j;
        r->next = 0;
    }
    return 1;
}

/* ---- the notes of all rows ---- */

static void put_losses(struct json_writer *w, const struct joined *j)
{
    for (int i = 0; i < LOSSES; i++) {
        struct sample s = { 0 };
        double x;

        for (size_t t = 0; t < j->tiles[0]; t++) {
            uint64_t left = j->of - t * SAMPLE_ROWS;

            sample_add(&s, j->tile[0][t], j->tile[i][t],
                       left < SAMPLE_ROWS ? left : SAMPLE_ROWS);
        }
        x = i ? sample_estimate(&s) : s.all;
        if (i < 2 || x > 0)
            jw_key(w, loss_key[i]), jw_number(w, x);
    }
}

/* forge-solve's members in its order (gptq/solve/module_report.c). */
static int make_notes(struct joined *j, struct err *e)
{
    struct json_writer *w = &j->text[0], *t = &j->text[1];

    jw_init(w, 0);
    jw_begin(w, '{');
    for (const struct json *v = json_first(json_root(j->note)); v;
         v = json_after(v)) {
        const char *key = json_key(v);

        if (!strcmp(key, "tiles")) {
            put_losses(w, j);
        } else if (strcmp(key, "rows_kept") != 0) {
            jw_key(w, key), jw_value(w, v);
        }
        if (!strcmp(key, "corrected") && j->kept)
            jw_key(w, "rows_kept"), jw_int(w, (int64_t)j->kept);
    }
    jw_end(w, '}');
    jw_init(t, 0);
    jw_begin(t, '{');
    jw_key(t, "seconds"), jw_number(t, j->seconds);
    jw_end(t, '}');
    for (int i = 0; i < 2; i++) {
        struct frame *f = &j->frame[NOTE + i];

        if (j->text[i].failed)
            return err_set(e, E_TEMP, "rows: out of memory");
        *f = (struct frame){ .role = ROLE_NOTE,
                             .dtype = DT_U8,
                             .ndim = 1,
                             .dims = { j->text[i].len },
                             .ancillary = i > 0,
                             .data = j->text[i].text,
                             .len = j->text[i].len };
        memcpy(f->name, j->name, sizeof(f->name));
    }
    return 0;
}

int rows_next(struct rows *r, struct frame *f, struct err *e)
{
    struct joined *j = r->done;

    if (!j || (!r->next && make_notes(j, e) < 0))
        return j ? e->code : 0;
    if (r->next < FRAMES) {
        *f = j->frame[r->next++];
        return 1;
    }
    release(j);
    *j = r->module[--r->count];
    r->done = NULL;
    return 0;
}

int rows_end(const struct rows *r, struct err *e)
{
    const struct joined *j = r->module;

    return r->count ?
               err_set(e, E_DATA, "'%s': has %llu of %llu rows", j->name,
                       (unsigned long long)j->rows, (unsigned long long)j->of) :
               0;
}
