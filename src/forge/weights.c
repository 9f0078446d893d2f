/* weights.c - see weights.h. */
#include "forge/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "common/cli/units.h"
#include "common/io/hash.h"
#include "common/io/modeldir.h"
#include "common/math/threads.h"

static const uint64_t a_while = 8ULL << 30; /* bytes: seconds */

static int open_file(struct file **f, const char *model, const char *name,
                     struct err *e)
{
    struct modeldir d;
    int rc = modeldir_open(&d, model, e);

    if (rc)
        return rc;
    rc = modeldir_file(&d, name, f, e);
    modeldir_close(&d);
    return rc;
}

/* ---- hashing ---- */

/* The hash of a file is that of the hashes of its pieces, which are made in
 * parallel. */
enum { PIECE = 16 << 20 };

struct hashing {
    const char *model;
    struct input_file *file;
    const size_t *todo; /* indices into j->file */
    size_t *first;      /* number of the first piece of each, and of all */
    uint64_t *piece;    /* their hashes */
    struct threads_error error;
};

static size_t pieces(const struct input_file *f)
{
    return (size_t)((f->size + PIECE - 1) / PIECE);
}

static int hash_piece(const char *model, const struct input_file *f,
                      uint64_t at, void *buf, uint64_t *hash, struct err *e)
{
    uint64_t end = f->size - at < PIECE ? f->size : at + PIECE;
    struct file *in;
    int rc = open_file(&in, model, f->name, e);

    if (rc)
        return rc;
    rc = hash_range(hash, in, at, end, buf, NULL, e);
    file_close(in);
    return rc;
}

static void hash_some(void *ctx, size_t begin, size_t end)
{
    struct hashing *h = ctx;
    struct err e;
    void *buf = mem_pages(HASH_ROOM, "weights", &e);
    size_t k = 0;

    if (!buf)
        threads_error_add(&h->error, begin, &e);
    for (size_t i = begin; buf && i < end; i++) {
        while (h->first[k + 1] <= i)
            k++;
        if (hash_piece(h->model, &h->file[h->todo[k]],
                       (uint64_t)(i - h->first[k]) * PIECE, buf, &h->piece[i],
                       &e) < 0)
            threads_error_add(&h->error, i, &e);
    }
    free(buf);
}

static int hash_files(struct hashing *h, size_t n, struct err *e)
{
    int rc;

    h->first = mem_zero(n + 1, sizeof(*h->first), "weights", e);
    if (!h->first)
        return e->code;
    for (size_t k = 0; k < n; k++)
        h->first[k + 1] = h->first[k] + pieces(&h->file[h->todo[k]]);
    h->piece = mem_zero(h->first[n] + 1, sizeof(*h->piece), "weights", e);
    if (!h->piece) {
        free(h->first);
        return e->code;
    }
    threads_error_init(&h->error);
    threads_for(h->first[n], 1, hash_some, h);
    rc = threads_error_take(&h->error, e);
    for (size_t k = 0; k < n && !rc; k++)
        h->file[h->todo[k]].hash =
            XXH3_64bits(h->piece + h->first[k],
                        (h->first[k + 1] - h->first[k]) * sizeof(*h->piece));
    free(h->first);
    free(h->piece);
    return rc;
}

static bool known_hash(const struct job *known, struct input_file *f)
{
    for (size_t i = 0; known && i < known->in.files; i++)
        if (input_unchanged(&known->in.file[i], f)) {
            f->hash = known->in.file[i].hash;
            return true;
        }
    return false;
}

static int by_name(const void *a, const void *b)
{
    const struct input_file *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* List the files of the checkpoint's tensors, each once. */
static int list_files(struct job *j, const struct checkpoint *c, struct err *e)
{
    const char *last = "";
    struct known_inputs *in = &j->in;

    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const char *name = checkpoint_tensor(c, i)->file;
        bool found = !strcmp(last, name);

        for (size_t k = 0; k < in->files && !found; k++)
            found = !strcmp(in->file[k].name, name);
        last = name;
        if (found)
            continue;
        if (mem_grow(&in->file, (in->files + 1) * sizeof(*in->file), "weights",
                     e) < 0 ||
            input_stat(&in->file[in->files], j->model, name, e) < 0)
            return e->code;
        in->files++;
    }
    qsort(in->file, in->files, sizeof(*in->file), by_name);
    return 0;
}

int weights_hash(struct job *j, const struct job *known, bool *same,
                 struct err *e)
{
    char text[UNIT_TEXT];
    uint64_t bytes = 0;
    struct hashing h = { .model = j->model };
    struct known_inputs *in = &j->in;
    struct checkpoint *c;
    size_t *todo, n = 0;
    int rc = checkpoint_open(&c, j->model, e);

    if (rc)
        return rc;
    in->files = 0;
    j->fingerprint = checkpoint_fingerprint(c);
    rc = inputs_note(in, j->model, j->text, e);
    if (!rc)
        rc = list_files(j, c, e);
    checkpoint_close(c);
    if (rc)
        return rc;
    todo = mem_alloc(in->files * sizeof(*todo), "weights", e);
    if (!todo)
        return e->code;
    for (size_t i = 0; i < in->files; i++)
        if (!known_hash(known, &in->file[i])) {
            todo[n++] = i;
            bytes += in->file[i].size;
        }
    *same = !n;
    if (bytes > a_while)
        remark("'%s': reading its %s once, to know them again", j->model,
               size_text(text, (double)bytes));
    h.file = in->file;
    h.todo = todo;
    rc = hash_files(&h, n, e);
    free(todo);
    return rc;
}
