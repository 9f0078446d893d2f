/* plugin.c - see plugin.h. */
#include "device/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cuda/forge_cuda.h"

int plugin_open_file(const struct forge_cuda **cuda, const char *path,
                     struct err *e)
{
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
    forge_cuda_fn *api;

    if (!so) {
        const char *why = dlerror();

        return err_set(e, E_DEVICE, "cannot open the CUDA plug-in: %s",
                       why ? why : "out of memory");
    }
    symbol = dlsym(so, FORGE_CUDA_SYMBOL);
    if (!symbol)
        return err_set(e, E_DEVICE, "'%s' is no plug-in of 4bit-forge", path);
    memcpy(&api, &symbol, sizeof(api)); /* C has no such cast */
    *cuda = api();
    if ((*cuda)->version != FORGE_CUDA_VERSION)
        return err_set(e, E_DEVICE, "'%s' is version %u: want %d", path,
                       (*cuda)->version, FORGE_CUDA_VERSION);
    return 0;
}

/* The path of the plug-in; false: there is none. */
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

int plugin_open(const struct forge_cuda **cuda, struct err *e)
{
    char path[PATH_MAX + 64];

    if (find(path, sizeof(path)))
        return plugin_open_file(cuda, path, e);
    return err_set(e, E_DEVICE,
                   "no usable device: there is no forge-cuda.so beside this "
                   "program");
}

bool plugin_promises(void)
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
