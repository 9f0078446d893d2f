/* advice.h - what some runtimes will not load, said while packing. */
#ifndef FORGE_PACK_ADVICE_H
#define FORGE_PACK_ADVICE_H

#include "pack/packer.h"

/* Print, once per kind, what concerns a module.  *advised: the kinds printed so far,
 * bits of layout_advice(). */
void pack_advise(const struct pack_run *run, const struct pack_module *m,
                 unsigned *advised);

#endif
