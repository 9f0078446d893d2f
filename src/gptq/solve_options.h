/* solve_options.h - the command line of forge-solve. */
#ifndef FORGE_SOLVE_OPTIONS_H
#define FORGE_SOLVE_OPTIONS_H

#include "common/device.h"
#include "common/tool.h"
#include "gptq/module.h"

struct solve_settings {
    struct tool tool;
    struct module_params module;
    const char *report; /* NULL: none */
    struct device_choice device;
    /* private: words and numbers that become module */
    int order, method, strict, effort, positive;
    int64_t sweeps, factors;
};

/* Exits as the command line says: after --help, or with E_USAGE.  Returns the
 * index of the operand; argc when there is none. */
int solve_parse(struct solve_settings *s, int argc, char **argv);

#endif
