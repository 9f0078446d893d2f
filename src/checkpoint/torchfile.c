/* torchfile.c - see torchfile.h.  libzip finds the records; payloads are read
 * directly from the file at their offsets. */
#include "checkpoint/torchfile.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

#include "checkpoint/pickle.h"

enum {
    ROOT_MAX = 256,
    KEY_MAX = 512,
    /* Limit of bytes of a tensor that repeats elements of its storage
     * (expand()): beyond it is an attack on memory. */
    REPEATED_MAX = 64 * 1024 * 1024
};

struct archive {
    struct file *f;
    const char *what;
    zip_t *zip;
    zip_int64_t at;        /* libzip's file position */
    zip_int64_t last_read; /* offset of its last read */
    zip_error_t error;
    struct err io; /* code 0, or the error of a read */
    char root[ROOT_MAX];
    struct ck_list *list;
};

/* ---- the file as libzip sees it ---- */

static zip_int64_t source_read(struct archive *a, void *data, zip_uint64_t n)
{
    uint64_t left = file_size(a->f) - (uint64_t)a->at;

    if (n > left)
        n = left;
    a->last_read = a->at;
    if (n && file_read(a->f, data, n, (uint64_t)a->at, &a->io)) {
        zip_error_set(&a->error, ZIP_ER_READ, 0);
        return -1;
    }
    a->at += (zip_int64_t)n;
    return (zip_int64_t)n;
}

static zip_int64_t source(void *arg, void *data, zip_uint64_t n,
                          zip_source_cmd_t cmd)
{
    struct archive *a = arg;
    zip_stat_t *st = data;
    zip_int64_t at;

    switch (cmd) {
    case ZIP_SOURCE_OPEN: a->at = 0; return 0;
    case ZIP_SOURCE_READ: return source_read(a, data, n);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE: return 0;
    case ZIP_SOURCE_TELL: return a->at;
    case ZIP_SOURCE_ERROR: return zip_error_to_data(&a->error, data, n);
    case ZIP_SOURCE_SEEK:
        at = zip_source_seek_compute_offset(
            (zip_uint64_t)a->at, file_size(a->f), data, n, &a->error);
        if (at < 0)
            return -1;
        a->at = at;
        return 0;
    case ZIP_SOURCE_STAT:
        zip_stat_init(st);
        st->size = file_size(a->f);
        st->valid = ZIP_STAT_SIZE;
        return sizeof(*st);
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT,
            ZIP_SOURCE_ERROR, ZIP_SOURCE_FREE, ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL,
            -1);
    default: zip_error_set(&a->error, ZIP_ER_OPNOTSUPP, 0); return -1;
    }
}

static int zip_fail(struct archive *a, zip_error_t *ze, struct err *e)
{
    if (a->io.code) {
        *e = a->io;
        return e->code;
    }
    return err_set(e, zip_error_code_zip(ze) == ZIP_ER_MEMORY ? E_TEMP : E_DATA,
                   "%s: %s", a->what, zip_error_strerror(ze));
}

static int open_zip(struct archive *a, struct err *e)
{
    zip_error_t ze;
    zip_source_t *src;
    int r = 0;

    zip_error_init(&ze);
    zip_error_init(&a->error);
    src = zip_source_function_create(source, a, &ze);
    if (src)
        a->zip = zip_open_from_source(src, ZIP_RDONLY, &ze);
    if (!a->zip) {
        r = zip_fail(a, &ze, e);
        if (src)
            zip_source_free(src);
    }
    zip_error_fini(&ze);
    return r;
}

/* ---- records ---- */

static int check_stored(const struct archive *a, const zip_stat_t *st,
                        struct err *e)
{
    const zip_uint64_t want = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                              ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;

    if ((st->valid & want) == want && st->comp_method == ZIP_CM_STORE &&
        st->encryption_method == ZIP_EM_NONE && st->comp_size == st->size)
        return 0;
    return err_set(e, E_DATA,
                   "%s: record '%.100s' is compressed or encrypted, "
                   "torch.save writes neither",
                   a->what, st->name ? st->name : "?");
}

/* Offset and size of record i in the file.  libzip does not tell the offset:
 * one byte is read through it, and source_read() records where from. */
static int locate(struct archive *a, zip_uint64_t i, uint64_t *offset,
                  uint64_t *size, struct err *e)
{
    zip_stat_t st;
    zip_file_t *zf;
    char byte;
    int r = 0;

    if (zip_stat_index(a->zip, i, 0, &st))
        return zip_fail(a, zip_get_error(a->zip), e);
    if (check_stored(a, &st, e))
        return e->code;
    *size = st.size;
    *offset = 0;
    if (!st.size)
        return 0;
    zf = zip_fopen_index(a->zip, i, ZIP_FL_COMPRESSED);
    if (!zf)
        return zip_fail(a, zip_get_error(a->zip), e);
    a->last_read = -1;
    if (zip_fread(zf, &byte, 1) != 1)
        r = zip_fail(a, zip_file_get_error(zf), e);
    zip_fclose(zf);
    if (r)
        return r;
    *offset = (uint64_t)a->last_read;
    if (a->last_read < 0 || *offset > file_size(a->f) ||
        *size > file_size(a->f) - *offset)
        return err_set(e, E_DATA, "%s: record '%.100s' is not inside the file",
                       a->what, st.name);
    return 0;
}

/* Find the record ROOT/name.  1: there; 0: not there. */
static int find_record(struct archive *a, const char *name, uint64_t *offset,
                       uint64_t *size, struct err *e)
{
    char path[ROOT_MAX + KEY_MAX + 16];
    zip_int64_t i;
    int n = snprintf(path, sizeof(path), "%s/%s", a->root, name), r;

    if (n < 0 || (size_t)n >= sizeof(path))
        return 0;
    i = zip_name_locate(a->zip, path, ZIP_FL_ENC_RAW);
    if (i < 0)
        return 0;
    r = locate(a, (zip_uint64_t)i, offset, size, e);
    return r ? r : 1;
}

static int read_record(struct archive *a, uint64_t offset, uint64_t size,
                       char **text, struct err *e)
{
    *text = mem_alloc(size + 1, a->what, e);
    if (!*text)
        return e->code;
    if (size && file_read(a->f, *text, size, offset, e)) {
        free(*text);
        *text = NULL;
        return e->code;
    }
    (*text)[size] = '\0';
    return 0;
}

/* All records are in one folder, named like the file when it was written. */
static int find_root(struct archive *a, struct err *e)
{
    zip_int64_t n = zip_get_num_entries(a->zip, 0);

    for (zip_int64_t i = 0; i < n; i++) {
        const char *name =
            zip_get_name(a->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        const char *slash = name ? strchr(name, '/') : NULL;

        if (!slash || strcmp(slash, "/data.pkl") != 0 ||
            slash - name >= ROOT_MAX)
            continue;
        if (a->root[0])
            return err_set(e, E_DATA, "%s: holds two data.pkl", a->what);
        snprintf(a->root, sizeof(a->root), "%.*s", (int)(slash - name), name);
    }
    if (a->root[0])
        return 0;
    return err_set(e, E_DATA, "%s: a zip file without data.pkl", a->what);
}

static int check_byteorder(struct archive *a, struct err *e)
{
    uint64_t offset, size;
    char *text;
    int r = find_record(a, "byteorder", &offset, &size, e);

    if (r <= 0)
        return r;
    if (size > 16)
        return err_set(e, E_DATA, "%s: an unknown byte order", a->what);
    if ((r = read_record(a, offset, size, &text, e)))
        return r;
    if (strcmp(text, "little") != 0)
        r = err_set(e, E_DATA,
                    "%s: byte order '%.16s' is not supported, only little is",
                    a->what, text);
    free(text);
    return r;
}

/* ---- tensors ---- */

static int bad(const struct archive *a, const struct pickle_tensor *t,
               const char *why, struct err *e)
{
    return err_set(e, E_DATA, "%s: tensor '%.200s': %s", a->what, t->name, why);
}

/* Set offset and strides of en, whose storage has `size` bytes at `offset` of
 * the file. */
static int place(const struct archive *a, const struct pickle_tensor *t,
                 struct ck_entry *en, uint64_t offset, uint64_t size,
                 struct err *e)
{
    uint64_t unit = dtype_bits(en->dtype) / 8, last;

    if (!ck_entry_size(en))
        return bad(a, t, "its shape is too large", e);
    if (!en->bytes)
        return 0;
    if (!ck_entry_strides(en) || size_add(t->offset, en->span / unit, &last) ||
        last > size / unit)
        return bad(a, t, "reaches beyond the end of its storage", e);
    if (en->bytes > size && en->bytes > REPEATED_MAX)
        return bad(a, t, "is much larger than its storage", e);
    en->offset = offset + t->offset * unit;
    return 0;
}

static int add_tensor(void *arg, const struct pickle_tensor *t, struct err *e)
{
    struct archive *a = arg;
    uint64_t offset, size;
    struct ck_entry *en;
    char name[KEY_MAX];
    int r;

    if (strlen(t->key) + 6 > sizeof(name))
        return bad(a, t, "the key of its storage is too long", e);
    snprintf(name, sizeof(name), "data/%s", t->key);
    r = find_record(a, name, &offset, &size, e);
    if (r < 0)
        return r;
    if (!r)
        return bad(a, t, "its storage is not in the file", e);
    if (size != t->storage_bytes)
        return err_set(e, E_DATA,
                       "%s: tensor '%.200s': its storage has %" PRIu64
                       " bytes, %" PRIu64 " are announced",
                       a->what, t->name, size, t->storage_bytes);
    en = ck_list_add(a->list, t->name, strlen(t->name), e);
    if (!en)
        return e->code;
    en->dtype = t->dtype;
    en->ndim = t->ndim;
    memcpy(en->dims, t->dims, sizeof(en->dims));
    memcpy(en->stride, t->stride, sizeof(en->stride));
    return place(a, t, en, offset, size, e);
}

/* ---- the interface ---- */

/* torch.save before 1.6 (or on request) wrote other formats. */
static int check_kind(struct file *f, const char *what, struct err *e)
{
    uint8_t b[263] = { 0 };
    size_t n = file_size(f) < sizeof(b) ? file_size(f) : sizeof(b);
    const char *kind = "no file of torch.save";

    if (n && file_read(f, b, n, 0, e))
        return e->code;
    if (memcmp(b, "PK\3\4", 4) == 0)
        return 0;
    if (b[0] == 0x80)
        kind = "the old format of torch.save, without zip";
    else if (memcmp(b + 257, "ustar", 5) == 0)
        kind = "the oldest format of torch.save, a tar file";
    return err_set(e, E_DATA,
                   "%s: %s: load it with torch and save it as safetensors",
                   what, kind);
}

static int read_tensors(struct archive *a, char **text, size_t *len,
                        struct err *e)
{
    uint64_t offset, size;
    int r;

    if ((r = open_zip(a, e)) || (r = find_root(a, e)) ||
        (r = check_byteorder(a, e)))
        return r;
    if ((r = find_record(a, "data.pkl", &offset, &size, e)) <= 0)
        return r ? r : err_set(e, E_DATA, "%s: no data.pkl", a->what);
    if (size > TORCHFILE_PICKLE_MAX)
        return err_set(e, E_DATA, "%s: data.pkl of %" PRIu64 " bytes", a->what,
                       size);
    if ((r = read_record(a, offset, size, text, e)))
        return r;
    *len = size;
    return pickle_run(*text, size, a->what, add_tensor, a, e);
}

int torchfile_list(struct ck_list *l, struct file *f, const char *what,
                   char **text, size_t *len, struct err *e)
{
    struct archive a = { .f = f, .what = what, .list = l };
    int r = check_kind(f, what, e);

    *text = NULL;
    *len = 0;
    if (!r)
        r = read_tensors(&a, text, len, e);
    if (a.zip)
        zip_discard(a.zip);
    if (r) {
        free(*text);
        *text = NULL;
    }
    return r;
}
