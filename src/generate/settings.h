/* settings.h - a model's own settings for generation: end tokens and
 * sampling. */
#ifndef FORGE_GENERATE_SETTINGS_H
#define FORGE_GENERATE_SETTINGS_H

#include "common/base.h"

enum { STOPS_MAX = 64 };

/* Values of generation_config.json, or defaults. */
struct generate_settings {
    int32_t stop[STOPS_MAX]; /* tokens that end a text */
    int stops;
    int32_t first; /* the one that begins a text (bos_token_id); -1: none */
    bool sample;   /* do_sample */
    double temperature, top_p;
    int64_t top_k; /* 0: all */
};

/* Read generation_config.json; eos_token_id and bos_token_id from config.json if it has none;
 * otherwise the defaults of transformers: greedy, and for sampling temperature
 * 1, top-p 1, top-k 50.  E_DATA: malformed, or a value out of range. */
MUST_CHECK int generate_settings_read(struct generate_settings *s,
                                      const char *model, struct err *e);
/* Add a token that ends a text (at most STOPS_MAX). */
void generate_settings_stop(struct generate_settings *s, int32_t id);
/* Whether the token ends a text. */
bool generate_settings_stops(const struct generate_settings *s, int32_t id);

#endif
