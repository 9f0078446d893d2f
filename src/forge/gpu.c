/* gpu.c - see gpu.h. */
#include "forge/gpu.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/io/json.h"

enum { ANSWER = 2048 };

static int ask(struct gpu *g, struct err *e)
{
    g->asked = popen(g->command, "re");
    return g->asked ? 0 : err_set(e, E_TEMP, "forge-device:");
}

int gpu_ask(struct gpu *g, const char *device, uint64_t memory, bool shared,
            struct err *e)
{
    char limit[48] = "";

    if (device_name_check(device, e) < 0)
        return e->code;
    if (!strcmp(device, "cpu") ||
        (!strcmp(device, "auto") && !plugin_is_likely()))
        return 0;
    if (shared)
        mps_start(&g->mps);
    /* the device's name has no character that a shell knows */
    if (memory)
        snprintf(limit, sizeof(limit), " --gpu-memory %" PRIu64, memory);
    snprintf(g->command, sizeof(g->command),
             "exec forge-device --json --device %s%s 2>&1", device, limit);
    return ask(g, e);
}

static int take_answer(struct gpu *g, const char *text, struct err *e)
{
    struct device_facts *f = &g->facts;
    struct json_doc *d;
    const struct json *root;
    const char *stamp = "";
    int64_t memory = 0, left = 0, room = 0;
    int rc = 0;

    if (json_parse(&d, text, strlen(text), "forge-device", e) < 0)
        return e->code;
    root = json_root(d);
    if (!json_string(json_get(root, "device"), &stamp) ||
        !json_int(json_get(root, "memory"), &memory) ||
        !json_int(json_get(root, "free"), &left) ||
        !json_int(json_get(root, "room"), &room))
        rc = err_set(e, E_BUG, "forge-device: no answer");
    snprintf(f->stamp, sizeof(f->stamp), "%s", stamp);
    f->memory = (uint64_t)memory;
    f->free = (uint64_t)left;
    f->room = (uint64_t)room;
    json_free(d);
    return rc;
}

static int learn(struct gpu *g, struct err *e)
{
    static const char asked[] = "forge-device: "; /* it is no cause */
    char text[ANSWER];
    size_t n;
    int status;

    n = fread(text, 1, sizeof(text) - 1, g->asked);
    text[n] = 0;
    status = pclose(g->asked);
    g->asked = NULL;
    if (!status)
        return take_answer(g, text, e);
    text[strcspn(text, "\n")] = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) < 64 ||
        WEXITSTATUS(status) > 78)
        return err_set(e, E_BUG, "forge-device: ended with %d: %s", status,
                       text);
    return err_set(e, -WEXITSTATUS(status), "%s",
                   strncmp(text, asked, strlen(asked)) ? text :
                                                         text + strlen(asked));
}

int gpu_learn(struct gpu *g, struct err *e)
{
    int rc = g->asked ? learn(g, e) : 0;

    if (!g->mps.control || (!rc && *g->facts.stamp))
        return rc;
    mps_end(&g->mps);
    return ask(g, e) < 0 ? e->code : learn(g, e);
}

void gpu_release(struct gpu *g)
{
    if (g->asked)
        pclose(g->asked);
    g->asked = NULL;
    mps_end(&g->mps);
}
