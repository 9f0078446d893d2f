/* config_parts.h - what config.c is made of: parts of config.json, a file each. */
#ifndef FORGE_CONFIG_PARTS_H
#define FORGE_CONFIG_PARTS_H

#include "common/base.h"

struct family;
struct json;
struct model_config;

/* c->rope, from rope_scaling or rope_parameters; c->rotary too. */
MUST_CHECK int config_read_rope(struct model_config *c, const struct json *o,
                                struct err *e);
/* c->mla and the widths of heads that follow from it. */
MUST_CHECK int config_read_mla(struct model_config *c, const struct json *o,
                               struct err *e);
/* c->moe */
MUST_CHECK int config_read_moe(struct model_config *c, const struct json *o,
                               struct err *e);
/* The family with this model_type; NULL. */
const struct family *family_find(const char *model_type);
/* "llama, mistral, ...", for messages. */
void family_list(char *buf, size_t n);

#endif
