/* safetensors.c - see safetensors.h. */
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"

int safetensors_header(struct file *f, const char *what, char **text,
                       size_t *len, struct err *e)
{
    uint64_t n, size = file_size(f);
    uint8_t b[8];
    int r;

    *text = NULL;
    if (size < 8)
        return err_set(e, E_DATA,
                       "%s: %" PRIu64 " bytes are no safetensors "
                       "file",
                       what, size);
    if ((r = file_read(f, b, 8, 0, e)))
        return r;
    memcpy(&n, b, 8);
    if (n > SAFETENSORS_HEADER_MAX)
        return err_set(e, E_DATA,
                       "%s: header of %" PRIu64 " bytes, at most %d are "
                       "allowed",
                       what, n, SAFETENSORS_HEADER_MAX);
    if (n > size - 8)
        return err_set(e, E_DATA,
                       "%s: header of %" PRIu64 " bytes in a file of %" PRIu64,
                       what, n, size);
    *text = mem_alloc(n + 1, what, e);
    if (!*text)
        return e->code;
    if ((r = file_read(f, *text, n, 8, e))) {
        free(*text);
        *text = NULL;
        return r;
    }
    (*text)[n] = '\0';
    *len = n;
    return 0;
}

static int bad(struct err *e, const char *what, const char *name,
               const char *why)
{
    return err_set(e, E_DATA, "%s: tensor '%.200s': %s", what, name, why);
}

static bool get_u64(const struct json *v, uint64_t *out)
{
    int64_t i;

    if (!json_int(v, &i) || i < 0)
        return false;
    *out = (uint64_t)i;
    return true;
}

static int parse_shape(struct ck_entry *en, const struct json *v,
                       const char *what, struct err *e)
{
    if (!v || json_type(v) != JSON_ARRAY)
        return bad(e, what, en->name, "'shape' is missing or no array");
    if (json_count(v) > CHECKPOINT_MAX_DIMS)
        return bad(e, what, en->name, "more than 8 dimensions");
    for (v = json_first(v); v; v = json_after(v))
        if (!get_u64(v, &en->dims[en->ndim++]))
            return bad(e, what, en->name,
                       "'shape' holds something else than sizes");
    return 0;
}

/* data_offsets: en->offset and *end, relative to the start of the data. */
static int parse_offsets(struct ck_entry *en, const struct json *v,
                         uint64_t *end, const char *what, struct err *e)
{
    const struct json *first =
        v && json_type(v) == JSON_ARRAY ? json_first(v) : NULL;

    if (!first || json_count(v) != 2 || !get_u64(first, &en->offset) ||
        !get_u64(json_after(first), end))
        return bad(e, what, en->name, "'data_offsets' is no pair of offsets");
    return 0;
}

static int parse_tensor(struct ck_list *l, const struct json *v,
                        const char *what, struct err *e)
{
    const char *name = json_key(v), *dtype;
    struct ck_entry *en = ck_list_add(l, name, strlen(name), e);
    uint64_t end = 0;
    int r;

    if (!en)
        return e->code;
    if (json_type(v) != JSON_OBJECT)
        return bad(e, what, name, "is no object");
    if (!json_string(json_get(v, "dtype"), &dtype))
        return bad(e, what, name, "'dtype' is missing or no string");
    en->dtype = dtype_parse(dtype);
    if (en->dtype == DT_NONE || en->dtype >= DT_U4)
        return err_set(e, E_DATA,
                       "%s: tensor '%.200s': dtype '%.20s' is not supported",
                       what, name, dtype);
    if ((r = parse_shape(en, json_get(v, "shape"), what, e)) ||
        (r = parse_offsets(en, json_get(v, "data_offsets"), &end, what, e)))
        return r;
    if (!ck_entry_size(en))
        return bad(e, what, name, "the shape is too large");
    if (end < en->offset)
        return bad(e, what, name, "'data_offsets' end before they begin");
    if (end - en->offset != en->bytes)
        return err_set(e, E_DATA,
                       "%s: tensor '%.200s': %" PRIu64 " bytes by its "
                       "offsets, %" PRIu64 " by its shape and dtype",
                       what, name, end - en->offset, en->bytes);
    return 0;
}

static int check_metadata(const struct json *v, const char *what, struct err *e)
{
    const char *s;

    if (json_type(v) == JSON_NULL)
        return 0;
    if (json_type(v) != JSON_OBJECT)
        return err_set(e, E_DATA, "%s: '__metadata__' is no object", what);
    for (v = json_first(v); v; v = json_after(v))
        if (!json_string(v, &s))
            return err_set(e, E_DATA,
                           "%s: '__metadata__': '%.100s' is no string", what,
                           json_key(v));
    return 0;
}

static int by_offset(const void *pa, const void *pb)
{
    const struct ck_entry *a = pa, *b = pb;

    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes) /* empty tensors first */
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Sort the entries from `first` on, check that their data cover the rest of
 * the file exactly, and make offsets absolute. */
static int place(struct ck_list *l, size_t first, uint64_t data, uint64_t size,
                 const char *what, struct err *e)
{
    uint64_t at = 0;

    if (l->count > first)
        qsort(l->item + first, l->count - first, sizeof(*l->item), by_offset);
    for (size_t i = first; i < l->count; i++) {
        struct ck_entry *en = &l->item[i];

        if (en->offset != at)
            return err_set(e, E_DATA,
                           "%s: tensor '%.200s' begins at %" PRIu64
                           " of the data, the one before it ends at %" PRIu64,
                           what, en->name, en->offset, at);
        at += en->bytes; /* offset + bytes was one of its own offsets */
        en->offset += data;
    }
    if (at != size - data)
        return err_set(e, E_DATA,
                       "%s: tensors of %" PRIu64 " bytes, but %" PRIu64
                       " bytes of data: the file is cut short or has more "
                       "than it says",
                       what, at, size - data);
    return 0;
}

static int check_frame(const char *text, size_t len, const char *what,
                       struct err *e)
{
    if (!len || text[0] != '{')
        return err_set(e, E_DATA, "%s: the header does not begin with '{'",
                       what);
    while (text[len - 1] == ' ')
        len--;
    if (text[len - 1] != '}')
        return err_set(e, E_DATA,
                       "%s: the header does not end with '}' and blanks", what);
    return 0;
}

/* Sizes must be written in digits: 1.0, 1e2 and -0 are refused, though they
 * are integers.  text is valid JSON. */
static int check_numbers(const char *text, const char *what, struct err *e)
{
    bool quoted = false;

    for (const char *p = text; *p; p++) {
        size_t n = quoted ? 0 : strspn(p, "0123456789+-.eE");

        if (quoted && *p == '\\')
            p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (n && strchr("-0123456789", *p)) {
            if (strspn(p, "0123456789") != n)
                return err_set(e, E_DATA, "%s: '%.*s' is no size", what,
                               n > 40 ? 40 : (int)n, p);
            p += n - 1;
        }
    }
    return 0;
}

int safetensors_parse(struct ck_list *l, const char *text, size_t len,
                      uint64_t size, const char *what, struct err *e)
{
    size_t first = l->count;
    struct json_doc *doc;
    const struct json *v;
    int r = check_frame(text, len, what, e);

    if (r || (r = json_parse(&doc, text, len, what, e)))
        return r;
    r = check_numbers(text, what, e);
    for (v = json_first(json_root(doc)); v && !r; v = json_after(v))
        r = strcmp(json_key(v), "__metadata__") == 0 ?
                check_metadata(v, what, e) :
                parse_tensor(l, v, what, e);
    json_free(doc);
    return r ? r : place(l, first, 8 + (uint64_t)len, size, what, e);
}
