/* solve_options.h - the command line of forge-solve. */
#ifndef FORGE_SOLVE_OPTIONS_H
#define FORGE_SOLVE_OPTIONS_H

#include "common/cli/tool.h"
#include "device/device.h"
#include "device/ledger.h"
#include "gptq/solve/module.h"

struct solve_settings {
    struct tool tool;
    struct module_params module;
    const char *report; /* NULL: none */
    struct device_choice device;
    const char *loans; /* NULL: none */
    /* private to solve_parse(): option values that become `module` */
    int order, method, strict, effort, positive;
    int64_t sweeps, factors;
};

/* Parse the command line.  As opt_parse() it returns the index of the first
 * operand, and ends the process on a wrong one. */
int solve_parse(struct solve_settings *s, int argc, char **argv);

#endif
