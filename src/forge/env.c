/* env.c - see env.h. */
#include "forge/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char bindir[PATH_MAX], libdir[PATH_MAX];

const char *env_text(const char *name)
{
    const char *v = getenv(name);

    return v ? v : "";
}

int env_number(const char *name, int64_t most, int64_t *to, struct err *e)
{
    const char *v = env_text(name);
    char *end;
    long long n = strtoll(v, &end, 10);

    if (!*v)
        return 0;
    if (*end || n < 0 || n > most)
        return err_set(e, E_USAGE, "%s='%.40s': want a number from 0 to %lld",
                       name, v, (long long)most);
    *to = n;
    return 0;
}

const char *env_bindir(void)
{
    return bindir;
}

const char *env_libdir(void)
{
    return libdir;
}

bool env_away(void)
{
    const char *launch = env_text("FORGE_LAUNCH");

    return (*launch && strcmp(launch, "local") != 0) ||
           *env_text("FORGE_RETRIES");
}

/* What make would take from a makefile that runs this program: options as -n and -i,
 * and more files. */
static void forget_make(void)
{
    static const char *const name[] = { "MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS",
                                        "MAKEFILES", "MAKELEVEL" };

    for (size_t i = 0; i < ARRAY_LEN(name); i++)
        unsetenv(name[i]);
}

int env_setup(struct err *e)
{
    ssize_t n = readlink("/proc/self/exe", bindir, sizeof(bindir) - 1);
    char *path, *slash, mk[PATH_MAX + 32];
    const char *set = env_text("PATH"), *old = *set ? set : "/usr/bin:/bin";
    size_t cap;

    bindir[n > 0 ? n : 0] = 0;
    slash = strrchr(bindir, '/');
    if (!slash)
        return err_set(e, E_NOINPUT, "/proc/self/exe: cannot be read");
    *slash = 0;
    if ((size_t)snprintf(
            libdir, sizeof(libdir), "%.*s/lib/4bit-forge",
            (int)(strrchr(bindir, '/') ? strrchr(bindir, '/') - bindir : 0),
            bindir) >= sizeof(libdir))
        return err_set(e, E_NOINPUT, "'%.200s...': path is too long", bindir);
    snprintf(mk, sizeof(mk), "%s/pipeline.mk", libdir);
    if (access(mk, R_OK))
        return err_set(e, E_NOINPUT, "'%s':", mk);
    cap = strlen(bindir) + strlen(libdir) + strlen(old) + 3;
    path = mem_alloc(cap, "PATH", e);
    if (!path)
        return e->code;
    snprintf(path, cap, "%s:%s:%s", bindir, libdir, old);
    setenv("PATH", path, 1);
    free(path);
    forget_make();
    return 0;
}
