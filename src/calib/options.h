/* options.h - the options of forge-calib. */
#ifndef FORGE_CALIB_OPTIONS_H
#define FORGE_CALIB_OPTIONS_H

#include "calib/share.h"
#include "calib/synthetic.h"
#include "common/cli/tool.h"
#include "device/device.h"

struct calib_options {
    struct tool tool;
    int64_t layer; /* -1: not given */
    const char *to, *hidden, *feedback, *loans, *until;
    struct calib_stop stop;
    uint64_t expert_sums, states_memory;
    struct batch_part part;
    struct device_choice device;
    int dtype, propagate, skip_experts, hitmap, kv_b;
    struct opt_list codes, outputs;
    struct share share;
    const char *gaussian; /* --synthetic; NULL: not given */
    struct synthetic synthetic;
    const char *model, *input;
    enum calib_output output;
};

/* Check their combinations, and derive the rest.  E_USAGE. */
MUST_CHECK int calib_options_check(struct calib_options *s, struct err *e);

#endif
