/* pretokenize.c - see pretokenize.h.
 *
 * Each step splits its text and passes every piece to the next step at once,
 * so no list of pieces is held. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/pretokenize.h"
#include "tokenizer/scan.h"
#include "tokenizer/split.h"
#include "tokenizer/unicode.h"

enum { STEPS_MAX = 16 };

enum behavior {
    ISOLATED,
    REMOVED,
    MERGED_WITH_PREVIOUS,
    MERGED_WITH_NEXT,
    CONTIGUOUS
};

struct step {
    enum { STEP_SPLIT, STEP_BYTES, STEP_METASPACE } kind;
    struct pattern *pattern; /* NULL: this step does not split */
    enum behavior behavior;
    bool invert;
    bool prefix_space;                     /* ByteLevel: add_prefix_space */
    enum { NEVER, FIRST, ALWAYS } prepend; /* Metaspace: prepend_scheme */
    char replacement[5];
    size_t replacement_len;
    char *text; /* the changed text */
    size_t cap;
};

struct pretokenizer {
    struct step step[STEPS_MAX];
    int n_steps;
};

/* What the levels of one call share. */
struct run {
    struct pretokenizer *p;
    struct bpe *bpe;
    struct bpe_sink *sink;
    struct err *e;
};

static int run_step(const struct run *r, int level, const char *text,
                    size_t len, bool first);

/* ---- splitting ---- */

/* Joins the matches of a pattern and the text between them into pieces, by
 * behavior. */
struct cut {
    const struct run *r;
    int level;
    const char *text;
    bool first;
    size_t start, end; /* the pending piece */
    bool pending, pending_match, any;
};

static int flush(struct cut *c)
{
    size_t start = c->start, end = c->end;

    if (!c->pending)
        return 0;
    c->pending = false;
    return start == end ? 0 :
                          run_step(c->r, c->level + 1, c->text + start,
                                   end - start, c->first && !start);
}

/* Add the next part of the text: a match, or what lies between two matches. */
static int cut_add(struct cut *c, const struct step *s, size_t start,
                   size_t end, bool match)
{
    bool previous = c->any && c->pending_match, join = false;

    if (s->invert)
        match = !match;
    if (s->behavior == CONTIGUOUS)
        join = match == previous;
    else if (s->behavior == MERGED_WITH_PREVIOUS)
        join = match && !previous;
    else if (s->behavior == MERGED_WITH_NEXT)
        join = !match && previous;
    c->any = true;
    c->pending_match = match;
    if (join && c->pending) {
        c->end = end;
        return 0;
    }
    if (flush(c) < 0)
        return c->r->e->code;
    if (s->behavior == REMOVED && match)
        return 0;
    c->pending = true;
    c->start = start;
    c->end = end;
    return s->behavior == ISOLATED || s->behavior == REMOVED ? flush(c) : 0;
}

static int cut(const struct run *r, int level, const char *text, size_t len,
               bool first)
{
    struct step *s = &r->p->step[level];
    struct cut c = { .r = r, .level = level, .text = text, .first = first };
    struct pattern_walk w;
    size_t done = 0, start, end;
    int rc;

    if (!s->pattern)
        return run_step(r, level + 1, text, len, first);
    if (pattern_begin(s->pattern, &w, text, len, r->e) < 0)
        return r->e->code;
    while ((rc = pattern_next(s->pattern, &w, &start, &end, r->e)) > 0) {
        if ((start != done && cut_add(&c, s, done, start, false) < 0) ||
            cut_add(&c, s, start, end, true) < 0)
            return r->e->code;
        done = end;
    }
    if (rc < 0 || (done != len && cut_add(&c, s, done, len, false) < 0))
        return r->e->code;
    return flush(&c);
}

/* ---- steps that change the text ---- */

static int reserve(struct step *s, size_t n, struct err *e)
{
    if (n > s->cap) {
        if (mem_grow(&s->text, n + n / 2, "pre-tokenizer", e) < 0)
            return e->code;
        s->cap = n + n / 2;
    }
    return 0;
}

static int run_bytes(const struct run *r, int level, const char *text,
                     size_t len, bool first)
{
    struct step *s = &r->p->step[level];

    if (!s->prefix_space || text[0] == ' ')
        return cut(r, level, text, len, first);
    if (reserve(s, len + 1, r->e) < 0)
        return r->e->code;
    s->text[0] = ' ';
    memcpy(s->text + 1, text, len);
    return cut(r, level, s->text, len + 1, first);
}

static int run_metaspace(const struct run *r, int level, const char *text,
                         size_t len, bool first)
{
    struct step *s = &r->p->step[level];
    size_t k = s->replacement_len, need = len + k, n = 0;
    bool blank =
        text[0] == ' ' || (len >= k && !memcmp(text, s->replacement, k));

    for (size_t i = 0; i < len; i++)
        need += text[i] == ' ' ? k - 1 : 0;
    if (reserve(s, need, r->e) < 0)
        return r->e->code;
    if (!blank && (s->prepend == ALWAYS || (s->prepend == FIRST && first))) {
        memcpy(s->text, s->replacement, k);
        n = k;
    }
    for (size_t i = 0; i < len; i++)
        if (text[i] == ' ') {
            memcpy(s->text + n, s->replacement, k);
            n += k;
        } else
            s->text[n++] = text[i];
    return cut(r, level, s->text, n, first);
}

static int run_step(const struct run *r, int level, const char *text,
                    size_t len, bool first)
{
    if (level == r->p->n_steps)
        return bpe_encode(r->bpe, text, len, r->sink, r->e);
    switch (r->p->step[level].kind) {
    case STEP_BYTES: return run_bytes(r, level, text, len, first);
    case STEP_METASPACE: return run_metaspace(r, level, text, len, first);
    default: return cut(r, level, text, len, first);
    }
}

int pretokenizer_run(struct pretokenizer *p, struct bpe *b, const char *text,
                     size_t len, bool first, struct bpe_sink *sink,
                     struct err *e)
{
    struct run r = { p, b, sink, e };

    return len ? run_step(&r, 0, text, len, first) : 0;
}

bool pretokenizer_is_bytes(const struct pretokenizer *p)
{
    return p->n_steps && p->step[p->n_steps - 1].kind == STEP_BYTES;
}

bool pretokenizer_asks_first(const struct pretokenizer *p)
{
    for (int i = 0; i < p->n_steps; i++)
        if (p->step[i].kind == STEP_METASPACE && p->step[i].prepend == FIRST)
            return true;
    return false;
}

/* ---- from tokenizer.json ---- */

static int want_bool(const struct json *v, const char *key, bool *out,
                     const char *what, struct err *e)
{
    if (json_bool(json_get(v, key), out))
        return 0;
    return err_set(e, E_DATA, "%s: pre-tokenizer: no true or false for '%s'",
                   what, key);
}

static int set_split(struct step *s, const struct json *v, const char *what,
                     struct err *e)
{
    static const char *const words[] = { "Isolated", "Removed",
                                         "MergedWithPrevious", "MergedWithNext",
                                         "Contiguous" };
    const struct json *pattern = json_get(v, "pattern");
    const char *text, *behavior;
    size_t i = 0;

    s->kind = STEP_SPLIT;
    if (!json_string(json_get(v, "behavior"), &behavior))
        return err_set(e, E_DATA, "%s: Split has no behavior", what);
    while (i < ARRAY_LEN(words) && strcmp(words[i], behavior))
        i++;
    if (i == ARRAY_LEN(words))
        return err_set(e, E_CONFIG, "%s: Split behavior '%.64s' is not known",
                       what, behavior);
    s->behavior = (enum behavior)i;
    if (want_bool(v, "invert", &s->invert, what, e) < 0)
        return e->code;
    if (json_string(json_get(pattern, "Regex"), &text))
        return pattern_regex(&s->pattern, text, what, e);
    if (json_string(json_get(pattern, "String"), &text))
        return pattern_literal(&s->pattern, text, what, e);
    return err_set(e, E_DATA, "%s: Split has no pattern", what);
}

static int set_bytes(struct step *s, const struct json *v, const char *what,
                     struct err *e)
{
    bool regex = true;

    s->kind = STEP_BYTES;
    if (json_get(v, "use_regex") &&
        want_bool(v, "use_regex", &regex, what, e) < 0)
        return e->code;
    if (want_bool(v, "add_prefix_space", &s->prefix_space, what, e) < 0)
        return e->code;
    return regex ? pattern_regex(&s->pattern, scan_gpt2_regex, what, e) : 0;
}

static int set_metaspace(struct step *s, const struct json *v, const char *what,
                         struct err *e)
{
    static const char *const words[] = { "never", "first", "always" };
    const char *text, *scheme = "always";
    bool split = true, prefix = true;
    size_t k = 0, i = 0;

    s->kind = STEP_METASPACE;
    if (!json_string(json_get(v, "replacement"), &text))
        return err_set(e, E_DATA, "%s: Metaspace has no replacement", what);
    if (*text)
        unicode_decode(text, &k);
    if (!k || text[k])
        return err_set(e, E_DATA,
                       "%s: Metaspace: replacement is not one character", what);
    memcpy(s->replacement, text, k + 1);
    s->replacement_len = k;
    if (json_get(v, "prepend_scheme") &&
        !json_string(json_get(v, "prepend_scheme"), &scheme))
        return err_set(e, E_DATA, "%s: Metaspace: no prepend_scheme", what);
    while (i < ARRAY_LEN(words) && strcmp(words[i], scheme))
        i++;
    if (i == ARRAY_LEN(words))
        return err_set(e, E_CONFIG, "%s: prepend_scheme '%.64s' is not known",
                       what, scheme);
    s->prepend = (int)i;
    if (json_bool(json_get(v, "add_prefix_space"), &prefix) && !prefix &&
        s->prepend != NEVER)
        return err_set(e, E_DATA,
                       "%s: add_prefix_space contradicts prepend_scheme", what);
    if (json_get(v, "split") && json_type(json_get(v, "split")) != JSON_NULL &&
        want_bool(v, "split", &split, what, e) < 0)
        return e->code;
    s->behavior = MERGED_WITH_NEXT;
    return split ? pattern_literal(&s->pattern, s->replacement, what, e) : 0;
}

static int set_digits(struct step *s, const struct json *v, const char *what,
                      struct err *e)
{
    bool each;

    if (want_bool(v, "individual_digits", &each, what, e) < 0)
        return e->code;
    s->kind = STEP_SPLIT;
    s->behavior = each ? ISOLATED : CONTIGUOUS;
    return pattern_scanner(&s->pattern, scan_number, e);
}

static int add_step(struct pretokenizer *p, const struct json *v,
                    const char *what, struct err *e);

static int add_sequence(struct pretokenizer *p, const struct json *v,
                        const char *what, struct err *e)
{
    const struct json *list = json_get(v, "pretokenizers");

    if (!list || json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "%s: pre-tokenizer: Sequence without a list",
                       what);
    for (const struct json *i = json_first(list); i; i = json_after(i))
        if (add_step(p, i, what, e) < 0)
            return e->code;
    return 0;
}

static int add_step(struct pretokenizer *p, const struct json *v,
                    const char *what, struct err *e)
{
    static const struct {
        const char *type;
        int (*set)(struct step *, const struct json *, const char *,
                   struct err *);
    } kinds[] = { { "Split", set_split },
                  { "ByteLevel", set_bytes },
                  { "Metaspace", set_metaspace },
                  { "Digits", set_digits } };
    const char *type;

    if (!json_string(json_get(v, "type"), &type))
        return err_set(e, E_DATA, "%s: pre-tokenizer has no type", what);
    if (!strcmp(type, "Sequence"))
        return add_sequence(p, v, what, e);
    if (p->n_steps == STEPS_MAX)
        return err_set(e, E_CONFIG, "%s: more than %d pre-tokenizers", what,
                       STEPS_MAX);
    if (pretokenizer_is_bytes(p))
        return err_set(e, E_CONFIG,
                       "%s: pre-tokenizer '%.64s' after ByteLevel is not "
                       "supported",
                       what, type);
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (!strcmp(kinds[i].type, type))
            return kinds[i].set(&p->step[p->n_steps++], v, what, e);
    return err_set(e, E_CONFIG, "%s: pre-tokenizer '%.64s' is not supported",
                   what, type);
}

int pretokenizer_open(struct pretokenizer **out, const struct json *v,
                      const char *what, struct err *e)
{
    struct pretokenizer *p = mem_zero(1, sizeof(*p), "pre-tokenizer", e);

    *out = NULL;
    if (!p)
        return e->code;
    unicode_init();
    if (v && json_type(v) != JSON_NULL && add_step(p, v, what, e) < 0) {
        pretokenizer_close(p);
        return e->code;
    }
    for (int i = 1; i < p->n_steps; i++)
        if (p->step[i].kind == STEP_METASPACE && p->step[i].prepend == FIRST) {
            pretokenizer_close(p);
            return err_set(e, E_CONFIG,
                           "%s: Metaspace with prepend_scheme 'first' behind "
                           "another pre-tokenizer is not supported",
                           what);
        }
    *out = p;
    return 0;
}

void pretokenizer_close(struct pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_steps; i++) {
        pattern_close(p->step[i].pattern);
        free(p->step[i].text);
    }
    free(p);
}
