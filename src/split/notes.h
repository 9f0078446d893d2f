/* notes.h - collects a stream's note frames as lines of JSON, one per
 * module. */
#ifndef FORGE_NOTES_H
#define FORGE_NOTES_H

#include "common/io/json.h"
#include "common/io/stream.h"

/* Zero-initialise; notes_release() when done. */
struct notes {
    char *text; /* [len]; the last line, of `module`, is not closed yet */
    size_t len;
    char module[FRAME_NAME_MAX + 1]; /* "": all lines are complete */
};

/* Add a note frame as {"module": NAME, members of the note...}; a further note
 * of the same module adds its members to the same line.  E_DATA: no JSON
 * object; E_TEMP. */
MUST_CHECK int notes_add(struct notes *n, const struct frame *f, struct err *e);
/* Publish the lines as the file `path` (publish.h), and empty n.  E_CREATE,
 * E_IO, E_TEMP. */
MUST_CHECK int notes_publish(struct notes *n, const char *path, struct err *e);
/* Publish the lines of all notes of a file of codes, as when it was made.  Errors of
 * stream_open(), stream_next(), notes_publish(). */
MUST_CHECK int notes_restore(const char *codes, const char *path,
                             struct err *e);
void notes_release(struct notes *n);

#endif
