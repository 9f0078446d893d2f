/* Limits of control groups, of both versions, in directories as the kernel makes them. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cgroup.h"

static char root[] = "/tmp/forge-test-XXXXXX";

/* Write a file below root, and the directories that lead there. */
static void put(const char *name, const char *text)
{
    char path[200];
    FILE *f;

    CHECK(snprintf(path, sizeof(path), "%s/%s", root, name) <
          (int)sizeof(path));
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0777);
    }
    f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void begin(const char *groups)
{
    char command[80];

    snprintf(command, sizeof(command), "rm -rf %s/sys %s/proc", root, root);
    CHECK(system(command) == 0);
    put("proc/self/cgroup", groups);
}

static void limits(double memory, double cpus)
{
    CHECK(cgroup_left(CGROUP_MEMORY, root) == memory);
    CHECK(cgroup_left(CGROUP_CPUS, root) == cpus);
}

static void test_second(void)
{
    begin("0::/pods/one/box\n");
    limits(0, 0);
    put("sys/fs/cgroup/pods/one/box/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/pods/one/box/memory.max", "max\n");
    limits(0, 0);
    put("sys/fs/cgroup/pods/cpu.max", "250000 100000\n");
    put("sys/fs/cgroup/pods/memory.max", "4096000\n");
    limits(4096000, 2.5);
    put("sys/fs/cgroup/pods/one/cpu.max",
        "300000 50000\n"); /* more than above */
    put("sys/fs/cgroup/pods/one/box/memory.max", "1000\n");
    limits(1000, 2.5);
    put("sys/fs/cgroup/pods/other/cpu.max", "1000 100000\n");
    limits(1000, 2.5);

    /* of 1 GB 700 MB are in use, 600 of which are pages of files */
    put("sys/fs/cgroup/pods/memory.max", "1000000000\n");
    put("sys/fs/cgroup/pods/memory.current", "700000000\n");
    put("sys/fs/cgroup/pods/memory.stat",
        "anon 90000000\nfile 610000000\ninactive_anon 5\n"
        "inactive_file 200000000\nactive_file 400000000\nunevictable 7\n");
    put("sys/fs/cgroup/pods/one/box/memory.max", "max\n");
    limits(900000000, 2.5);
    put("sys/fs/cgroup/pods/one/box/memory.max", "800000000\n");
    limits(800000000, 2.5);
    put("sys/fs/cgroup/pods/one/box/memory.current", "800000000\n");
    limits(1, 2.5); /* nothing is left */

    begin("0::/\n"); /* a container that sees its own group as the first one */
    put("sys/fs/cgroup/cpu.max", "50000 100000\n");
    limits(0, 0.5);
}

static void test_first(void)
{
    begin("5:memory:/jobs/7\n3:cpuset:/no\n2:cpu,cpuacct:/jobs/8\n0::/\n");
    limits(0, 0);
    put("sys/fs/cgroup/cpu/jobs/8/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/jobs/8/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpuset/no/cpu.cfs_quota_us", "1\n");
    limits(0, 0);
    put("sys/fs/cgroup/cpu/jobs/8/cpu.cfs_quota_us", "600000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
    put("sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes",
        "9223372036854771712\n");
    limits(5000, 6);

    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "4500\n");
    put("sys/fs/cgroup/memory/memory.stat",
        "inactive_file 9\ntotal_inactive_file 1000\ntotal_active_file 500\n");
    limits(2000, 6);

    begin("2:cpuacct:/a\n1:xcpu,cpux:/a\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "600000\n");
    put("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    limits(0, 0);
}

static void test_nothing(void)
{
    begin("");
    limits(0, 0);
    begin("no colon\n1\n:\n");
    limits(0, 0);
    CHECK(cgroup_left(CGROUP_CPUS, "/nowhere/at/all") == 0);
}

int main(void)
{
    char command[80];

    CHECK(mkdtemp(root));
    test_second();
    test_first();
    test_nothing();
    snprintf(command, sizeof(command), "rm -r %s", root);
    CHECK(system(command) == 0);
    return 0;
}
