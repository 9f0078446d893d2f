/* place_names.c - see place_names.h. */
#include "work/place_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/tmpdir.h"
#include "work/settings.h"

/* # stands for digits, @ for a key in hexadecimal, * for a word. */
static const struct {
    enum place_where where;
    const char *name;
} made[] = {
    { IN_TOP, PLACE_MARK },
    { IN_TOP, SETTINGS_FILE },
    { IN_TOP, PLACE_TEXT },
    { IN_TOP, "make.log" },
    { IN_TOP, "lock" },
    { IN_TOP, "meter.json" },
    { IN_TOP, "bits-@.fisher" },
    { IN_TOP, "bits-@" },
    { IN_TOKENS, "tokens.fts" },
    { IN_CALIB, "hidden-#.fts" },
    { IN_CALIB, "hessian-#.fts" },
    { IN_CALIB, "fisher.fts" },
    { IN_CALIB, "weights.fts" },
    { IN_PASSING, "hidden.fts" },
    { IN_SOLVE, "codes-#.fts" },
    { IN_SOLVE, "report-#.jsonl" },
    { IN_PASSING, "moments-#-*.part-#.fts" },
    { IN_PASSING, "merged-#-*.piece-#.fts" },
    { IN_PASSING, "states-#-*.part-#.fts" },
    { IN_PASSING, "codes-#-*.share-#-of-#.fts" },
    { IN_PASSING, "outputs-#-*.share-#-of-#.fts" },
    { IN_SOLVE, "stages.jsonl" },
    { IN_SOLVE, "made" },
    { IN_SOLVE, "by-layer-*.jsonl" },
    { IN_TUNED, "text.fts" },
    { IN_TUNED, "own.fts" },
    { IN_TUNED, "codes-#.fts" },
    { IN_TUNED, "report-#.jsonl" },
};

static size_t span(const char *s, int kind)
{
    return kind == '#' ? strspn(s, "0123456789") :
           kind == '@' ? strspn(s, "0123456789abcdef") :
                         strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-");
}

/* The rest of name behind the pattern; NULL: name does not begin with it. */
static const char *after(const char *name, const char *pattern)
{
    for (; *pattern; pattern++) {
        size_t n = 1;

        if (strchr("#@*", *pattern)) {
            n = span(name, *pattern);
            if (!n || (*pattern == '@' && n != 16) ||
                (*pattern == '#' && n > 18))
                return NULL;
        } else if (*name != *pattern) {
            return NULL;
        }
        name += n;
    }
    return name;
}

bool place_status(const char *name, char host[256], long *pid)
{
    const char *from = name + strlen(".status.tmp."), *p;
    char tail[64];

    if (strncmp(name, ".status.tmp.", 12) != 0 || strlen(from) > 255)
        return false;
    p = strrchr(from, '.');
    if (!p || p == from)
        return false;
    while (--p > from && *p != '.')
        ;
    if (p == from)
        return false;
    snprintf(tail, sizeof(tail), ".tmp%s", p);
    snprintf(host, 256, "%.*s", (int)(p - from), from);
    return tmpdir_suffix(tail, pid);
}

const char *place_made(const char *name, enum place_where where)
{
    for (size_t i = 0; i < ARRAY_LEN(made); i++) {
        bool here = made[i].where == where ||
                    (made[i].where == IN_PASSING && where == IN_SOLVE);
        const char *rest = here ? after(name, made[i].name) : NULL;

        if (rest)
            return rest;
    }
    return NULL;
}

int place_stage(const char *name)
{
    static const char *const stage[] = { [IN_TOKENS] = "tokens-@",
                                         [IN_CALIB] = "calib-@",
                                         [IN_SOLVE] = "solve-@",
                                         [IN_TUNED] = "tuned-@" };

    for (int i = IN_TOKENS; i <= IN_TUNED; i++) {
        const char *rest = after(name, stage[i]);

        if (rest && !*rest)
            return i;
    }
    return -1;
}

const char *place_checkpoint(const char *name)
{
    const char *rest = after(name, "pruned-@");

    return rest ? rest : after(name, "packed-@");
}

bool place_hidden(const char *name, int64_t *layer)
{
    const char *rest = after(name, "hidden-#.fts");

    if (!rest || *rest)
        return false;
    *layer = strtoll(name + strlen("hidden-"), NULL, 10);
    return true;
}
