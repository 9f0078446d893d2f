/* cardtext.c - see cardtext.h. */
#include "checkpoint/cardtext.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/sidecar.h"

#define LETTERS                                                                \
    "abcdefghijklmnopqrstuvwxyz"                                               \
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ"                                               \
    "0123456789 -_.,/+"

enum { STEP_MAX = 4096, RECIPE_MAX = 256 * 1024 };

int card_read(const struct modeldir *model, char **text, struct err *e)
{
    size_t len;

    *text = NULL;
    if (!modeldir_has(model, CARD_FILE))
        return 0;
    if (modeldir_slurp(model, CARD_FILE, SIDECAR_MAX, text, &len, e))
        return e->code;
    if (strlen(*text) != len) {
        free(*text);
        *text = NULL;
    }
    return 0;
}

/* ---- the front matter ---- */

const char *card_front(const char *card, const char **end)
{
    if (!card || strncmp(card, "---\n", 4) != 0)
        return NULL;
    *end = strstr(card + 3, "\n---");
    if (*end)
        (*end)++;
    return *end ? card + 4 : NULL;
}

/* Whether the line at p continues the entry of the line before. */
static bool goes_on(const char *p, const char *end)
{
    return p < end && (*p == ' ' || *p == '-' || *p == '\t' || *p == '\n');
}

const char *card_entry_end(const char *p, const char *end)
{
    do {
        p = memchr(p, '\n', (size_t)(end - p));
        p = p ? p + 1 : end;
    } while (goes_on(p, end));
    return p;
}

bool card_entry_is(const char *p, const char *key)
{
    size_t n = strlen(key);

    return !strncmp(p, key, n) && p[n] == ':';
}

char *card_base_name(const char *card, struct err *e)
{
    static const char key[] = "base_model: ";
    const char *end, *p = card_front(card, &end);

    e->code = 0;
    if (!p || !strstr(end, CARD_MARK))
        return NULL;
    for (; p < end; p = card_entry_end(p, end))
        if (!strncmp(p, key, strlen(key))) {
            p += strlen(key);
            return mem_text(p, strcspn(p, "\n"), "model's name", e);
        }
    return NULL;
}

/* ---- the facts ---- */

bool text_is_plain(const char *text, size_t n)
{
    return strspn(text, LETTERS ";()'") >= n;
}

void card_row(const char *card, const char *name, char *to, size_t cap)
{
    const char *at = card ? strstr(card, CARD_MARK) : NULL;
    char begin[64];
    size_t n;

    *to = '\0';
    snprintf(begin, sizeof(begin), "\n| %s | ", name);
    at = at ? strstr(at, begin) : NULL;
    if (!at)
        return;
    at += strlen(begin);
    n = strcspn(at, "|\n");
    while (n && at[n - 1] == ' ')
        n--;
    if (n < cap && text_is_plain(at, n))
        snprintf(to, cap, "%.*s", (int)n, at);
}

/* ---- the recipe ---- */

bool recipe_is_step(const char *line, size_t n)
{
    return n > 6 && n < STEP_MAX && !strncmp(line, "forge-", 6) &&
           strspn(line, LETTERS ":%=*?[]") >= n;
}

char *recipe_lines(const char *text, const char *between, size_t max,
                   struct err *e)
{
    char *lines;
    size_t at = 0;

    e->code = 0;
    lines = mem_alloc(strnlen(text, max) + 2, "recipe", e);
    while (lines && text) {
        const char *next = strstr(text, between);
        size_t n = next ? (size_t)(next - text) : strlen(text);

        if (!recipe_is_step(text, n) || at + n >= max)
            break;
        memcpy(lines + at, text, n);
        at += n;
        lines[at++] = '\n';
        text = next ? next + strlen(between) : NULL;
    }
    if (lines && at) {
        lines[at - 1] = '\0';
        return lines;
    }
    free(lines);
    return NULL;
}

char *card_recipe(const struct modeldir *model, struct err *e)
{
    char *card, *text = NULL;
    const char *at;

    e->code = 0;
    if (card_read(model, &card, e) || !card)
        return NULL;
    at = strstr(card, CARD_MARK) ? strstr(card, CARD_RECIPE) : NULL;
    if (at)
        text = recipe_lines(at + strlen(CARD_RECIPE), "\n", RECIPE_MAX, e);
    free(card);
    return text;
}
