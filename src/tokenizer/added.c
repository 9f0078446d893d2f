/* added.c - see added.h.  Leftmost-longest search by two tries, as in the
 * tokenizers package: one of tokens matched in the raw text, one of tokens
 * that are normalized and matched in the normalized text. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/added.h"
#include "tokenizer/unicode.h"

struct node {
    unsigned char byte;
    uint32_t child, sibling; /* 0: none */
    int32_t token; /* 1 + index into added.token; 0: no token ends here */
};

struct token {
    char *content;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized;
};

struct trie {
    struct node *node; /* node 0 is the root */
    size_t count, cap;
    bool first[256]; /* whether a token starts with this byte */
};

struct added {
    struct token *token;
    size_t count;
    struct trie trie[2]; /* index: normalized */
};

/* ---- the trie ---- */

static uint32_t child_of(const struct trie *t, uint32_t at, unsigned char byte)
{
    uint32_t i = t->node[at].child;

    while (i && t->node[i].byte != byte)
        i = t->node[i].sibling;
    return i;
}

static int new_node(struct trie *t, struct node n, struct err *e)
{
    if (t->count == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 256, bytes;

        if (cap > INT32_MAX || size_mul(cap, sizeof(*t->node), &bytes) ||
            mem_grow(&t->node, bytes, "added tokens", e) < 0)
            return err_set(e, E_TEMP, "added tokens: cannot allocate memory");
        t->cap = cap;
    }
    t->node[t->count++] = n;
    return 0;
}

/* 1: another token has the same text. */
static int trie_add(struct trie *t, const char *text, size_t len, size_t index,
                    struct err *e)
{
    uint32_t at = 0;

    if (!t->count && new_node(t, (struct node){ 0 }, e) < 0)
        return e->code;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t next = child_of(t, at, byte);

        if (!next) {
            struct node n = { byte, 0, t->node[at].child, 0 };

            if (new_node(t, n, e) < 0)
                return e->code;
            next = (uint32_t)t->count - 1;
            t->node[at].child = next;
        }
        at = next;
    }
    if (t->node[at].token)
        return 1;
    t->node[at].token = (int32_t)index + 1;
    t->first[(unsigned char)text[0]] = true;
    return 0;
}

/* The leftmost, then longest, token from pos on: text[*start, *end). */
static const struct token *find(const struct added *a, const struct trie *t,
                                const char *text, size_t len, size_t pos,
                                size_t *start, size_t *end)
{
    for (; pos < len; pos++) {
        int32_t best = 0;
        uint32_t at = 0;

        if (!t->first[(unsigned char)text[pos]])
            continue;
        for (size_t i = pos; i < len; i++) {
            at = child_of(t, at, (unsigned char)text[i]);
            if (!at)
                break;
            if (t->node[at].token) {
                best = t->node[at].token;
                *end = i + 1;
            }
        }
        if (best) {
            *start = pos;
            return &a->token[best - 1];
        }
    }
    return NULL;
}

/* ---- matching ---- */

/* Start of the character before pos > 0. */
static size_t step_back(const char *text, size_t pos)
{
    do
        pos--;
    while (pos && ((unsigned char)text[pos] & 0xc0) == 0x80);
    return pos;
}

static bool is(const char *text, size_t at, int class, size_t *len)
{
    return unicode_class[unicode_decode(text + at, len)] & class;
}

static bool stands_alone(const char *text, size_t len, size_t start, size_t end)
{
    size_t k;

    return !(start && is(text, step_back(text, start), UC_WORD, &k)) &&
           !(end < len && is(text, end, UC_WORD, &k));
}

int added_next(const struct added *a, bool normalized, const char *text,
               size_t len, struct added_walk *w, struct added_match *m)
{
    const struct trie *t = &a->trie[normalized];
    const struct token *found;
    size_t start, end = 0, k;

    if (!t->count)
        return 0;
    while ((found = find(a, t, text, len, w->scan, &start, &end))) {
        w->scan = end;
        if (found->single_word && !stands_alone(text, len, start, end))
            continue;
        if (found->lstrip)
            while (start > w->taken &&
                   is(text, step_back(text, start), UC_SPACE, &k))
                start = step_back(text, start);
        if (found->rstrip)
            while (end < len && is(text, end, UC_SPACE, &k))
                end += k;
        *m = (struct added_match){ start, end, found->id };
        w->taken = end;
        return 1;
    }
    return 0;
}

/* ---- from tokenizer.json ---- */

static int read_token(struct token *t, const struct json *v, const char *what,
                      struct err *e)
{
    const char *content;

    if (!json_string(json_get(v, "content"), &content) ||
        !json_bool(json_get(v, "single_word"), &t->single_word) ||
        !json_bool(json_get(v, "lstrip"), &t->lstrip) ||
        !json_bool(json_get(v, "rstrip"), &t->rstrip) ||
        !json_bool(json_get(v, "normalized"), &t->normalized))
        return err_set(e, E_DATA, "%s: added_tokens: an entry is not complete",
                       what);
    t->content = mem_alloc(strlen(content) + 1, "added tokens", e);
    if (!t->content)
        return e->code;
    strcpy(t->content, content);
    return 0;
}

static struct token *same_content(struct added *a, const char *content)
{
    for (size_t i = 0; i < a->count; i++)
        if (!strcmp(a->token[i].content, content))
            return &a->token[i];
    return NULL;
}

/* A token outside the vocabulary gets the next free id, whatever id the file
 * gives, as in the package; a different id in the file is worth a warning. */
static int read_list(struct added *a, const struct json *list,
                     const struct bpe *b, const char *what, struct err *e)
{
    size_t next = bpe_size(b);

    a->token = mem_zero(json_count(list), sizeof(*a->token), "added tokens", e);
    if (!a->token)
        return e->code;
    for (const struct json *i = json_first(list); i; i = json_after(i)) {
        struct token t = { 0 }, *old;
        int64_t id;

        if (read_token(&t, i, what, e) < 0)
            return e->code;
        old = same_content(a, t.content);
        if (!*t.content || old) {
            if (old) {
                free(old->content);
                t.id = old->id;
                *old = t;
            } else
                free(t.content);
            continue;
        }
        t.id = bpe_find(b, t.content, strlen(t.content));
        if (t.id < 0) {
            if (next > INT32_MAX)
                return err_set(e, E_DATA, "%s: ids are too large", what);
            t.id = (int32_t)next++;
        }
        if (json_int(json_get(i, "id"), &id) && id != t.id)
            warning("%s: added token '%.64s' says id %lld, but loads as %d",
                    what, t.content, (long long)id, (int)t.id);
        a->token[a->count++] = t;
    }
    return 0;
}

int added_open(struct added **out, const struct json *list, const struct bpe *b,
               struct normalizer *n, const char *what, struct err *e)
{
    struct added *a = mem_zero(1, sizeof(*a), "added tokens", e);
    int rc = 0;

    *out = NULL;
    if (!a)
        return e->code;
    unicode_init();
    if (list && json_type(list) == JSON_ARRAY)
        rc = read_list(a, list, b, what, e);
    for (size_t i = 0; i < a->count && !rc; i++) {
        const struct token *t = &a->token[i];
        const char *text = t->content;
        size_t len = strlen(text);

        if (t->normalized)
            rc = normalizer_apply(n, text, len, &text, &len, e);
        if (!rc && len)
            rc = trie_add(&a->trie[t->normalized], text, len, i, e);
        if (rc > 0)
            rc = err_set(e, E_DATA, "%s: added token '%.64s' is there twice",
                         what, t->content);
    }
    if (rc < 0) {
        added_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void added_close(struct added *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->count; i++)
        free(a->token[i].content);
    free(a->token);
    free(a->trie[0].node);
    free(a->trie[1].node);
    free(a);
}
