/* lacks.h - what parts of the program do not do for some families. */
#ifndef FORGE_LACKS_H
#define FORGE_LACKS_H

#include "arch/config.h"

/* What the model has, with sequences of up to so many tokens, that the backward
 * pass (forge-gradient) does not support ("soft caps"); NULL: nothing. */
const char *gradient_lacks(const struct model_config *c, int64_t tokens);
/* The same of the backward pass on a GPU. */
const char *gradient_device_lacks(const struct model_config *c, int64_t tokens);
/* The same of layers on a GPU. */
const char *model_lacks(const struct model_config *c, int64_t tokens);

#endif
