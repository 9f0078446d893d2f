/* notes.h - what a stream notes of its modules, as lines of JSON. */
#ifndef FORGE_NOTES_H
#define FORGE_NOTES_H

#include "common/io/json.h"
#include "common/io/stream.h"

/* Zeroed to begin with. */
struct notes {
    char *text; /* lines; the last one, of `module`, has no end yet */
    size_t len;
    char module[FRAME_NAME_MAX + 1]; /* "": all lines are complete */
};

/* Add a note frame: {"module": its name, then its members}; further notes of
 * the same module go on in the same line.  E_DATA: no JSON object, E_TEMP. */
MUST_CHECK int notes_add(struct notes *n, const struct frame *f, struct err *e);
/* Publish the lines as a file and begin anew. */
MUST_CHECK int notes_publish(struct notes *n, const char *path, struct err *e);
void notes_release(struct notes *n);

#endif
