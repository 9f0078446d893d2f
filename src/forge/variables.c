/* variables.c - see variables.h. */
#include "forge/variables.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forge/stops.h"

PRINTF(2, 3)
static char *formatted(struct err *e, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    if (!text)
        err_set(e, E_TEMP, "settings: out of memory");
    return text;
}

/* "LAYERS=0,1,2" */
static char *layer_list(int64_t layers, struct err *e)
{
    char *text = mem_alloc((size_t)layers * 8 + 16, "layers", e), *p = text;

    if (!text)
        return NULL;
    p += sprintf(p, "LAYERS=");
    for (int64_t i = 0; i < layers; i++)
        p += sprintf(p, "%s%" PRId64, i ? "," : "", i);
    return text;
}

/* "STOPS=0-attn_in-3-0,0-attn_out-1-4": each stop with the numbers of its shares and of its
 * pieces. */
static char *stop_list(const struct job *j, struct err *e)
{
    struct stops s = { 0 };
    char *text = NULL, *p;

    if (j->parts > 1 && stops_list(&s, j, e) < 0)
        return NULL;
    p = text = mem_alloc(s.n * (STOP_POINT + 24) + 16, "stops", e);
    if (p)
        p += sprintf(p, "STOPS=");
    for (size_t i = 0; p && i < s.n; i++)
        p += sprintf(p, "%s%" PRId64 "-%s-%" PRId64 "-%" PRId64, i ? "," : "",
                     s.stop[i].layer, s.stop[i].point, s.stop[i].shares,
                     s.stop[i].pieces);
    stops_release(&s);
    return text;
}

int job_variables(const struct job *j, struct job_variables *v, struct err *e)
{
    char dir[STAGE_DIR];

    *v = (struct job_variables){ {
        layer_list(j->layers, e),
        formatted(e, "METHOD=%s",
                  j->search == SEARCH_ABSMAX ? "absmax" :
                  j->method == METHOD_RTN    ? "rtn" :
                                               "gptq"),
        formatted(e, "PROPAGATE=%s",
                  j->propagate == PROPAGATE_ORIGINAL ? "original" :
                                                       "quantized"),
        formatted(e, "FISHER=%s", j->fisher ? "yes" : ""),
        formatted(e, "WEIGHTS=%s", job_weighs(j) ? "yes" : ""),
        formatted(e, "PARTS=%" PRId64, j->parts),
        stop_list(j, e),
        formatted(e, "T=%s", job_tokens_dir(j, dir)),
        formatted(e, "C=%s", job_calib_dir(j, dir)),
        formatted(e, "S=%s", job_solve_dir(j, dir)),
        formatted(e, "TUNE=%s", j->tune ? "yes" : ""),
        formatted(e, "U=%s", job_codes_dir(j, dir)),
        formatted(e, "P=%s",
                  j->layout == JOB_GGUF ? job_packed_dir(j, dir) : ""),
    } };
    for (int i = 0; i < JOB_VARIABLES; i++)
        if (!v->text[i]) {
            job_variables_release(v);
            return e->code;
        }
    return 0;
}

void job_variables_release(struct job_variables *v)
{
    for (int i = 0; i < JOB_VARIABLES; i++)
        free(v->text[i]);
}
