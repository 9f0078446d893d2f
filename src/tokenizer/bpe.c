/* bpe.c - see bpe.h.
 *
 * Without a pre-tokenizer (Llama 2) a text is one piece.  It is cut where no
 * merge can reach across (merges_may_join()): that does not change the ids,
 * and makes pieces of the size of words, which the cache holds. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe.h"
#include "tokenizer/merge.h"
#include "tokenizer/unicode.h"

enum {
    CACHE_SLOTS = 1 << 15, /* two for each hash: the last two pieces stay */
    CACHE_KEY = 37,
    CACHE_IDS = 22,
    PAGES = UNICODE_END >> 8
};

struct cache_slot { /* 128 bytes; a short piece and its ids are in half */
    uint8_t len;    /* of key; 0: free */
    uint8_t n;
    char key[CACHE_KEY];
    int32_t id[CACHE_IDS];
};

struct bpe {
    struct vocab vocab;
    struct merges merges;
    bool bytes, all_bytes, byte_fallback, all_fallback, fuse_unk;
    bool ignore_merges, splits;
    char *unk_missing; /* name of an unknown token that is not in the
                        * vocabulary */
    int32_t unk;       /* id of the unknown token; -1: none, such characters
                        * are dropped */
    int32_t byte_id[256], fallback[256];
    int32_t *page[PAGES]; /* by code point: 1 + id of the character's token,
                           * 0: none */
    struct cache_slot *cache;
    int32_t *id; /* ids of the current piece */
    size_t id_cap;
    char *spelled; /* the current piece in the ByteLevel alphabet */
    size_t spelled_cap;
};

int32_t bpe_find(const struct bpe *b, const char *token, size_t len)
{
    return vocab_find(&b->vocab, token, len);
}

size_t bpe_size(const struct bpe *b)
{
    return b->vocab.count;
}

static inline int32_t char_id(const struct bpe *b, uint32_t cp)
{
    const int32_t *page = b->page[cp >> 8];

    return page ? page[cp & 255] - 1 : -1;
}

/* ---- output ---- */

static void begin_piece(struct bpe_sink *sink)
{
    sink->start[sink->pieces++ % BPE_RECALL] = sink->out->count;
}

int bpe_emit(struct bpe_sink *sink, int32_t id, struct err *e)
{
    begin_piece(sink);
    return token_ids_add(sink->out, &id, 1, e);
}

static int reserve(struct bpe *b, size_t n, struct err *e)
{
    size_t bytes;

    if (n <= b->id_cap)
        return 0;
    if (size_mul(n + n / 2, sizeof(*b->id), &bytes) ||
        mem_grow(&b->id, bytes, "tokenizer", e) < 0)
        return err_set(e, E_TEMP, "tokenizer: cannot allocate memory");
    b->id_cap = n + n / 2;
    return 0;
}

/* ---- a piece to its first ids ---- */

/* Ids of the bytes <0x..> of a character that is not in the vocabulary; false:
 * one of them is missing. */
static bool fall_back(const struct bpe *b, const char *c, size_t k, size_t *n)
{
    for (size_t i = 0; i < k; i++)
        if (b->fallback[(unsigned char)c[i]] < 0)
            return false;
    for (size_t i = 0; i < k; i++)
        b->id[(*n)++] = b->fallback[(unsigned char)c[i]];
    return true;
}

/* One id per character.  An unknown token is appended at the next known
 * character, so that several can become one (fuse_unk). */
static int spell_chars(struct bpe *b, const char *text, size_t len, size_t *n,
                       struct err *e)
{
    bool waiting = false;

    *n = 0;
    if (reserve(b, len, e) < 0)
        return e->code;
    for (size_t at = 0, k; at < len; at += k) {
        uint32_t cp = unicode_decode(text + at, &k);
        int32_t id = char_id(b, cp);

        if (id >= 0) {
            if (waiting)
                b->id[(*n)++] = b->unk;
            waiting = false;
            b->id[(*n)++] = id;
            continue;
        }
        if (b->byte_fallback && fall_back(b, text + at, k, n))
            continue;
        if (b->unk_missing)
            return err_set(e, E_DATA,
                           "character U+%04X is not in the vocabulary, and "
                           "neither is the unknown token '%.64s'",
                           cp, b->unk_missing);
        if (b->unk < 0)
            continue;
        if (waiting && !b->fuse_unk)
            b->id[(*n)++] = b->unk;
        waiting = true;
    }
    if (waiting)
        b->id[(*n)++] = b->unk;
    return 0;
}

static int spell_bytes(struct bpe *b, const char *text, size_t len, size_t *n,
                       struct err *e)
{
    if (reserve(b, len, e) < 0)
        return e->code;
    for (size_t i = 0; i < len; i++)
        b->id[i] = b->byte_id[(unsigned char)text[i]];
    *n = len;
    return 0;
}

/* The piece in the ByteLevel alphabet, to b->spelled. */
static int to_alphabet(struct bpe *b, const char *text, size_t len, size_t *n,
                       struct err *e)
{
    if (2 * len > b->spelled_cap) {
        if (mem_grow(&b->spelled, 3 * len, "tokenizer", e) < 0)
            return e->code;
        b->spelled_cap = 3 * len;
    }
    *n = 0;
    for (size_t i = 0; i < len; i++)
        *n += unicode_encode(unicode_byte_char((unsigned char)text[i]),
                             b->spelled + *n);
    return 0;
}

/* The ids of a piece, to b->id. */
static int encode(struct bpe *b, const char *text, size_t len, size_t *n,
                  struct err *e)
{
    if (b->bytes && (b->ignore_merges || !b->all_bytes)) {
        size_t k = 0;

        if (to_alphabet(b, text, len, &k, e) < 0)
            return e->code;
        if (b->ignore_merges) {
            int32_t id = vocab_find(&b->vocab, b->spelled, k);

            if (id >= 0) {
                *n = 1;
                return reserve(b, 1, e) < 0 ? e->code : (b->id[0] = id, 0);
            }
        }
        if (!b->all_bytes)
            return spell_chars(b, b->spelled, k, n, e) < 0 ?
                       e->code :
                       merges_apply(&b->merges, b->id, n, e);
    }
    if ((b->bytes ? spell_bytes(b, text, len, n, e) :
                    spell_chars(b, text, len, n, e)) < 0)
        return e->code;
    return merges_apply(&b->merges, b->id, n, e);
}

/* ---- pieces ---- */

static int encode_piece(struct bpe *b, const char *text, size_t len,
                        struct bpe_sink *sink, struct err *e)
{
    struct cache_slot *s = NULL;
    size_t n;

    begin_piece(sink);
    if (len <= CACHE_KEY) {
        s = &b->cache[hash_bytes(text, len) % CACHE_SLOTS & ~(size_t)1];
        if (s->len == len && !memcmp(s->key, text, len))
            return token_ids_add(sink->out, s->id, s->n, e);
        if (s[1].len == len && !memcmp(s[1].key, text, len))
            return token_ids_add(sink->out, s[1].id, s[1].n, e);
    }
    if (encode(b, text, len, &n, e) < 0)
        return e->code;
    if (s && n <= CACHE_IDS) {
        if (s->len)
            s[1] = *s;
        s->len = (uint8_t)len;
        s->n = (uint8_t)n;
        memcpy(s->key, text, len);
        memcpy(s->id, b->id, n * sizeof(*b->id));
    }
    return token_ids_add(sink->out, b->id, n, e);
}

/* Cut where no merge reaches across.  Not beside a character that is neither
 * in the vocabulary nor expressible as bytes: it may be dropped, or fused with
 * another one. */
static int encode_parts(struct bpe *b, const char *text, size_t len,
                        struct bpe_sink *sink, struct err *e)
{
    size_t start = 0, k;
    uint32_t left = unicode_decode(text, &k);
    bool left_known = b->all_fallback || char_id(b, left) >= 0;

    for (size_t at = k; at < len; at += k) {
        uint32_t right = unicode_decode(text + at, &k);
        bool known = b->all_fallback || char_id(b, right) >= 0;

        if (left_known && known && !merges_may_join(&b->merges, left, right)) {
            if (encode_piece(b, text + start, at - start, sink, e) < 0)
                return e->code;
            start = at;
        }
        left = right;
        left_known = known;
    }
    return encode_piece(b, text + start, len - start, sink, e);
}

int bpe_encode(struct bpe *b, const char *text, size_t len,
               struct bpe_sink *sink, struct err *e)
{
    if (!len)
        return 0;
    if (b->bytes)
        return encode_piece(b, text, len, sink, e);
    if (b->ignore_merges) {
        int32_t id = vocab_find(&b->vocab, text, len);

        if (id >= 0)
            return bpe_emit(sink, id, e);
    }
    return b->splits ? encode_parts(b, text, len, sink, e) :
                       encode_piece(b, text, len, sink, e);
}

/* ---- from tokenizer.json ---- */

static int read_flag(const struct json *model, const char *key, bool *out,
                     const char *what, struct err *e)
{
    const struct json *v = json_get(model, key);

    *out = false;
    if (!v || json_type(v) == JSON_NULL || json_bool(v, out))
        return 0;
    return err_set(e, E_DATA, "%s: model: '%s' is not true or false", what,
                   key);
}

static int refuse_options(const struct json *model, const char *what,
                          struct err *e)
{
    static const char *const affix[] = { "continuing_subword_prefix",
                                         "end_of_word_suffix" };
    const struct json *dropout = json_get(model, "dropout");
    const char *type = "BPE", *text;
    double p;

    if (json_get(model, "type") && !json_string(json_get(model, "type"), &type))
        return err_set(e, E_DATA, "%s: model: type is no string", what);
    if (strcmp(type, "BPE"))
        return err_set(e, E_CONFIG,
                       "%s: model '%.64s' is not supported, "
                       "only BPE",
                       what, type);
    if (dropout && json_type(dropout) != JSON_NULL &&
        (!json_number(dropout, &p) || p != 0))
        return err_set(e, E_CONFIG, "%s: model with dropout is not supported",
                       what);
    for (size_t i = 0; i < ARRAY_LEN(affix); i++) {
        const struct json *v = json_get(model, affix[i]);

        if (v && json_type(v) != JSON_NULL && (!json_string(v, &text) || *text))
            return err_set(e, E_CONFIG, "%s: model with %s is not supported",
                           what, affix[i]);
    }
    return 0;
}

static int read_unk(struct bpe *b, const struct json *model, const char *what,
                    struct err *e)
{
    const struct json *v = json_get(model, "unk_token");
    const char *text;

    b->unk = -1;
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (!json_string(v, &text))
        return err_set(e, E_DATA, "%s: model: unk_token is no string", what);
    b->unk = vocab_find(&b->vocab, text, strlen(text));
    if (b->unk >= 0)
        return 0;
    b->unk_missing = mem_alloc(strlen(text) + 1, "tokenizer", e);
    if (!b->unk_missing)
        return e->code;
    strcpy(b->unk_missing, text);
    return 0;
}

static int index_chars(struct bpe *b, struct err *e)
{
    for (size_t i = 0; i < b->vocab.count; i++) {
        const struct vocab_token *t = &b->vocab.token[i];
        uint32_t cp;
        size_t k = 0;

        if (!t->len)
            continue;
        cp = unicode_decode(t->text, &k);
        if (k != t->len)
            continue;
        if (!b->page[cp >> 8])
            b->page[cp >> 8] = mem_zero(256, sizeof(int32_t), "tokenizer", e);
        if (!b->page[cp >> 8])
            return e->code;
        b->page[cp >> 8][cp & 255] = t->id + 1;
    }
    return 0;
}

static void index_bytes(struct bpe *b)
{
    static const char hex[] = "0123456789ABCDEF";

    b->all_bytes = b->bytes;
    b->all_fallback = b->byte_fallback;
    b->splits = !b->merges.always_heap &&
                !(b->unk >= 0 && merges_use(&b->merges, b->unk));
    for (unsigned i = 0; i < 256; i++) {
        const char name[] = { '<', '0', 'x', hex[i >> 4], hex[i & 15], '>' };

        b->byte_id[i] = char_id(b, unicode_byte_char((unsigned char)i));
        b->fallback[i] = vocab_find(&b->vocab, name, sizeof(name));
        if (b->byte_id[i] < 0)
            b->all_bytes = false;
        if (b->fallback[i] < 0)
            b->all_fallback = false;
        else if (b->byte_fallback && b->splits &&
                 merges_use(&b->merges, b->fallback[i]))
            b->splits = false;
    }
}

static int load(struct bpe *b, const struct json *model, const char *what,
                struct err *e)
{
    if (!model || json_type(model) != JSON_OBJECT)
        return err_set(e, E_DATA, "%s: no model", what);
    if (refuse_options(model, what, e) < 0 ||
        read_flag(model, "fuse_unk", &b->fuse_unk, what, e) < 0 ||
        read_flag(model, "byte_fallback", &b->byte_fallback, what, e) < 0 ||
        read_flag(model, "ignore_merges", &b->ignore_merges, what, e) < 0 ||
        vocab_init(&b->vocab, json_get(model, "vocab"), what, e) < 0 ||
        read_unk(b, model, what, e) < 0 ||
        merges_init(&b->merges, json_get(model, "merges"), &b->vocab, what, e) <
            0 ||
        index_chars(b, e) < 0)
        return e->code;
    index_bytes(b);
    b->cache = mem_zero(CACHE_SLOTS, sizeof(*b->cache), "tokenizer", e);
    return b->cache ? 0 : e->code;
}

int bpe_open(struct bpe **out, const struct json *model, bool bytes,
             const char *what, struct err *e)
{
    struct bpe *b = mem_zero(1, sizeof(*b), "tokenizer", e);

    *out = NULL;
    if (!b)
        return e->code;
    b->bytes = bytes;
    if (load(b, model, what, e) < 0) {
        bpe_close(b);
        return e->code;
    }
    *out = b;
    return 0;
}

void bpe_close(struct bpe *b)
{
    if (!b)
        return;
    vocab_release(&b->vocab);
    merges_release(&b->merges);
    for (size_t i = 0; i < PAGES; i++)
        free(b->page[i]);
    free(b->unk_missing);
    free(b->cache);
    free(b->id);
    free(b->spelled);
    free(b);
}
