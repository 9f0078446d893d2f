/* settings.h - reads WORK/settings.json, in which forge(1) stores the options
 * of the last run in a work directory.  Data only: no string of it is ever
 * executed. */
#ifndef FORGE_SETTINGS_H
#define FORGE_SETTINGS_H

#include "common/io/json.h"

#define SETTINGS_FILE "settings.json"

struct work_settings {
    struct json_doc *doc;
    char path[4096]; /* of the file, for messages */
};

/* The error for a directory that is no work directory, or that stat(2) refuses
 * with errnum (else 0): where DIR.work is one, it says so.  E_NOINPUT;
 * err_open_code(). */
int settings_none(const char *dir, int errnum, struct err *e);
/* settings_release() *s when done.  E_NOINPUT: no such directory, or no work
 * directory of forge(1); E_DATA: the file is no JSON object; E_TEMP. */
MUST_CHECK int settings_read(struct work_settings *s, const char *work,
                             struct err *e);
/* A string, s's memory; "" when it is absent or no string. */
const char *settings_text(const struct work_settings *s, const char *name);
/* An integer >= 0; `none` when it is absent or anything else. */
int64_t settings_number(const struct work_settings *s, const char *name,
                        int64_t none);
/* A boolean; false when it is absent. */
bool settings_flag(const struct work_settings *s, const char *name);
void settings_release(struct work_settings *s);

#endif
