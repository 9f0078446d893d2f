/* printing.c - see printing.h. */
#include "generate/printing.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/cli/tool.h"
#include "common/io/json.h"

int completion_print(void *arg, const char *text, size_t n, struct err *e)
{
    (void)arg;
    if (fwrite(text, 1, n, stdout) != n)
        return err_set(e, E_IO, "cannot write '<stdout>':");
    return flush_stdout(e);
}

static void write_ids(struct json_writer *w, const char *key,
                      const struct token_ids *ids)
{
    jw_key(w, key);
    jw_begin(w, '[');
    for (size_t i = 0; i < ids->count; i++)
        jw_int(w, ids->id[i]);
    jw_end(w, ']');
}

int completion_json(struct completion *t, struct err *e)
{
    struct json_writer w;
    int rc;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    jw_key(&w, "text");
    jw_text(&w, t->text.p, t->text.len);
    jw_key(&w, "finish");
    jw_string(&w, t->stopped ? "stop" : "length");
    write_ids(&w, "prompt_ids", &t->prompt);
    write_ids(&w, "ids", &t->made);
    jw_end(&w, '}');
    rc = w.failed ? err_set(e, E_TEMP, "no memory for a line") :
                    completion_print(NULL, w.text, w.len, e);
    free(w.text);
    return rc;
}

void completion_rates(const struct completion *t)
{
    double made = t->seconds > 0 ? (double)t->made.count / t->seconds : 0;
    double read =
        t->prompt_seconds > 0 ? (double)t->prompt.count / t->prompt_seconds : 0;

    remark("%zu tokens of prompt, %.1f tokens/s; %zu tokens, %.1f tokens/s",
           t->prompt.count, read, t->made.count, made);
}
