/* plugin.c - see plugin.h. */
#include "device/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* path[room] of the plug-in; false: there is none. */
static bool find(char *path, size_t room)
{
    static const char *const places[] = { "forge-cuda.so",
                                          "../lib/4bit-forge/forge-cuda.so" };
    char dir[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
    char *slash;

    dir[n > 0 ? n : 0] = '\0';
    slash = strrchr(dir, '/');
    if (!slash)
        return false;
    slash[1] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        snprintf(path, room, "%s%s", dir, places[i]);
        if (access(path, R_OK) == 0)
            return true;
    }
    return false;
}

static int load(struct plugin_table *t, const char *path, struct err *e)
{
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const uint32_t *version;

    if (!so) {
        const char *why = dlerror();

        return err_set(e, E_DEVICE, "cannot open the CUDA plug-in: %s",
                       why ? why : "out of memory");
    }
    version = dlsym(so, t->symbol);
    if (!version)
        return err_set(e, E_DEVICE, "'%s' has no %s", path, t->symbol);
    if (*version != t->version)
        return err_set(e, E_DEVICE, "'%s': %s is version %u: want %u", path,
                       t->symbol, *version, t->version);
    t->functions = version;
    return 0;
}

int plugin_load(struct plugin_table *t, const char *path, struct err *e)
{
    char found[PATH_MAX + 64];

    if (path)
        return load(t, path, e);
    if (find(found, sizeof(found)))
        return load(t, found, e);
    return err_set(e, E_DEVICE,
                   "no usable device: there is no forge-cuda.so beside this "
                   "program");
}

bool plugin_is_likely(void)
{
    char path[PATH_MAX + 64];
    void *driver;

    if (!find(path, sizeof(path)))
        return false;
    driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver)
        dlclose(driver);
    return driver != NULL;
}
