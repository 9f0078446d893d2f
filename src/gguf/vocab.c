/* vocab.c - see vocab.h. */
#include "gguf/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "common/io/modeldir.h"
#include "tokenizer/tokenizer.h"

enum { TEXT_MAX = 64 * 1024 * 1024 };
/* Types of tokens. */
enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

enum { STEPS = 3 };

/* How a text is split, one step after the other, and what llama.cpp calls that
 * (src/llama-vocab.cpp).  No step: ByteLevel's own. */
static const struct {
    const char *name, *regex[STEPS];
} splits[] = {
    { "gpt-2", { NULL } },
    { "llama-bpe",
      { "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
        "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|"
        "\\s+" } },
    { "qwen2",
      { "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+" } },
    { "deepseek-v3",
      { "\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
        "\\s*[\r\n]+|\\s+(?!\\S)|\\s+" } },
};

static const char *text_of(const struct json *v, const char *key)
{
    const char *s = "";

    (void)!json_string(json_get(v, key), &s);
    return s;
}

/* Whether the steps from `at` on, of which the last is ByteLevel, are those of the
 * split.  bytes: that last one. */
static bool is_split(const struct json *at, const struct json *bytes, size_t i)
{
    for (int k = 0; k < STEPS && splits[i].regex[k]; k++, at = json_after(at))
        if (at == bytes || strcmp(text_of(at, "type"), "Split") != 0 ||
            strcmp(text_of(at, "behavior"), "Isolated") != 0 ||
            strcmp(text_of(json_get(at, "pattern"), "Regex"),
                   splits[i].regex[k]) != 0)
            return false;
    return at == bytes;
}

/* The steps of the pre-tokenizer, which may be one. */
static int find_split(const struct json *pre, const char **name, struct err *e)
{
    const struct json *list = json_get(pre, "pretokenizers");
    const struct json *first = list ? json_first(list) : pre, *bytes = first;
    bool own = true, prefix = true;

    while (list && bytes && json_after(bytes))
        bytes = json_after(bytes);
    (void)!json_bool(json_get(bytes, "use_regex"), &own);
    (void)!json_bool(json_get(bytes, "add_prefix_space"), &prefix);
    if (strcmp(text_of(bytes, "type"), "ByteLevel") != 0)
        return err_set(e, E_CONFIG,
                       "the tokenizer is no byte-level BPE, and others are "
                       "not written as GGUF");
    for (size_t i = 0; i < ARRAY_LEN(splits) && !prefix; i++)
        if (own == !splits[i].regex[0] && is_split(first, bytes, i)) {
            *name = splits[i].name;
            return 0;
        }
    return err_set(e, E_CONFIG,
                   "the tokenizer splits text in a way that is none of "
                   "llama.cpp's gpt-2, llama-bpe, qwen2 and deepseek-v3");
}

/* ---- tokens ---- */

struct tokens {
    const char **text;
    int32_t *type;
    uint64_t n;
    char (*unused)[32]; /* texts of ids that no token has */
};

static int put_token(struct tokens *t, const char *text, const struct json *id,
                     int32_t type, struct err *e)
{
    int64_t i;

    if (!json_int(id, &i) || i < 0 || (uint64_t)i >= t->n)
        return err_set(e, E_DATA,
                       "'tokenizer.json': '%.60s' is beyond the %" PRIu64
                       " tokens of config.json",
                       text, t->n);
    t->text[i] = text;
    t->type[i] = type;
    return 0;
}

static int read_tokens(struct tokens *t, const struct json *root, struct err *e)
{
    const struct json *vocab = json_get(json_get(root, "model"), "vocab");
    int rc = 0;

    for (const struct json *v = json_first(vocab); v && !rc; v = json_after(v))
        rc = put_token(t, json_key(v), v, TOKEN_NORMAL, e);
    for (const struct json *v = json_first(json_get(root, "added_tokens"));
         v && !rc; v = json_after(v)) {
        bool special = false;

        (void)!json_bool(json_get(v, "special"), &special);
        rc = put_token(t, text_of(v, "content"), json_get(v, "id"),
                       special ? TOKEN_CONTROL : TOKEN_USER, e);
    }
    for (uint64_t i = 0; i < t->n && !rc; i++)
        if (!t->text[i]) { /* rows of the embedding behind the vocabulary */
            snprintf(t->unused[i], sizeof(*t->unused), "[PAD%" PRIu64 "]", i);
            t->text[i] = t->unused[i];
            t->type[i] = TOKEN_UNUSED;
        }
    return rc;
}

static int put_tokens(struct gguf *g, const struct json *root, uint64_t n,
                      struct err *e)
{
    struct tokens t = {
        .text = mem_zero(n, sizeof(*t.text), "tokens", e),
        .type = mem_zero(n, sizeof(*t.type), "tokens", e),
        .unused = mem_zero(n, sizeof(*t.unused), "tokens", e),
        .n = n,
    };
    int rc = t.text && t.type && t.unused ? read_tokens(&t, root, e) : e->code;

    if (!rc) {
        gguf_strings(g, "tokenizer.ggml.tokens", t.text, n);
        gguf_i32s(g, "tokenizer.ggml.token_type", t.type, n);
    }
    free(t.text);
    free(t.type);
    free(t.unused);
    return rc;
}

/* "a b", or in newer files ["a", "b"]. */
static int put_merges(struct gguf *g, const struct json *merges, struct err *e)
{
    size_t n = json_count(merges), i = 0;
    char **text = mem_zero(n, sizeof(*text), "merges", e);
    int rc = text ? 0 : e->code;

    for (const struct json *v = json_first(merges); v && !rc;
         v = json_after(v), i++) {
        const char *a = "", *b = NULL;

        if (!json_string(v, &a)) {
            (void)!json_string(json_first(v), &a);
            if (json_count(v) == 2)
                (void)!json_string(json_after(json_first(v)), &b);
        }
        if (asprintf(&text[i], "%s%s%s", a, b ? " " : "", b ? b : "") < 0) {
            text[i] = NULL;
            rc = err_set(e, E_TEMP, "merges: out of memory");
        }
    }
    if (!rc)
        gguf_strings(g, "tokenizer.ggml.merges", (const char *const *)text, n);
    for (i = 0; text && i < n; i++)
        free(text[i]);
    free(text);
    return rc;
}

/* ---- what else there is ---- */

/* An id of config.json, the first where there are several. */
static void put_id(struct gguf *g, const struct json *config, const char *key,
                   const char *as)
{
    const struct json *v = json_get(config, key);
    int64_t id;

    if (v && json_type(v) == JSON_ARRAY)
        v = json_first(v);
    if (json_int(v, &id) && id >= 0)
        gguf_u32(g, as, (uint64_t)id);
}

static int put_ids(struct gguf *g, const char *dir, struct err *e)
{
    struct json_doc *d;
    char *text;
    size_t len;

    if (modeldir_read(dir, "config.json", TEXT_MAX, &text, &len, e))
        return e->code;
    if (!json_parse(&d, text, len, "'config.json'", e)) {
        put_id(g, json_root(d), "bos_token_id", "tokenizer.ggml.bos_token_id");
        put_id(g, json_root(d), "eos_token_id", "tokenizer.ggml.eos_token_id");
        put_id(g, json_root(d), "pad_token_id",
               "tokenizer.ggml.padding_token_id");
        json_free(d);
        free(text);
        return 0;
    }
    free(text);
    return e->code;
}

static int put_template(struct gguf *g, const char *dir, struct err *e)
{
    static const char key[] = "tokenizer.chat_template";
    struct modeldir m;
    struct json_doc *d;
    char *text = NULL;
    size_t len;
    int rc = modeldir_open(&m, dir, e);

    if (rc)
        return rc;
    if (modeldir_has(&m, "chat_template.jinja")) {
        rc =
            modeldir_slurp(&m, "chat_template.jinja", TEXT_MAX, &text, &len, e);
        if (!rc)
            gguf_string(g, key, text);
    } else if (modeldir_has(&m, "tokenizer_config.json")) {
        rc = modeldir_slurp(&m, "tokenizer_config.json", TEXT_MAX, &text, &len,
                            e);
        if (!rc)
            rc = json_parse(&d, text, len, "'tokenizer_config.json'", e);
        if (!rc) {
            const char *s = text_of(json_root(d), "chat_template");

            if (*s)
                gguf_string(g, key, s);
            json_free(d);
        }
    }
    free(text);
    modeldir_close(&m);
    return rc;
}

/* That we can read it, and whether it puts a token in front. */
static int put_prefix(struct gguf *g, const char *dir, struct err *e)
{
    struct tokenizer *t;

    if (tokenizer_open(&t, dir, e))
        return e->code;
    gguf_bool(g, "tokenizer.ggml.add_bos_token",
              tokenizer_prefix(t)->count > 0);
    gguf_bool(g, "tokenizer.ggml.add_eos_token",
              tokenizer_suffix(t)->count > 0);
    tokenizer_close(t);
    return 0;
}

int gguf_vocab(struct gguf *g, const struct model_config *c, const char *dir,
               struct err *e)
{
    char what[TOKENIZER_WHAT], *text;
    const struct json *root;
    struct json_doc *d;
    const char *split = NULL;
    size_t len;
    /* which also says whether the file is one that we can read */
    int rc = put_prefix(g, dir, e);

    if (!rc)
        rc = tokenizer_text(dir, &text, &len, what, e);
    if (rc)
        return rc;
    rc = json_parse(&d, text, len, what, e);
    free(text);
    if (rc)
        return rc;
    root = json_root(d);
    rc = find_split(json_get(root, "pre_tokenizer"), &split, e);
    if (!rc) {
        gguf_string(g, "tokenizer.ggml.model", "gpt2");
        gguf_string(g, "tokenizer.ggml.pre", split);
        rc = put_tokens(g, root, (uint64_t)c->vocab_size, e);
    }
    if (!rc)
        rc = put_merges(g, json_get(json_get(root, "model"), "merges"), e);
    json_free(d);
    if (rc || put_ids(g, dir, e))
        return e->code;
    return put_template(g, dir, e);
}
