/* cgroup.h - limits of a control group (cgroups(7)): a container, a batch job. */
#ifndef FORGE_CGROUP_H
#define FORGE_CGROUP_H

enum cgroup_what { CGROUP_MEMORY, CGROUP_CPUS };

/* The least that the process's groups and their ancestors, of version 1 or 2, leave to
 * it: bytes of their limits that are not in use (1: none), or CPUs, of which a part may be
 * allowed.  0: no limit is known.  root: in front of /proc and /sys, "" but in tests. */
double cgroup_left(enum cgroup_what what, const char *root);

#endif
