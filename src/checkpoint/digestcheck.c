/* digestcheck.c - see digests.h: checks a finished checkpoint against its
 * lists.
 *
 * Each file is read once, by one thread: all of it goes through SHA-256, and
 * the bytes of a tensor also through XXH3, which tells where the damage is. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/expertmap.h"
#include "checkpoint/safetensors.h"
#include "common/io/frame.h"
#include "common/io/hash.h"
#include "common/io/json.h"
#include "common/io/modeldir.h"
#include "common/math/threads.h"
#include "checkpoint/digests.h"

#define DIFFERS "does not have the digest in " SUMS_FILE

enum { LIST_MAX = 1 << 30 };

struct known {
    const char *name;
    uint64_t xxh3;
    bool seen;
};

struct checker {
    struct modeldir dir;
    struct digests sums;
    struct json_doc *doc; /* of CHECKSUMS_FILE */
    struct known *tensor; /* sorted by name */
    size_t n_tensors;
    char **file; /* files to check */
    size_t n_files;
    bool tensors_only, no_tensors; /* no_tensors: their list is unusable */
    void (*say)(void *ctx, const char *file, const char *what);
    void *ctx;
    pthread_mutex_t lock; /* guards say, counts, seen */
    struct check_counts *counts;
    struct threads_error error;
};

static void found(struct checker *c, const char *file, const char *fmt,
                  const char *name)
{
    char what[2 * FRAME_NAME_MAX + 128];

    snprintf(what, sizeof(what), fmt, name);
    pthread_mutex_lock(&c->lock);
    c->counts->wrong++;
    c->say(c->ctx, file, what);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the lists ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct known *)a)->name,
                  ((const struct known *)b)->name);
}

static bool read_hash(const struct json *v, uint64_t *h)
{
    const char *text;

    return json_string(v, &text) && strlen(text) == 16 &&
           strspn(text, "0123456789abcdef") == 16 &&
           sscanf(text, "%" SCNx64, h) == 1;
}

/* Check the list of tensors against its own digest in SHA256SUMS. */
static int own_digest(const struct checker *c, const char *text, size_t len,
                      struct err *e)
{
    const struct file_digest *d = digests_find(&c->sums, CHECKSUMS_FILE);
    char hex[SHA256_HEX + 1];

    if (!d)
        return 0;
    if (sha256_of(text, len, hex, e))
        return e->code;
    return strcmp(hex, d->sha256) ? err_set(e, E_DATA, DIFFERS) : 0;
}

static int read_tensors(struct checker *c, struct err *e)
{
    const struct json *root, *list;
    const char *format = "";
    char *text;
    size_t len;
    int rc = modeldir_slurp(&c->dir, CHECKSUMS_FILE, LIST_MAX, &text, &len, e);

    if (rc)
        return rc;
    c->counts->files++;
    rc = own_digest(c, text, len, e);
    if (!rc)
        rc = json_parse(&c->doc, text, len, "'" CHECKSUMS_FILE "'", e);
    free(text);
    if (rc)
        return rc;
    root = json_root(c->doc);
    list = json_get(root, "tensors");
    if (!json_string(json_get(root, "format"), &format) ||
        strcmp(format, CHECKSUMS_FORMAT) || !list ||
        json_type(list) != JSON_OBJECT)
        return err_set(e, E_DATA, "not " CHECKSUMS_FORMAT);
    c->tensor = mem_alloc(json_count(list) * sizeof(*c->tensor), "tensors", e);
    if (!c->tensor)
        return e->code;
    for (const struct json *v = json_first(list); v; v = json_after(v)) {
        struct known *k = &c->tensor[c->n_tensors++];

        *k = (struct known){ .name = json_key(v) };
        if (!read_hash(v, &k->xxh3))
            return err_set(e, E_DATA, "tensor '%s' has no hash", k->name);
    }
    if (c->n_tensors)
        qsort(c->tensor, c->n_tensors, sizeof(*c->tensor), by_name);
    return 0;
}

static int read_sums(struct checker *c, struct err *e)
{
    char *text;
    size_t len;
    int rc = modeldir_slurp(&c->dir, SUMS_FILE, LIST_MAX, &text, &len, e);

    if (rc)
        return rc;
    c->counts->files++;
    rc = digests_parse(&c->sums, text, len, e);
    free(text);
    return rc;
}

/* Read both lists.  A missing or damaged one is a finding; the other one is
 * still used. */
static int read_lists(struct checker *c, struct err *e)
{
    int rc;

    if (!modeldir_has(&c->dir, CHECKSUMS_FILE) &&
        !modeldir_has(&c->dir, SUMS_FILE))
        return err_set(e, E_NOINPUT,
                       "no " SUMS_FILE " and no " CHECKSUMS_FILE " in it");
    rc = c->tensors_only ? 0 : read_sums(c, e);
    if (rc == E_DATA || rc == E_NOINPUT) {
        found(c, SUMS_FILE, "%s", e->msg);
        c->tensors_only = true;
        rc = 0;
    }
    if (!rc)
        rc = read_tensors(c, e);
    if (rc == E_DATA || rc == E_NOINPUT) {
        found(c, CHECKSUMS_FILE, "%s", e->msg);
        c->n_tensors = 0;
        c->no_tensors = true;
        rc = 0;
    }
    return rc;
}

/* ---- the files ---- */

static bool holds_tensors(const char *name)
{
    return modeldir_name_ok(name, ".safetensors") &&
           strcmp(name, EXPERT_MAP_FILE) != 0;
}

static int want_file(struct checker *c, const char *name, struct err *e)
{
    char *copy;

    if (mem_grow(&c->file, (c->n_files + 1) * sizeof(*c->file), name, e))
        return e->code;
    copy = mem_text(name, strlen(name), name, e);
    if (!copy)
        return e->code;
    c->file[c->n_files++] = copy;
    return 0;
}

/* Say of a file, FILE or DIR/FILE, that it is in no list, if so. */
static void look_up(struct checker *c, const char *name)
{
    if (strcmp(name, SUMS_FILE) && !digests_find(&c->sums, name))
        found(c, name, "is not in %s", SUMS_FILE);
}

/* Whether files of the directory are in the list. */
static bool is_listed(const struct checker *c, const char *dir)
{
    size_t n = strlen(dir);

    for (size_t i = 0; i < c->sums.n; i++)
        if (!strncmp(c->sums.file[i].name, dir, n) &&
            c->sums.file[i].name[n] == '/')
            return true;
    return false;
}

/* look_up() for the files of a directory. */
static int look_up_within(struct checker *c, const char *dir, struct err *e)
{
    struct dirent **list;
    char name[2 * NAME_MAX + 2];
    int n, rc = modeldir_list(&c->dir, dir, &list, &n, e);

    if (rc)
        return rc;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%s/%s", dir, list[i]->d_name);
        if (*list[i]->d_name != '.' && list[i]->d_type != DT_DIR)
            look_up(c, name);
        free(list[i]);
    }
    free(list);
    return 0;
}

/* Files to check: those in the lists, and others in the directory, and in those
 * in it that have listed files, which a loader might read. */
static int choose_files(struct checker *c, struct err *e)
{
    struct dirent **list = NULL;
    int n = scandir(c->dir.path, &list, NULL, alphasort), rc = 0;

    if (n < 0)
        return err_set(e, E_NOINPUT, "cannot list '%s':", c->dir.path);
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;

        if (rc || *name == '.')
            ;
        else if (list[i]->d_type == DT_DIR)
            rc = !c->tensors_only && is_listed(c, name) ?
                     look_up_within(c, name, e) :
                     0;
        else if (c->tensors_only)
            rc = holds_tensors(name) ? want_file(c, name, e) : 0;
        else
            look_up(c, name);
        free(list[i]);
    }
    free(list);
    for (size_t i = 0; !rc && !c->tensors_only && i < c->sums.n; i++)
        if (strcmp(c->sums.file[i].name, CHECKSUMS_FILE)) /* own_digest() */
            rc = want_file(c, c->sums.file[i].name, e);
    return rc;
}

/* ---- one file ---- */

struct reading {
    struct file *f;
    struct sha256 *sha; /* NULL: tensors only */
    char *piece;        /* [HASH_ROOM] */
    bool wrong;         /* say() has been called for this file */
};

/* Compare a tensor's checksum h with the list; a difference is said.  True:
 * equal. */
static bool judge(struct checker *c, const char *file, const char *name,
                  uint64_t h)
{
    struct known key = { .name = name };
    struct known *k = c->n_tensors ? bsearch(&key, c->tensor, c->n_tensors,
                                             sizeof(key), by_name) :
                                     NULL;

    pthread_mutex_lock(&c->lock);
    c->counts->tensors++;
    if (k)
        k->seen = true;
    pthread_mutex_unlock(&c->lock);
    if (c->no_tensors || (k && k->xxh3 == h))
        return true;
    found(c, file,
          k ? "tensor '%s' is not what was written" :
              "tensor '%s' is not in " CHECKSUMS_FILE,
          name);
    return false;
}

/* Read a safetensors file's header and tensors; *at: the end of what was
 * read. */
static int read_tensors_of(struct checker *c, const char *name,
                           struct reading *r, uint64_t *at, struct err *e)
{
    struct ck_list list = { 0 };
    char *text = NULL;
    size_t len;
    uint64_t h;
    int rc = safetensors_header(r->f, name, &text, &len, e);

    if (!rc)
        rc = safetensors_parse(&list, text, len, file_size(r->f), name, e);
    free(text);
    if (rc == E_DATA) {
        found(c, name, "%s", "the header is damaged");
        ck_list_release(&list);
        list = (struct ck_list){ 0 };
        r->wrong = true;
        rc = 0;
    }
    for (size_t i = 0; !rc && i < list.count; i++) {
        const struct ck_entry *t = &list.item[i];

        rc = hash_range(&h, r->f, *at, t->offset, r->piece, r->sha, e);
        *at = t->offset + t->bytes;
        if (!rc &&
            !(rc = hash_range(&h, r->f, t->offset, *at, r->piece, r->sha, e)))
            r->wrong |= !judge(c, name, t->name, h);
    }
    ck_list_release(&list);
    return rc;
}

static int read_whole(struct checker *c, const char *name, struct reading *r,
                      struct err *e)
{
    uint64_t at = 0, h;
    char hex[SHA256_HEX + 1];

    pthread_mutex_lock(&c->lock);
    c->counts->files++;
    pthread_mutex_unlock(&c->lock);
    if (holds_tensors(name) && read_tensors_of(c, name, r, &at, e))
        return e->code;
    if (!r->sha)
        return 0;
    if (hash_range(&h, r->f, at, file_size(r->f), r->piece, r->sha, e))
        return e->code;
    sha256_hex(r->sha, hex);
    if (strcmp(hex, digests_find(&c->sums, name)->sha256) && !r->wrong)
        found(c, name, "%s",
              holds_tensors(name) && !c->no_tensors ? DIFFERS
                  ", and its tensors are right: the header is not" :
                                                      DIFFERS);
    return 0;
}

static int check_file(struct checker *c, const char *name, struct err *e)
{
    struct reading r = { 0 };
    int rc = modeldir_file(&c->dir, name, &r.f, e);

    if (rc == E_NOINPUT && !faccessat(c->dir.fd, name, F_OK, 0))
        return rc; /* it is there, and cannot be read */
    if (rc == E_NOINPUT || rc == E_DATA) {
        found(c, name, "%s",
              rc == E_NOINPUT ? "is missing" :
                                "is no regular file of this directory");
        return 0;
    }
    if (rc)
        return rc;
    r.piece = mem_pages(HASH_ROOM, name, e);
    rc = r.piece ? 0 : e->code;
    if (!rc && !c->tensors_only)
        rc = sha256_open(&r.sha, e);
    if (!rc)
        rc = read_whole(c, name, &r, e);
    sha256_close(r.sha);
    free(r.piece);
    file_close(r.f);
    return rc;
}

static void check_files(void *ctx, size_t begin, size_t end)
{
    struct checker *c = ctx;
    struct err e;

    for (size_t i = begin; i < end; i++)
        if (check_file(c, c->file[i], &e))
            threads_error_add(&c->error, i, &e);
}

static int check_all(struct checker *c, struct err *e)
{
    if (read_lists(c, e) || choose_files(c, e))
        return e->code;
    threads_error_init(&c->error);
    threads_for(c->n_files, 1, check_files, c);
    if (threads_error_take(&c->error, e))
        return e->code;
    for (size_t i = 0; i < c->n_tensors; i++)
        if (!c->tensor[i].seen)
            found(c, CHECKSUMS_FILE, "tensor '%s' is in no file",
                  c->tensor[i].name);
    return 0;
}

int digests_check(const char *dir, bool tensors_only,
                  void (*say)(void *ctx, const char *file, const char *what),
                  void *ctx, struct check_counts *n, struct err *e)
{
    struct checker c = { .tensors_only = tensors_only,
                         .say = say,
                         .ctx = ctx,
                         .lock = PTHREAD_MUTEX_INITIALIZER,
                         .counts = n };
    int rc;

    *n = (struct check_counts){ 0 };
    if (modeldir_open(&c.dir, dir, e))
        return e->code;
    if ((rc = check_all(&c, e)) != 0)
        err_prefix(e, "'%s'", dir);
    for (size_t i = 0; i < c.n_files; i++)
        free(c.file[i]);
    free(c.file);
    free(c.tensor);
    json_free(c.doc);
    digests_release(&c.sums);
    modeldir_close(&c.dir);
    return rc;
}

static void keep_first(void *ctx, const char *file, const char *what)
{
    struct err *first = ctx;

    if (!first->code)
        err_set(first, E_DATA, "'%s': %s", file, what);
}

int digests_hold(const char *dir, uint64_t *tensors, struct err *e)
{
    struct check_counts n = { 0 };
    struct err first = { 0 };
    struct modeldir d;
    bool listed;
    int rc;

    *tensors = 0;
    if (modeldir_open(&d, dir, e))
        return e->code;
    listed = modeldir_has(&d, CHECKSUMS_FILE);
    modeldir_close(&d);
    if (!listed)
        return 0;
    rc = digests_check(dir, true, keep_first, &first, &n, e);
    *tensors = n.tensors;
    if (rc || !n.wrong)
        return rc;
    *e = first;
    return err_prefix(e, "'%s'", dir);
}
