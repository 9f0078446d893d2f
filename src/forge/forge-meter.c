/* forge-meter - run a command, and print its time and the peak memory of its
 * process tree.  See forge-meter(1). */
#include <stdio.h>
#include <stdlib.h>

#include "common/cli/opt.h"
#include "common/cli/units.h"
#include "common/io/file.h"
#include "forge/meter.h"

struct settings {
    const char *output;
    int64_t interval;
    int quiet;
};

static int parse(int argc, char **argv, struct settings *s)
{
    const struct opt table[] = {
        { OPT_OUTPUT, 'o', "output", "FILE",
          "write the figures as JSON to FILE", &s->output, 0, 0, true },
        { OPT_INT, 'i', "interval", "MS", "look every MS milliseconds [100]",
          &s->interval, 1, 60000, true },
        { OPT_FLAG, 'q', "quiet", NULL, "no line on stderr", &s->quiet, 0, 0,
          true },
        { OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false }
    };
    int i = opt_parse(argc, argv, "[option]... -- command [argument]...",
                      "Run a command; say its seconds and the peak memory of "
                      "its process tree.",
                      table);

    verbosity = s->quiet ? -1 : 1;
    if (i == argc)
        die(E_USAGE, "no command given (try --help)");
    return i;
}

static void report(const struct settings *s, const struct meter *m)
{
    char text[256], peak[UNIT_TEXT];
    struct err e;
    int n = snprintf(text, sizeof(text),
                     "{\"seconds\":%.3f,\"peak_bytes\":%llu,\"status\":%d}\n",
                     m->seconds, (unsigned long long)m->peak, m->status);

    if (s->output && publish_text(s->output, text, (size_t)n, &e) < 0)
        die_err(&e);
    info("%.2f s, peak %s", m->seconds, size_text(peak, (double)m->peak));
}

int main(int argc, char **argv)
{
    struct settings s = { .interval = 100 };
    int command = parse(argc, argv, &s);
    struct meter m;
    struct err e;

    if (meter_run(argv + command, s.interval, NULL, &m, &e) < 0)
        die_err(&e);
    report(&s, &m);
    return m.status;
}
