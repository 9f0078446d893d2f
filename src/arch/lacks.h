/* lacks.h - what parts of the program do not do for some families. */
#ifndef FORGE_LACKS_H
#define FORGE_LACKS_H

#include "arch/config.h"

/* What the model has that layers on a GPU do not support ("soft caps"); NULL:
 * nothing. */
const char *model_device_lacks(const struct model_config *c);
/* The same of the backward pass (forge-gradient). */
const char *model_gradient_lacks(const struct model_config *c);

#endif
