/* stage_took.c - see stage_took.h. */
#include "forge/stage_took.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/io/file.h"
#include "common/io/json.h"

/* Of this process and of the tools, which have ended. */
static double cpu_seconds(void)
{
    static const int of[] = { RUSAGE_SELF, RUSAGE_CHILDREN };
    double sum = 0;

    for (size_t i = 0; i < ARRAY_LEN(of); i++) {
        struct rusage u;

        if (getrusage(of[i], &u))
            continue;
        sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    }
    return sum;
}

static void put_step(const struct stage *s, double seconds,
                     struct json_writer *w)
{
    char host[HOST_LEN] = "";

    gethostname(host, sizeof(host) - 1);
    jw_init(w, 0);
    jw_begin(w, '{');
    jw_key(w, "stage"), jw_string(w, s->name);
    if (s->layer >= 0)
        jw_key(w, "layer"), jw_int(w, s->layer);
    if (s->stop < s->stops.n) {
        jw_key(w, "point"), jw_string(w, s->stops.stop[s->stop].point);
        jw_key(w, "number"), jw_int(w, s->number);
    }
    if (s->stops.n)
        jw_key(w, "host"), jw_string(w, host);
    jw_key(w, "seconds"), jw_number(w, round(seconds * 1e3) / 1e3);
    jw_key(w, "cpu"), jw_number(w, round(cpu_seconds() * 1e3) / 1e3);
    jw_end(w, '}');
}

void stage_took(const struct stage *s, double seconds)
{
    struct json_writer w;
    char path[PATH_ROOM];
    struct err e;
    int fd;

    put_step(s, seconds, &w);
    if (file_in_place(&fd, stage_path(path, s->S, "stages.jsonl"),
                      O_WRONLY | O_APPEND | O_CLOEXEC, &e) < 0) {
        warning("%s", e.msg);
    } else {
        if (w.failed || dprintf(fd, "%s\n", w.text) < 0)
            warning("'%s': cannot be written", path);
        close(fd);
    }
    free(w.text);
}
