/* tokenizer.c - see tokenizer.h: added tokens, normalizer, pre-tokenizer,
 * BPE. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/io/modeldir.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

enum { FILE_MAX = 256 << 20 };

struct tokenizer {
    struct normalizer *normalizer;
    struct pretokenizer *pretokenizer;
    struct bpe *bpe;
    struct added *added;
    struct token_ids prefix, suffix;
};

const struct token_ids *tokenizer_prefix(const struct tokenizer *t)
{
    return &t->prefix;
}

const struct token_ids *tokenizer_suffix(const struct tokenizer *t)
{
    return &t->suffix;
}

/* ---- encoding ---- */

/* Encode text between two added tokens of the raw text.  first: it begins the
 * input. */
static int encode_between(struct tokenizer *t, const char *text, size_t len,
                          bool first, struct bpe_sink *sink, struct err *e)
{
    struct added_walk w = { 0, 0 };
    struct added_match m;
    size_t done = 0;

    if (!len)
        return 0;
    if (normalizer_apply(t->normalizer, text, len, &text, &len, e) < 0)
        return e->code;
    while (added_next(t->added, true, text, len, &w, &m)) {
        if (done < m.start &&
            pretokenizer_run(t->pretokenizer, t->bpe, text + done,
                             m.start - done, first && !done, sink, e) < 0)
            return e->code;
        if (bpe_emit(sink, m.id, e) < 0)
            return e->code;
        done = m.end;
    }
    return pretokenizer_run(t->pretokenizer, t->bpe, text + done, len - done,
                            first && !done, sink, e);
}

static int encode(struct tokenizer *t, const char *text, size_t len,
                  struct bpe_sink *sink, struct err *e)
{
    struct added_walk w = { 0, 0 };
    struct added_match m;
    size_t done = unicode_check(text, len);

    if (done < len)
        return err_set(e, E_DATA, "byte %zu is not valid UTF-8", done);
    done = 0;
    if (!len)
        text = ""; /* NULL plus an offset is undefined */
    while (added_next(t->added, false, text, len, &w, &m)) {
        if (done < m.start &&
            encode_between(t, text + done, m.start - done, !done, sink, e) < 0)
            return e->code;
        if (bpe_emit(sink, m.id, e) < 0)
            return e->code;
        done = m.end;
    }
    return encode_between(t, text + done, len - done, !done, sink, e);
}

int tokenizer_encode(struct tokenizer *t, const char *text, size_t len,
                     struct token_ids *out, struct err *e)
{
    struct bpe_sink sink = { .out = out };

    return encode(t, text, len, &sink, e);
}

int tokenizer_encode_start(struct tokenizer *t, const char *text, size_t len,
                           struct token_ids *out, size_t *settled,
                           struct err *e)
{
    struct bpe_sink sink = { .out = out };
    size_t before = out->count;

    *settled = 0;
    if (encode(t, text, len, &sink, e) < 0)
        return e->code;
    if (sink.pieces >= BPE_RECALL)
        *settled = sink.start[sink.pieces % BPE_RECALL] - before;
    return 0;
}

/* ---- the post-processor ---- */

static int add_special(struct token_ids *to, const struct json *id,
                       const char *what, struct err *e)
{
    int64_t n;
    int32_t id32;

    if (!json_int(id, &n) || n < 0 || n > INT32_MAX)
        return err_set(e, E_DATA, "%s: post-processor: no valid id", what);
    id32 = (int32_t)n;
    return token_ids_add(to, &id32, 1, e);
}

/* Read one element of a template: a special token, or the sequence, which sets
 * *seen. */
static int read_piece(struct tokenizer *t, const struct json *piece,
                      const struct json *tokens, bool *seen, const char *what,
                      struct err *e)
{
    const struct json *special = json_get(piece, "SpecialToken"), *ids;
    const char *name;

    if (json_string(json_get(json_get(piece, "Sequence"), "id"), &name)) {
        if (strcmp(name, "A") || *seen)
            return err_set(e, E_CONFIG,
                           "%s: a template with other than one sequence A is "
                           "not supported",
                           what);
        *seen = true;
        return 0;
    }
    if (!json_string(json_get(special, "id"), &name))
        return err_set(e, E_DATA, "%s: template: neither token nor sequence",
                       what);
    ids = json_get(json_get(tokens, name), "ids");
    if (!ids || json_type(ids) != JSON_ARRAY)
        return err_set(e, E_DATA, "%s: template: no ids for '%.64s'", what,
                       name);
    for (const struct json *i = json_first(ids); i; i = json_after(i))
        if (add_special(*seen ? &t->suffix : &t->prefix, i, what, e) < 0)
            return e->code;
    return 0;
}

static int read_template(struct tokenizer *t, const struct json *v,
                         const char *what, struct err *e)
{
    const struct json *single = json_get(v, "single");
    bool seen = false;

    if (!single || json_type(single) != JSON_ARRAY)
        return err_set(e, E_DATA, "%s: template without 'single'", what);
    for (const struct json *i = json_first(single); i; i = json_after(i))
        if (read_piece(t, i, json_get(v, "special_tokens"), &seen, what, e) < 0)
            return e->code;
    if (!seen)
        return err_set(e, E_CONFIG,
                       "%s: a template without a sequence is not "
                       "supported",
                       what);
    return 0;
}

/* {"cls": ["<s>", 0], "sep": ["</s>", 2]}: cls goes before the text, sep
 * behind it. */
static int read_pair(struct tokenizer *t, const struct json *v,
                     const char *what, struct err *e)
{
    const struct json *cls = json_get(v, "cls"), *sep = json_get(v, "sep");

    if (json_count(cls) != 2 || json_count(sep) != 2)
        return err_set(e, E_DATA, "%s: post-processor without cls and sep",
                       what);
    return add_special(&t->prefix, json_after(json_first(cls)), what, e) < 0 ?
               e->code :
               add_special(&t->suffix, json_after(json_first(sep)), what, e);
}

static int read_post(struct tokenizer *t, const struct json *v,
                     const char *what, struct err *e)
{
    const struct json *list = json_get(v, "processors");
    const char *type;

    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (!json_string(json_get(v, "type"), &type))
        return err_set(e, E_DATA, "%s: post-processor has no type", what);
    if (!strcmp(type, "ByteLevel"))
        return 0; /* changes offsets, never ids */
    if (t->prefix.count || t->suffix.count)
        return err_set(e, E_CONFIG,
                       "%s: two post-processors that add tokens are not "
                       "supported",
                       what);
    if (!strcmp(type, "TemplateProcessing"))
        return read_template(t, v, what, e);
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
        return read_pair(t, v, what, e);
    if (strcmp(type, "Sequence"))
        return err_set(e, E_CONFIG,
                       "%s: post-processor '%.64s' is not supported", what,
                       type);
    if (!list || json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "%s: post-processor: Sequence without list",
                       what);
    for (const struct json *i = json_first(list); i; i = json_after(i))
        if (read_post(t, i, what, e) < 0)
            return e->code;
    return 0;
}

/* ---- opening ---- */

static int load(struct tokenizer *t, const struct json *root, const char *what,
                struct err *e)
{
    const struct json *version = json_get(root, "version");
    const char *text;

    if (!root || json_type(root) != JSON_OBJECT)
        return err_set(e, E_DATA, "%s: no object", what);
    if (version && (!json_string(version, &text) || strcmp(text, "1.0")))
        return err_set(e, E_CONFIG, "%s: version is not 1.0", what);
    if (normalizer_open(&t->normalizer, json_get(root, "normalizer"), what, e) <
            0 ||
        pretokenizer_open(&t->pretokenizer, json_get(root, "pre_tokenizer"),
                          what, e) < 0 ||
        bpe_open(&t->bpe, json_get(root, "model"),
                 pretokenizer_is_bytes(t->pretokenizer), what, e) < 0 ||
        added_open(&t->added, json_get(root, "added_tokens"), t->bpe,
                   t->normalizer, what, e) < 0 ||
        read_post(t, json_get(root, "post_processor"), what, e) < 0)
        return e->code;
    if (pretokenizer_asks_first(t->pretokenizer) &&
        normalizer_prepends(t->normalizer))
        return err_set(e, E_CONFIG,
                       "%s: Metaspace with prepend_scheme 'first' behind "
                       "Prepend is not supported",
                       what);
    return 0;
}

static int build(struct tokenizer **out, struct json_doc *doc, const char *what,
                 struct err *e)
{
    struct tokenizer *t = mem_zero(1, sizeof(*t), "tokenizer", e);
    int rc;

    *out = NULL;
    if (!t)
        return e->code;
    rc = load(t, json_root(doc), what, e);
    if (rc < 0)
        tokenizer_close(t);
    else
        *out = t;
    return rc;
}

int tokenizer_parse(struct tokenizer **out, const char *json, size_t len,
                    const char *what, struct err *e)
{
    struct json_doc *doc;
    int rc;

    *out = NULL;
    if (json_parse(&doc, json, len, what, e) < 0)
        return e->code;
    rc = build(out, doc, what, e);
    json_free(doc);
    return rc;
}

int tokenizer_text(const char *path, char **text, size_t *len,
                   char what[TOKENIZER_WHAT], struct err *e)
{
    struct stat st;
    bool dir = !stat(path, &st) && S_ISDIR(st.st_mode);

    snprintf(what, TOKENIZER_WHAT, "'%.260s%s'", path,
             dir ? "/tokenizer.json" : "");
    return dir ? modeldir_read(path, "tokenizer.json", FILE_MAX, text, len, e) :
                 file_slurp(text, len, path, FILE_MAX, e);
}

int tokenizer_open(struct tokenizer **out, const char *path, struct err *e)
{
    char *text, what[TOKENIZER_WHAT];
    size_t len;
    int rc;

    *out = NULL;
    if ((rc = tokenizer_text(path, &text, &len, what, e)) < 0)
        return rc;
    rc = tokenizer_parse(out, text, len, what, e);
    free(text);
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    normalizer_close(t->normalizer);
    pretokenizer_close(t->pretokenizer);
    bpe_close(t->bpe);
    added_close(t->added);
    free(t->prefix.id);
    free(t->suffix.id);
    free(t);
}
