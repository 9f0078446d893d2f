/* made.c - see made.h. */
#include "checkpoint/made.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/cardtext.h"
#include "checkpoint/internal.h"
#include "checkpoint/safetensors.h"
#include "layout/layout.h"

static const char producer[] = "4bit-forge ";

static const char *text_of(const struct json *v, const char *key)
{
    const char *s = "";

    (void)!json_string(json_get(v, key), &s);
    return s;
}

/* to[MADE_TEXT] = a member of v, if it is short and plain. */
static void take_text(char *to, const struct json *v, const char *key)
{
    const char *s = text_of(v, key);
    size_t n = strlen(s);

    if (n < MADE_TEXT && text_is_plain(s, n))
        memcpy(to, s, n + 1);
}

static void take_layout(struct made *m, const struct json *v)
{
    const char *s = text_of(v, "layout");
    enum layout l;

    if (layout_parse(s, &l))
        snprintf(m->layout, sizeof(m->layout), "%s", layout_name(l));
}

static void take_sha256(struct made *m, const struct json *v, const char *key)
{
    const char *hex = text_of(v, key);

    if (strlen(hex) == SHA256_HEX &&
        strspn(hex, "0123456789abcdef") == SHA256_HEX)
        strcpy(m->text_sha256, hex);
}

/* Metadata have numbers as text; 0: this is none. */
static int64_t count_of(const struct json *v, const char *key)
{
    const char *s = text_of(v, key);
    size_t n = strlen(s);

    return n && n < 18 && strspn(s, "0123456789") == n ? atoll(s) : 0;
}

static int take_recipe(struct made *m, const char *text, const char *between,
                       struct err *e)
{
    m->recipe = recipe_lines(text, between, MADE_RECIPE, e);
    return m->recipe ? 0 : e->code;
}

/* ---- of a checkpoint ---- */

/* Of the first file: all have the same. */
static int read_header(struct checkpoint *c, char **text, size_t *len,
                       struct err *e)
{
    struct file *f;
    int rc = checkpoint_shard(c, 0, &f, e);

    if (rc)
        return rc;
    rc = safetensors_header(f, c->shard[0].name, text, len, e);
    checkpoint_leave(c, 0);
    return rc;
}

/* *ours: whether there are metadata, and 4bit-forge wrote them. */
static int take_metadata(struct made *m, const struct json *v, bool *ours,
                         struct err *e)
{
    *ours = !strncmp(text_of(v, "producer"), producer, strlen(producer));
    if (!*ours)
        return 0;
    take_layout(m, v);
    take_sha256(m, v, "calibration_text_sha256");
    m->sequences = count_of(v, "calibration_sequences");
    m->tokens = count_of(v, "calibration_tokens");
    return take_recipe(m, text_of(v, "recipe"), "; ", e);
}

static int read_metadata(struct made *m, struct checkpoint *c, bool *ours,
                         struct err *e)
{
    struct json_doc *d;
    char *text;
    size_t len;
    int rc = read_header(c, &text, &len, e);

    if (rc)
        return rc;
    rc = json_parse(&d, text, len, c->shard[0].name, e);
    free(text);
    if (rc)
        return rc;
    rc = take_metadata(m, json_get(json_root(d), "__metadata__"), ours, e);
    json_free(d);
    return rc;
}

/* A card that cannot be a model's is as none. */
static int read_rows(struct made *m, struct checkpoint *c, struct err *e)
{
    char *card, *base;
    int rc = card_read(&c->dir, &card, e);

    if (rc || !card)
        return rc == E_DATA || rc == E_NOINPUT ? 0 : rc;
    card_row(card, "method", m->method, sizeof(m->method));
    card_row(card, "loss", m->loss, sizeof(m->loss));
    base = card_base_name(card, e);
    if (base && strlen(base) < MADE_TEXT && text_is_plain(base, strlen(base)))
        strcpy(m->base, base);
    free(card);
    if (!base)
        return e->code;
    free(base);
    return 0;
}

int made_read(struct made *m, struct checkpoint *c, struct err *e)
{
    bool ours = false;

    *m = (struct made){ 0 };
    if (c->kind != SHARD_SAFETENSORS || !c->n_shards)
        return 0;
    if (read_metadata(m, c, &ours, e))
        return e->code;
    return ours && !c->only ? read_rows(m, c, e) : 0;
}

/* ---- in HEAD ---- */

int made_facts(struct checkpoint *c, char **json, struct err *e)
{
    struct json_writer j;
    struct made m;

    *json = NULL;
    if (made_read(&m, c, e)) {
        made_release(&m);
        return e->code;
    }
    jw_init(&j, 0);
    jw_begin(&j, '{');
    jw_known_text(&j, "layout", m.layout);
    jw_known_text(&j, "recipe", m.recipe);
    jw_known_text(&j, "text_sha256", m.text_sha256);
    jw_known_count(&j, "sequences", m.sequences ? m.sequences : -1);
    jw_known_count(&j, "tokens", m.tokens ? m.tokens : -1);
    jw_known_text(&j, "method", m.method);
    jw_known_text(&j, "loss", m.loss);
    jw_end(&j, '}');
    made_release(&m);
    if (!j.failed && strcmp(j.text, "{}") != 0) {
        *json = j.text;
        return 0;
    }
    free(j.text);
    return j.failed ? err_set(e, E_TEMP, "HEAD: out of memory") : 0;
}

static void take_count(int64_t *to, const struct json *v, const char *key)
{
    if (!json_int(json_get(v, key), to) || *to < 0)
        *to = 0;
}

int made_take(struct made *m, const struct json *v, struct err *e)
{
    if (!v || *m->layout || m->recipe)
        return 0;
    take_layout(m, v);
    take_sha256(m, v, "text_sha256");
    take_count(&m->sequences, v, "sequences");
    take_count(&m->tokens, v, "tokens");
    take_text(m->method, v, "method");
    take_text(m->loss, v, "loss");
    return take_recipe(m, text_of(v, "recipe"), "\n", e);
}

void made_release(struct made *m)
{
    free(m->recipe);
    *m = (struct made){ 0 };
}
