/* backward_cpu_table.c - see backward_table.h: the functions of the CPU. */
#include "model/backward_parts.h"

const struct backward_table backward_cpu = {
    .version = BACKWARD_TABLE_VERSION,
    .widen = widen_cpu,
    .narrow = narrow_cpu,
    .scale = scale_cpu,
    .squares = squares_cpu,
    .linear = linear_back_cpu,
    .norm = norm_back_cpu,
    .weights = weights_back_cpu,
    .mlp = mlp_back_cpu,
    .gates = gates_cpu,
    .attend = attend_back_cpu,
    .latent = latent_cpu,
    .head = head_back_cpu,
};
