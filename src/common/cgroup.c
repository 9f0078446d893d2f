/* cgroup.c - see cgroup.h. */
#include "common/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/base.h"

/* Files of a controller's group: a limit, which is divided by `period` if there is one
 * (version 2 has both in one file), and what is in use. */
struct place {
    const char *controller, *limit, *period, *use;
    const char *inactive, *active; /* in memory.stat: what can be given back */
};

static const struct place one[] = {
    [CGROUP_MEMORY] = { "memory", "memory.limit_in_bytes", NULL,
                        "memory.usage_in_bytes", "total_inactive_file",
                        "total_active_file" },
    [CGROUP_CPUS] = { .controller = "cpu",
                      .limit = "cpu.cfs_quota_us",
                      .period = "cpu.cfs_period_us" },
};
static const struct place two[] = {
    [CGROUP_MEMORY] = { NULL, "memory.max", NULL, "memory.current",
                        "inactive_file", "active_file" },
    [CGROUP_CPUS] = { .limit = "cpu.max" },
};

/* A file of a directory, or NULL. */
static FILE *open_in(const char *dir, const char *name)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return fopen(path, "re");
}

/* Up to two numbers of a file; 0 where it has another word ("max"). */
static void read_numbers(const char *dir, const char *name, double to[2])
{
    FILE *f = open_in(dir, name);

    to[0] = to[1] = 0;
    if (f && fscanf(f, "%lf %lf", &to[0], &to[1]) < 1)
        to[0] = 0;
    if (f)
        fclose(f);
}

/* Bytes in use without pages of files, which the kernel gives to others. */
static double bytes_used(const char *dir, const struct place *p)
{
    FILE *f = open_in(dir, "memory.stat");
    double used[2], n;
    char word[64];

    read_numbers(dir, p->use, used);
    while (f && fscanf(f, "%63s %lf", word, &n) == 2)
        if (!strcmp(word, p->inactive) || !strcmp(word, p->active))
            used[0] -= n;
    if (f)
        fclose(f);
    return used[0] > 0 ? used[0] : 0;
}

/* What the group of directory dir leaves; 0 or less: it has no limit. */
static double left_in(const char *dir, const struct place *p)
{
    double n[2], period[2];

    read_numbers(dir, p->limit, n);
    if (p->period) {
        read_numbers(dir, p->period, period);
        n[1] = period[0];
    }
    if (p->use && n[0] > 0) {
        n[0] -= bytes_used(dir, p);
        return n[0] > 1 ? n[0] : 1;
    }
    return n[1] > 0 ? n[0] / n[1] : n[0];
}

/* The least that the group and its ancestors below dir, which has room behind it,
 * leave; or `least`. */
static double least_of(char *dir, const char *group, const struct place *p,
                       double least)
{
    size_t n = strlen(dir);
    char *slash;

    snprintf(dir + n, PATH_MAX, "%s", group);
    do {
        double is = left_in(dir, p);

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
double cgroup_left(enum cgroup_what what, const char *root)
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
            n = least_of(path, group, names[1] ? &one[what] : &two[what], n);
    }
    if (f)
        fclose(f);
    return n;
}
