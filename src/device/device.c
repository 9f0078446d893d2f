/* device.c - see device.h. */
#include "device/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What --device says. */
struct named {
    enum device device;
    int number;
    bool turn; /* the number counts modulo the number of GPUs */
};

static struct {
    struct cuda_context *gpu;
    const struct device_table *functions;
    bool demanded, said;
    pthread_t thread; /* of device_begin() */
    bool begun;
    struct named named;
} state;

int device_check(int device, struct err *e)
{
    if (device == DEVICE_CUDA)
        return err_set(e, E_DEVICE,
                       "--device cuda: no usable device: this tool computes "
                       "on the CPU");
    return 0;
}

/* The number behind a name's beginning; -1: it is no such name. */
static int number_behind(const char *name, const char *begin)
{
    size_t n = strlen(begin);
    char *end;
    unsigned long number;

    if (strncmp(name, begin, n) != 0 || name[n] < '0' || name[n] > '9')
        return -1;
    number = strtoul(name + n, &end, 10);
    return *end || number > 1023 ? -1 : (int)number;
}

static int parse_name(const char *name, struct named *n, struct err *e)
{
    static const struct {
        const char *begin;
        enum device device;
        bool turn;
    } forms[] = { { "cuda:", DEVICE_CUDA, false },
                  { "cuda:%", DEVICE_CUDA, true },
                  { "auto:%", DEVICE_AUTO, true } };

    *n = (struct named){ .device = DEVICE_AUTO };
    if (!name || !strcmp(name, "auto"))
        return 0;
    n->device = strcmp(name, "cpu") ? DEVICE_CUDA : DEVICE_CPU;
    if (n->device == DEVICE_CPU || !strcmp(name, "cuda"))
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        n->device = forms[i].device;
        n->turn = forms[i].turn;
        n->number = number_behind(name, forms[i].begin);
        if (n->number >= 0)
            return 0;
    }
    return err_set(e, E_USAGE, "--device: '%s' is none of auto|cpu|cuda|cuda:N",
                   name);
}

int device_name_check(const char *name, struct err *e)
{
    struct named n;

    return parse_name(name, &n, e);
}

/* The number of the GPU among `count`. */
static int number_of(const struct named *n, int count)
{
    return n->turn ? n->number % count : n->number;
}

static int open_cuda(struct plugin_table *stage, const struct named *n,
                     uint64_t memory, struct err *e)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    const struct device_table *device;
    int count;

    if (plugin_load(&own, NULL, e) < 0 ||
        (stage && plugin_load(stage, NULL, e) < 0))
        return e->code;
    device = state.functions = own.functions;
    count = device->count();
    if (!count)
        return err_set(e, E_DEVICE, "no usable device: the driver has none");
    return device->open(&state.gpu, number_of(n, count), memory, e);
}

static void *begin(void *arg)
{
    struct plugin_table own = { DEVICE_TABLE, DEVICE_TABLE_VERSION, NULL };
    const struct device_table *device;
    struct err e;
    int count;

    (void)arg;
    if (plugin_load(&own, NULL, &e) < 0) /* device_open() will say so */
        return NULL;
    device = own.functions;
    count = device->count();
    if (count > 0 && number_of(&state.named, count) < count)
        device->begin(number_of(&state.named, count));
    return NULL;
}

void device_begin(const struct device_choice *c)
{
    struct err e;

    if (parse_name(c->name, &state.named, &e) < 0 ||
        state.named.device == DEVICE_CPU ||
        (state.named.device == DEVICE_AUTO && !plugin_is_likely()))
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
    struct named n;
    int rc = parse_name(c->name, &n, e);

    if (rc < 0)
        return rc;
    state.demanded = n.device == DEVICE_CUDA;
    if (state.begun)
        pthread_join(state.thread, NULL);
    state.begun = false;
    if (n.device == DEVICE_CPU ||
        (n.device == DEVICE_AUTO && !plugin_is_likely()))
        return 0;
    rc = open_cuda(stage, &n, c->memory, e);
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
