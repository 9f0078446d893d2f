/* lacks.h - what parts of the program do not do for some families. */
#ifndef FORGE_LACKS_H
#define FORGE_LACKS_H

#include "arch/config.h"

/* What the model has, with sequences of up to so many tokens, that neither layers
 * on a GPU nor the backward pass (forge-gradient) support ("linear attention");
 * NULL: nothing. */
const char *model_lacks(const struct model_config *c, int64_t tokens);

#endif
