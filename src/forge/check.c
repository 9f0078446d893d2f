/* check.c - what can be known before any work; see request.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io/utf8.h"
#include "forge/env.h"
#include "forge/pipes.h"
#include "forge/request.h"
#include "pack/preflight.h"

/* ---- paths ---- */

/* One component behind a path that is resolved. */
static int append(char to[PATH_MAX], const char *name, size_t n, struct err *e)
{
    size_t len = strlen(to);

    if (!n || (n == 1 && *name == '.'))
        return 0;
    if (n == 2 && !strncmp(name, "..", 2)) {
        char *slash = strrchr(to, '/');

        *(slash == to ? to + 1 : slash) = 0;
        return 0;
    }
    if (len + n + 2 > PATH_MAX)
        return err_set(e, E_USAGE, "'%.200s...': path is too long", to);
    if (to[len - 1] != '/')
        to[len++] = '/';
    memcpy(to + len, name, n);
    to[len + n] = 0;
    return 0;
}

static bool is_utf8(const char *path)
{
    const unsigned char *p = (const unsigned char *)path;
    const unsigned char *end = p + strlen(path);

    while (p < end) {
        size_t n = utf8_length(p, end);

        if (!n)
            return false;
        p += n;
    }
    return true;
}

int path_absolute(const char *path, char to[PATH_MAX], struct err *e)
{
    char head[PATH_MAX], *slash;
    const char *rest = path;

    if (strlen(path) >= PATH_MAX)
        return err_set(e, E_USAGE, "'%.200s...': path is too long", path);
    if (!is_utf8(path)) /* settings are JSON */
        return err_set(e, E_USAGE, "'%s': the path is no UTF-8", path);
    if (realpath(path, to))
        return 0;
    strcpy(head, path); /* ever shorter, until there is something */
    while ((slash = strrchr(head, '/'))) {
        rest = path + (slash - head);
        *(slash == head ? slash + 1 : slash) = 0;
        if (realpath(head, to) || slash == head)
            break;
    }
    if (!slash && !realpath(".", to))
        return err_set(e, E_IO, "'.':");
    if (!slash)
        rest = path;
    while (*rest) {
        size_t n = strcspn(rest, "/");

        if (append(to, rest, n, e) < 0)
            return e->code;
        rest += n + (rest[n] == '/');
    }
    return 0;
}

/* Is a the directory b, or in it? */
static bool inside(const char *a, const char *b)
{
    size_t n = strlen(b);

    return !strncmp(a, b, n) && (!a[n] || a[n] == '/' || b[n - 1] == '/');
}

int check_text(const char *path, struct err *e)
{
    struct stat st;

    if (!path)
        return err_set(e, E_USAGE, "want --text FILE (try --help)");
    if (stat(path, &st))
        return err_set(e, E_NOINPUT, "'%s': no such file", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, E_NOINPUT, "'%s': not a regular file", path);
    if (access(path, R_OK))
        return err_set(e, E_NOINPUT, "'%s': cannot be read", path);
    return st.st_size ? 0 : err_set(e, E_DATA, "'%s': is empty", path);
}

int check_out(const char *given, const char *out, const char *model,
              struct err *e)
{
    char parent[PATH_MAX];
    struct stat st;

    snprintf(parent, sizeof(parent), "%s", given);
    for (size_t n = strlen(parent); n > 1 && parent[n - 1] == '/'; n--)
        parent[n - 1] = 0;
    if (!lstat(parent, &st))
        return err_set(e, E_CREATE, "'%s': exists already", given);
    snprintf(parent, sizeof(parent), "%s", out);
    *(strrchr(parent, '/') == parent ? parent + 1 : strrchr(parent, '/')) = 0;
    if (stat(parent, &st) || !S_ISDIR(st.st_mode) ||
        access(parent, W_OK | X_OK))
        return err_set(e, E_CREATE, "'%s': cannot be created in '%s'", given,
                       parent);
    if (inside(out, model))
        return err_set(e, E_CREATE, "'%s': lies inside the model '%s'", given,
                       model);
    return 0;
}

static int check_work(const struct request *r, struct err *e)
{
    const char *work = r->work_path;

    if (inside(work, r->j.model))
        return err_set(e, E_CREATE, "'%s': --work lies in the model '%s'", work,
                       r->j.model);
    if (inside(work, r->j.out))
        return err_set(e, E_CREATE, "'%s': --work lies in OUT", work);
    return place_check(work, e);
}

int check_paths(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    struct stat st;
    int rc = 0;

    if (stat(r->model, &st) || !S_ISDIR(st.st_mode))
        return err_set(e, E_NOINPUT, "'%s': no such directory", r->model);
    if (j->method == METHOD_GPTQ)
        rc = check_text(r->text, e);
    if (rc || path_absolute(r->model, j->model, e) < 0 ||
        path_absolute(r->out, j->out, e) < 0 ||
        (r->text && path_absolute(r->text, j->text, e) < 0))
        return e->code;
    if (r->work)
        rc = path_absolute(r->work, r->work_path, e);
    else if ((size_t)snprintf(r->work_path, PATH_MAX, "%s.work", j->out) >=
             PATH_MAX)
        rc = err_set(e, E_USAGE, "'%.200s...': path is too long", j->out);
    if (rc || check_out(r->out, j->out, j->model, e) < 0)
        return e->code;
    return check_work(r, e);
}

/* ---- the model ---- */

int check_plain(const char *model, bool packed, struct err *e)
{
    return !packed ?
               0 :
               err_set(e, E_CONFIG,
                       "'%s': is quantized to 4 bits already; 'forge-weights "
                       "%s | forge-pack --layout NAME | forge-shard --from %s "
                       "OUT' stores it in another layout",
                       model, model, model);
}

int check_model(struct request *r, struct err *e)
{
    struct job *j = &r->j;
    const struct preflight p = { .model = j->model,
                                 .layout = (enum layout)j->layout,
                                 .group = (uint64_t)j->group,
                                 .symmetric = j->symmetric };
    uint64_t linears;

    /* sidecars, too; what only some runtimes refuse is a warning, before hours
     * of work */
    if (preflight_check(&p, &linears, e) < 0)
        return e->code;
    plan_release(&r->plan);
    if (plan_model(&r->plan, j->model, j->group, j->symmetric, e) < 0 ||
        check_plain(r->model, r->plan.packed, e) < 0)
        return e->code;
    j->layers = r->plan.layers;
    j->modules = r->plan.modules;
    j->bytes_in = r->plan.bytes_in;
    /* transformers gives the experts of this layout the type of their scales */
    j->bf16_scales = j->layout == LAYOUT_CT && r->plan.bf16_experts;
    return 0;
}

/* ---- the tools ---- */

int check_launch(struct err *e)
{
    static const char *const known[] = { "local", "srun", "ssh" };
    const char *launch = env_text("FORGE_LAUNCH"), *name;
    char first[PATH_MAX];

    snprintf(first, sizeof(first), "%.*s", (int)strcspn(launch, " \t\n"),
             launch);
    name = strrchr(first, '/') ? strrchr(first, '/') + 1 : first;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!*launch || !strcmp(name, known[i]))
            return 0;
    return err_set(e, E_USAGE, "FORGE_LAUNCH: '%s' is no local, srun or ssh",
                   launch);
}

/* What the tools say; with a device, this empty stream is wrong, and no
 * matter. */
int check_device(const struct job *j, struct err *e)
{
    char memory[32];
    struct pipes p;
    int rc;

    if (!strcmp(j->device, "auto") && !j->gpu_memory)
        return 0;
    snprintf(memory, sizeof(memory), "%llu", (unsigned long long)j->gpu_memory);
    pipes_init(&p);
    p.captured = true;
    command_add(pipes_add(&p, "forge-grid"), "--device", j->device, NULL);
    if (j->gpu_memory)
        command_add(&p.command[0], "--gpu-memory", memory, NULL);
    command_add(&p.command[0], "/dev/null", NULL);
    p.out = open("/dev/null", O_WRONLY | O_CLOEXEC);
    rc = pipes_run(&p, e);
    if (p.out >= 0)
        close(p.out);
    return rc == E_USAGE || rc == E_DEVICE ? rc : 0;
}

/* The version that a program carries in itself, see base.c.  What is no program
 * of ours (a script around one) is not looked into. */
static int check_tool(const char *name, struct err *e)
{
    char path[PATH_MAX];
    struct stat st;
    const char *p;
    void *map;
    bool same;
    int fd;

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", env_bindir(), name) >=
        sizeof(path))
        return err_set(e, E_NOINPUT, "'%s': path is too long", name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || access(path, X_OK)) {
        if (fd >= 0)
            close(fd);
        return err_set(e, E_NOINPUT, "'%s':", path);
    }
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return 0;
    p = memmem(map, (size_t)st.st_size, forge_what, WHAT_PREFIX);
    same = !p || !strncmp(p, forge_what, strlen(forge_what) + 1);
    munmap(map, (size_t)st.st_size);
    return same ? 0 :
                  err_set(e, E_CONFIG,
                          "'%s': is not of version %s, as this forge is", path,
                          FORGE_VERSION);
}

int check_tools(struct err *e)
{
    static const char *const tools[] = { "forge-tokens",  "forge-calib",
                                         "forge-hessian", "forge-gradient",
                                         "forge-weights", "forge-grid",
                                         "forge-solve",   "forge-split",
                                         "forge-pack",    "forge-shard" };

    for (size_t i = 0; i < ARRAY_LEN(tools); i++)
        if (check_tool(tools[i], e) < 0)
            return e->code;
    return 0;
}
