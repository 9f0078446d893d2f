/* settings.h - what a model's files say of generating: where it stops, and how
 * it is sampled. */
#ifndef FORGE_GENERATE_SETTINGS_H
#define FORGE_GENERATE_SETTINGS_H

#include "common/base.h"

enum { STOPS_MAX = 64 };

struct generate_settings {
    int32_t stop[STOPS_MAX]; /* tokens that end a text */
    int stops;
    bool sample; /* do_sample */
    double temperature, top_p;
    int64_t top_k; /* 0: all */
};

/* generation_config.json, and where that is missing or does not say, the
 * eos_token_id of config.json and the defaults of transformers: greedy; sampled,
 * temperature 1, top-p 1, the 50 likeliest.  E_DATA: a value of no use. */
MUST_CHECK int generate_settings_read(struct generate_settings *s,
                                      const char *model, struct err *e);
/* One more token that ends a text. */
void generate_settings_stop(struct generate_settings *s, int32_t id);
bool generate_settings_stops(const struct generate_settings *s, int32_t id);

#endif
