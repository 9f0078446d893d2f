/* lacks.h - what parts of the program do not do for some families. */
#ifndef FORGE_LACKS_H
#define FORGE_LACKS_H

#include "arch/config.h"

/* What the model has, with sequences of up to so many tokens, that layers on a GPU
 * do not support ("sparse attention beyond index_topk"); NULL: nothing. */
const char *model_device_lacks(const struct model_config *c, int64_t tokens);
/* The same of the backward pass (forge-gradient), wherever it runs. */
const char *model_gradient_lacks(const struct model_config *c, int64_t tokens);

#endif
