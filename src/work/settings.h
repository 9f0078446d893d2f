/* settings.h - WORK/settings.json, which forge(1) writes: what the last run in a
 * work directory was asked for.  It is data: nothing of it is ever executed. */
#ifndef FORGE_SETTINGS_H
#define FORGE_SETTINGS_H

#include "common/io/json.h"

#define SETTINGS_FILE "settings.json"

struct work_settings {
    struct json_doc *doc;
    char path[4096]; /* of the file, for messages */
};

/* E_NOINPUT: no such directory, or no work directory of forge(1); E_DATA: the
 * file is no JSON object. */
MUST_CHECK int settings_read(struct work_settings *s, const char *work,
                             struct err *e);
/* A string; "" when it is absent or none. */
const char *settings_text(const struct work_settings *s, const char *name);
/* A number from 0 on; `none` when it is absent or no such number. */
int64_t settings_number(const struct work_settings *s, const char *name,
                        int64_t none);
bool settings_flag(const struct work_settings *s, const char *name);
void settings_release(struct work_settings *s);

#endif
