/* progress.c - see progress.h.  A line is one write(2), like a message. */
#include "common/cli/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/cli/units.h"
#include "common/io/json.h"

enum { LINE_MAX_LEN = 512, COLUMNS = 80 };
static const double shortest_gap = 0.1; /* seconds between two drawings */

static void put(const char *text, size_t n)
{
    if (write(2, text, n) < 0)
        return; /* there is no other place for a message */
}

PRINTF(3, 4)
static size_t add(char *line, size_t at, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line + at, LINE_MAX_LEN - at, fmt, ap);
    va_end(ap);
    if (n < 0)
        return at;
    return at + (size_t)n < LINE_MAX_LEN ? at + (size_t)n : LINE_MAX_LEN - 1;
}

static size_t add_bytes(char *line, size_t at, double n, const char *suffix)
{
    char text[UNIT_TEXT];

    return add(line, at, "%s%s", size_text(text, n), suffix);
}

static size_t add_seconds(char *line, size_t at, double s)
{
    char text[UNIT_TEXT];

    return add(line, at, "%s", span_text(text, s));
}

static void show_json(const struct progress *p, double t, const char *event)
{
    struct json_writer w;

    jw_init(&w, 0);
    jw_begin(&w, '{');
    jw_key(&w, "v"), jw_int(&w, 1);
    jw_key(&w, "event"), jw_string(&w, event);
    jw_key(&w, "tool"), jw_string(&w, progname);
    jw_key(&w, "t"), jw_number(&w, (double)(int64_t)(t * 1000) / 1000);
    jw_key(&w, "unit"), jw_string(&w, p->unit);
    jw_key(&w, "done"), jw_int(&w, (int64_t)p->done);
    if (p->total)
        jw_key(&w, "total"), jw_int(&w, (int64_t)p->total);
    if (p->n_layers) {
        jw_key(&w, "layers"), jw_int(&w, (int64_t)p->layers);
        jw_key(&w, "n_layers"), jw_int(&w, (int64_t)p->n_layers);
    }
    jw_key(&w, "bytes"), jw_int(&w, (int64_t)p->bytes);
    if (p->loss >= 0)
        jw_key(&w, "loss"), jw_number(&w, p->loss);
    if (p->item)
        jw_key(&w, "item"), jw_string(&w, p->item);
    jw_end(&w, '}');
    if (!w.failed) {
        w.text[w.len] = '\n'; /* in place of the NUL */
        put(w.text, w.len + 1);
    }
    free(w.text);
}

int progress_columns(void)
{
    struct winsize w;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) || !w.ws_col ? COLUMNS :
                                                               w.ws_col;
}

static void show_line(struct progress *p, double t)
{
    char line[LINE_MAX_LEN];
    size_t n = add(line, 0, "\r%s: ", progname);

    if (p->n_layers)
        n = add(line, n, "layer %llu/%llu  ", (unsigned long long)p->layers,
                (unsigned long long)p->n_layers);
    n = add(line, n, "%llu", (unsigned long long)p->done);
    if (p->total)
        n = add(line, n, "/%llu", (unsigned long long)p->total);
    n = add(line, n, " %s  ", p->unit);
    if (p->bytes && t > 0)
        n = add_bytes(line, n, (double)p->bytes / t, "/s  ");
    if (p->total > p->done && p->done) {
        n = add(line, n, "ETA ");
        n = add_seconds(line, n,
                        t / (double)p->done * (double)(p->total - p->done));
        n = add(line, n, "  ");
    }
    if (p->loss >= 0)
        n = add(line, n, "loss %.3g  ", p->loss);
    if (p->item)
        n = add(line, n, "%s", p->item);
    if (n > (size_t)progress_columns())
        n = (size_t)progress_columns(); /* a longer line would wrap and not
                                         * be redrawn */
    for (size_t i = 1; i < n; i++)
        if ((unsigned char)line[i] < 0x20)
            line[i] = '?';
    n = add(line, n, "\033[K");
    put(line, n);
    p->drawn = true;
}

void progress_start(struct progress *p, int mode, const char *unit,
                    uint64_t total)
{
    *p = (struct progress){
        .mode = (enum progress_mode)mode,
        .unit = unit,
        .total = total,
        .loss = -1,
        .started = seconds_now(),
    };
    if (p->mode == PROGRESS_AUTO)
        p->mode =
            verbosity >= 0 && isatty(2) ? PROGRESS_ALWAYS : PROGRESS_NEVER;
}

void progress_step(struct progress *p, const char *item, uint64_t bytes)
{
    double t;

    p->done++;
    p->bytes += bytes;
    p->item = item;
    if (p->mode == PROGRESS_NEVER)
        return;
    t = seconds_now();
    if (t - p->shown < shortest_gap)
        return;
    p->shown = t;
    if (p->mode == PROGRESS_JSON)
        show_json(p, t - p->started, "step");
    else
        show_line(p, t - p->started);
}

void progress_finish(struct progress *p, const char *extra)
{
    char line[LINE_MAX_LEN];
    double t = seconds_now() - p->started;
    size_t n = 0;

    p->item = NULL; /* it was valid during the last step only */
    if (p->drawn)
        n = add(line, n, "\r\033[K");
    if (verbosity >= 0 && p->mode == PROGRESS_JSON) {
        show_json(p, t, "end");
    } else if (verbosity >= 0) {
        n = add(line, n, "%s: %llu %s, ", progname, (unsigned long long)p->done,
                p->unit);
        if (p->bytes)
            n = add_bytes(line, n, (double)p->bytes, ", ");
        n = add_seconds(line, n, t);
        if (p->bytes && t > 0) {
            n = add(line, n, ", ");
            n = add_bytes(line, n, (double)p->bytes / t, "/s");
        }
        n = add(line, n, "%s%s", extra ? "; " : "", extra ? extra : "");
        line[n < LINE_MAX_LEN - 1 ? n++ : n] = '\n';
    }
    put(line, n);
}
