/* device.c - see device.h. */
#include "device/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    struct cuda_context *gpu;
    const struct device_table *functions;
    bool demanded, said;
    pthread_t thread; /* of device_begin() */
    bool begun;
    int number;
} state;

int device_check(int device, struct err *e)
{
    if (device == DEVICE_CUDA)
        return err_set(e, E_DEVICE,
                       "--device cuda: no usable device: this tool computes "
                       "on the CPU");
    return 0;
}

static int parse_name(const char *name, enum device *device, int *number,
                      struct err *e)
{
    char *end = NULL;
    unsigned long n = 0;

    *number = 0;
    *device = DEVICE_AUTO;
    if (!name || !strcmp(name, "auto"))
        return 0;
    *device = !strcmp(name, "cpu") ? DEVICE_CPU : DEVICE_CUDA;
    if (*device == DEVICE_CPU || !strcmp(name, "cuda"))
        return 0;
    if (!strncmp(name, "cuda:", 5) && name[5] >= '0' && name[5] <= '9')
        n = strtoul(name + 5, &end, 10);
    if (!end || *end || n > 1023)
        return err_set(e, E_USAGE,
                       "--device: '%s' is none of auto|cpu|cuda|cuda:N", name);
    *number = (int)n;
    return 0;
}

int device_name_check(const char *name, struct err *e)
{
    enum device device;
    int number;

    return parse_name(name, &device, &number, e);
}

static int open_cuda(struct plugin_table *stage, int number, uint64_t memory,
                     struct err *e)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    const struct device_table *device;

    if (plugin_load(&own, NULL, e) < 0 ||
        (stage && plugin_load(stage, NULL, e) < 0))
        return e->code;
    device = state.functions = own.functions;
    if (!device->count())
        return err_set(e, E_DEVICE, "no usable device: the driver has none");
    return device->open(&state.gpu, number, memory, e);
}

static void *begin(void *arg)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    const struct device_table *device;
    struct err e;

    (void)arg;
    if (plugin_load(&own, NULL, &e) < 0) /* device_open() will say so */
        return NULL;
    device = own.functions;
    if (device->count() > state.number)
        device->begin(state.number);
    return NULL;
}

void device_begin(const struct device_choice *c)
{
    enum device device;
    struct err e;

    if (parse_name(c->name, &device, &state.number, &e) < 0 ||
        device == DEVICE_CPU || (device == DEVICE_AUTO && !plugin_is_likely()))
        return;
    state.begun = !pthread_create(&state.thread, NULL, begin, NULL);
}

void device_prepare(bool factors)
{
    struct err e;

    if (state.gpu) /* or the first work will say so */
        (void)!state.functions->prepare(state.gpu, factors, &e);
}

/* E_CONFIG: the open device is not the one that the run was planned with. */
static int check_stamp(const struct device_choice *c, struct err *e)
{
    struct device_facts f;
    size_t n;

    if (!c->want)
        return 0;
    if (!state.gpu)
        return err_set(e, E_CONFIG,
                       "the run was planned on '%s', which is not here",
                       c->want);
    if (state.functions->facts(state.gpu, c->factors, &f, e) < 0)
        return e->code;
    n = strlen(f.stamp); /* without factors it is the first part of it */
    if (strncmp(f.stamp, c->want, n) || (c->want[n] && c->want[n] != ','))
        return err_set(e, E_CONFIG, "the run was planned on '%s', this is '%s'",
                       c->want, f.stamp);
    return 0;
}

/* 0 also where there is none. */
static int find_device(const struct device_choice *c,
                       struct plugin_table *stage, struct err *e)
{
    enum device device;
    int number, rc;

    rc = parse_name(c->name, &device, &number, e);
    if (rc < 0)
        return rc;
    state.demanded = device == DEVICE_CUDA;
    if (state.begun)
        pthread_join(state.thread, NULL);
    state.begun = false;
    if (device == DEVICE_CPU || (device == DEVICE_AUTO && !plugin_is_likely()))
        return 0;
    rc = open_cuda(stage, number, c->memory, e);
    if (rc < 0)
        state.gpu = NULL;
    if (rc < 0 && state.demanded)
        return err_prefix(e, "--device %s", c->name);
    if (rc < 0)
        info("%s: computing on the CPU", e->msg);
    return 0;
}

int device_open(const struct device_choice *c, struct plugin_table *stage,
                struct err *e)
{
    int rc = find_device(c, stage, e);

    return rc < 0 ? rc : check_stamp(c, e);
}

struct cuda_context *device_gpu(void)
{
    return state.gpu;
}

const struct device_table *device_functions(void)
{
    return state.functions;
}

bool device_declined(int *rc, struct err *e)
{
    if (*rc != E_CONFIG && *rc != E_TEMP)
        return false;
    if (state.demanded) {
        if (*rc == E_CONFIG)
            *rc = e->code = E_DEVICE;
        return false;
    }
    if (!state.said)
        info("%s: on the CPU instead", e->msg);
    state.said = true;
    return true;
}
