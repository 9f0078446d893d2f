/* backward_table.c - see backward_table.h: the CPU's table, and the device's. */
#include "model/backward_table.h"

#include "common/cli/units.h"
#include "device/device.h"
#include "model/backward.h"
#include "model/backward_parts.h"

const struct backward_table backward_cpu = {
    .version = BACKWARD_TABLE_VERSION,
    .widen = widen_cpu,
    .narrow = narrow_cpu,
    .linear = linear_back_cpu,
    .norm = norm_back_cpu,
    .mlp = mlp_back_cpu,
    .gates = gates_cpu,
    .attend = attend_back_cpu,
    .latent = latent_cpu,
    .head = head_back_cpu,
};

static int use(struct model *m, struct cuda_context *c, struct err *e)
{
    struct plugin_table t = { BACKWARD_TABLE, BACKWARD_TABLE_VERSION, NULL };
    double need = gradient_device_bytes(&m->config, m->size);
    char a[UNIT_TEXT], b[UNIT_TEXT];
    size_t room;

    if (plugin_load(&t, NULL, e) < 0 ||
        forward_functions()->room(c, &room, e) < 0)
        return e->code;
    if (need > (double)room)
        return err_set(e, E_TEMP,
                       "cuda: gradients of a layer take %s of GPU memory, "
                       "there are %s",
                       size_text(a, need), size_text(b, (double)room));
    m->on = forward_functions();
    m->context = c;
    m->back = t.functions;
    return 0;
}

int backward_use_device(struct model *m, struct err *e)
{
    struct cuda_context *c = device_gpu();
    int rc = c ? use(m, c, e) : 0;

    return rc < 0 && device_declined(&rc, e) ? 0 : rc;
}
