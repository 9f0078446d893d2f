/* memory.c - see memory.h. */
#include "common/io/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cgroup.h"

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
    double group = cgroup_left(CGROUP_MEMORY, ""), machine = of_machine();

    return group > 0 && (machine <= 0 || group < machine) ? group : machine;
}
