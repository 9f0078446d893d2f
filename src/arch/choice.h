/* choice.h - which linears of a model are quantized, by globs over their module
 * paths ("model.layers.3.self_attn.q_proj"; "*" matches dots, too). */
#ifndef FORGE_CHOICE_H
#define FORGE_CHOICE_H

#include "arch/config.h"

struct module_choice {
    const char *const *modules; /* --modules: one of these must match; none:
                                 * every linear does, but kv_b_proj */
    int n_modules;
    const char *const *skip; /* --skip: none of these may match */
    int n_skip;
};

/* Linears of a layer that runtimes load as one matrix. */
enum fused {
    FUSED_NONE,
    FUSED_QKV,
    FUSED_LATENT, /* q_a and kv_a */
    FUSED_GATE_UP,
    FUSED_EXPERTS, /* all of them */
    FUSED_KINDS
};
enum fused linear_fused(const struct linear *l);
/* "all experts of a layer as one": how runtimes load linears of this kind. */
const char *fused_words(enum fused kind);

/* Set c->kv_b if --modules asks for a kv_b_proj of latent attention: otherwise
 * it is not quantized.  To be called before the functions below. */
void module_choice_apply(const struct module_choice *ch,
                         struct model_config *c);
/* Whether a linear with this path is quantized. */
bool module_chosen(const struct module_choice *ch, const char *module);
/* Number of a layer's linears that are. */
int64_t module_chosen_count(const struct module_choice *ch,
                            const struct model_config *c, int64_t layer);
/* Whether it is the same linears in all layers. */
bool module_choice_uniform(const struct module_choice *ch,
                           const struct model_config *c);
/* E_CONFIG: a glob matches no linear of the model; no linear is left; or of
 * linears that runtimes load as one matrix (q, k, v; q_a and kv_a; gate and up;
 * all experts of a layer), some are quantized and some are not. */
MUST_CHECK int module_choice_check(const struct module_choice *ch,
                                   const struct model_config *c, struct err *e);

#endif
