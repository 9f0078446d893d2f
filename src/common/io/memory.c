/* memory.c - see memory.h. */
#include "common/io/memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base.h"

static double least(double a, double b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* The number in a file; 0 when it has another word ("max"). */
static double number_of(const char *path)
{
    FILE *f = fopen(path, "re");
    double n = 0;

    if (f && fscanf(f, "%lf", &n) != 1)
        n = 0;
    if (f)
        fclose(f);
    return n;
}

/* The smallest limit of the group and its ancestors. */
static double group_limit(const char *root, char *group, const char *file)
{
    char path[PATH_MAX + 64], *slash;
    double n = 0;

    for (;;) {
        snprintf(path, sizeof(path), "%s%s/%s", root, group, file);
        n = least(number_of(path), n);
        slash = strrchr(group, '/');
        if (!slash)
            return n;
        *slash = 0;
    }
}

/* Parse /proc/self/cgroup (cgroups(7)): lines "0::/group", in version 1
 * "4:memory:/group". */
static double groups_limit(void)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX], *names, *group;
    double n = 0;

    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        names = strchr(line, ':');
        group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (!names[1])
            n = least(group_limit("/sys/fs/cgroup", group, "memory.max"), n);
        else if (!strcmp(names + 1, "memory"))
            n = least(group_limit("/sys/fs/cgroup/memory", group,
                                  "memory.limit_in_bytes"),
                      n);
    }
    if (f)
        fclose(f);
    return n;
}

static double of_machine(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[256];
    double kib = 0;

    while (f && kib <= 0 && fgets(line, sizeof(line), f))
        if (!strncmp(line, "MemAvailable:", 13))
            kib = strtod(line + 13, NULL);
    if (f)
        fclose(f);
    return kib * 1024;
}

double memory_available(void)
{
    return least(groups_limit(), of_machine());
}
