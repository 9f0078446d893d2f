/* cgroup.c - see cgroup.h. */
#include "common/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/base.h"

/* Where a group of a controller has its limit: `limit`, divided by `period` if there is
 * one (version 2 has both in one file). */
struct place {
    const char *controller, *limit, *period;
};

static const struct place one[] = {
    [CGROUP_MEMORY] = { "memory", "memory.limit_in_bytes", NULL },
    [CGROUP_CPUS] = { "cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us" },
};
static const char *const two[] = {
    [CGROUP_MEMORY] = "memory.max", [CGROUP_CPUS] = "cpu.max"
};

/* Up to two numbers of a file; 0 where it has another word ("max"). */
static void read_numbers(const char *path, double to[2])
{
    FILE *f = fopen(path, "re");

    to[0] = to[1] = 0;
    if (f && fscanf(f, "%lf %lf", &to[0], &to[1]) < 1)
        to[0] = 0;
    if (f)
        fclose(f);
}

/* The limit in directory dir; 0 or less: none. */
static double limit_in(const char *dir, enum cgroup_what what, bool second)
{
    char path[PATH_MAX + 64];
    double n[2], period[2];

    snprintf(path, sizeof(path), "%s/%s", dir,
             second ? two[what] : one[what].limit);
    read_numbers(path, n);
    if (!second && one[what].period) {
        snprintf(path, sizeof(path), "%s/%s", dir, one[what].period);
        read_numbers(path, period);
        n[1] = period[0];
    }
    return n[1] > 0 ? n[0] / n[1] : n[0];
}

/* The smallest limit of the group and its ancestors below dir, which has room behind
 * it; or `least`. */
static double least_of(char *dir, const char *group, enum cgroup_what what,
                       bool second, double least)
{
    size_t n = strlen(dir);
    char *slash;

    snprintf(dir + n, PATH_MAX, "%s", group);
    do {
        double is = limit_in(dir, what, second);

        least = is > 0 && (least <= 0 || is < least) ? is : least;
        slash = strrchr(dir + n, '/');
        if (slash)
            *slash = 0;
    } while (slash);
    return least;
}

/* Whether a list of words with commas has one. */
static bool has(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = list; (p = strstr(p, word)); p++)
        if ((p == list || p[-1] == ',') && (!p[n] || p[n] == ','))
            return true;
    return false;
}

/* /proc/self/cgroup has lines "0::/group", of version 1 "4:cpu,cpuacct:/group". */
double cgroup_limit(enum cgroup_what what, const char *root)
{
    char path[2 * PATH_MAX + 64], line[PATH_MAX], *names, *group;
    double n = 0;
    FILE *f;

    snprintf(path, PATH_MAX, "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        names = strchr(line, ':');
        group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        snprintf(path, PATH_MAX, "%s/sys/fs/cgroup%s%s", root,
                 names[1] ? "/" : "", names[1] ? one[what].controller : "");
        if (!names[1] || has(names + 1, one[what].controller))
            n = least_of(path, group, what, !names[1], n);
    }
    if (f)
        fclose(f);
    return n;
}
