/* config_parts.h - the parts of config.c that are files of their own.
 *
 * o: the root object of config.json.  Errors as model_config_read(). */
#ifndef FORGE_CONFIG_PARTS_H
#define FORGE_CONFIG_PARTS_H

#include "common/base.h"

struct family;
struct json;
struct model_config;

/* c->layer_linear, c->layer_nope, c->layer_slides and what belongs to them. */
MUST_CHECK int config_read_layers(struct model_config *c, const struct json *o,
                                  struct err *e);
/* c->altup, c->layer_width; after config_read_layers(). */
MUST_CHECK int config_read_altup(struct model_config *c, const struct json *o,
                                 struct err *e);
/* c->rope, from rope_scaling or rope_parameters, and c->rotary. */
MUST_CHECK int config_read_rope(struct model_config *c, const struct json *o,
                                struct err *e);
/* c->mla, and the head sizes that follow from it. */
MUST_CHECK int config_read_mla(struct model_config *c, const struct json *o,
                               struct err *e);
/* c->moe; nothing for a family without experts. */
MUST_CHECK int config_read_moe(struct model_config *c, const struct json *o,
                               struct err *e);
/* The row with this model_type; NULL: not supported. */
const struct family *family_find(const char *model_type);
/* The i-th row; NULL: there are no more. */
const struct family *family_at(size_t i);
/* E_CONFIG: this model_type, with the config o, is not supported; its nearest relative
 * is, if it has one (relative.c). */
MUST_CHECK int family_refuse(const char *model_type, const struct json *o,
                             struct err *e);
/* The multimodal model with this model_type; NULL: not one that is known. */
const struct wrapper *wrapper_find(const char *model_type);
const struct wrapper *wrapper_at(size_t i);
/* E_CONFIG: this multimodal model is not supported; as family_refuse(). */
MUST_CHECK int wrapper_refuse(const char *model_type, struct err *e);

#endif
