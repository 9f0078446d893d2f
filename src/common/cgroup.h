/* cgroup.h - limits of a control group (cgroups(7)): a container, a batch job. */
#ifndef FORGE_CGROUP_H
#define FORGE_CGROUP_H

enum cgroup_what { CGROUP_MEMORY, CGROUP_CPUS };

/* The smallest limit of the process's groups and their ancestors, of version 1 or 2, in
 * bytes, or in CPUs, of which a part may be allowed; 0: none is known.  root: in front of
 * /proc and /sys, "" but in tests. */
double cgroup_limit(enum cgroup_what what, const char *root);

#endif
