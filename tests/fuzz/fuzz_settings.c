/* Any bytes as WORK/settings.json: refused, or settings that steps may use: every
 * word that reaches make or a tool is one of ours. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "forge/job.h"
#include "forge/variables.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static char dir[256];

static void remove_dir(void)
{
    char path[sizeof(dir) + 16];

    snprintf(path, sizeof(path), "%s/settings.json", dir);
    unlink(path);
    rmdir(dir);
}

/* A new file each time: ext4 flushes one that is cut and written again. */
static void write_settings(const uint8_t *data, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    char path[sizeof(dir) + 16];
    FILE *f;

    if (!*dir) {
        snprintf(dir, sizeof(dir), "%s/fuzz-settings.XXXXXX",
                 tmp ? tmp : "/tmp");
        if (!mkdtemp(dir))
            abort();
        atexit(remove_dir);
    }
    snprintf(path, sizeof(path), "%s/settings.json", dir);
    unlink(path);
    f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f))
        abort();
}

static void check_words(const struct job_words *w)
{
    for (int i = 0; i < w->n; i++)
        if (strspn(w->text[i], "abcdefghijklmnopqrstuvwxyz0123456789-_.") !=
            strlen(w->text[i]))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct job_variables v;
    struct job_words words;
    struct job j;
    struct err e;

    write_settings(data, n);
    if (job_read(&j, dir, &e) < 0)
        return 0;
    job_grid(&j, &words);
    check_words(&words);
    job_solve(&j, &words);
    check_words(&words);
    if (j.layers < 10000 && !job_variables(&j, &v, &e)) {
        for (int i = 0; i < JOB_VARIABLES; i++)
            if (strpbrk(v.text[i], "$`;|&<>()\\\"' \t\n#*?"))
                abort();
        job_variables_release(&v);
    }
    job_release(&j);
    return 0;
}
