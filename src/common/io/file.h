/* file.h - reading and writing files at the speed of the device.
 *
 * io_uring with a queue of large requests, O_DIRECT where the file system and
 * the alignment take it, plain pread/pwrite where the kernel has no io_uring
 * (or refuses it): the bytes are the same.  liburing appears in file.c and
 * behind.c alone. */
#ifndef FORGE_FILE_H
#define FORGE_FILE_H

#include "common/base.h"

struct file;

/* Open a regular file for reading relative to dirfd (AT_FDCWD for the current
 * directory).  E_NOINPUT: does not exist; E_DATA: not a regular file. */
MUST_CHECK int file_open(struct file **f, int dirfd, const char *path,
                         struct err *e);
/* Take over an open descriptor of a regular file. */
MUST_CHECK int file_from_fd(struct file **f, int fd, const char *path,
                            struct err *e);
uint64_t file_size(const struct file *f);
/* Read exactly n bytes at off.  E_DATA: the file ends earlier; E_IO. */
MUST_CHECK int file_read(struct file *f, void *buf, size_t n, uint64_t off,
                         struct err *e);
/* Tell the reader that [off, off+n) comes next (may do nothing). */
void file_prefetch(struct file *f, uint64_t off, uint64_t n);
void file_close(struct file *f); /* NULL is allowed */

/* Read a small text file whole; *text is NUL-terminated, free() it.
 * E_NOINPUT, or E_DATA when it is longer than max. */
MUST_CHECK int file_slurp(char **text, size_t *len, const char *path,
                          size_t max, struct err *e);

/* ---- writing: publish.c puts files into place ---- */

/* A new file that gets its name only when it is complete: written without a
 * name (where the file system has no O_TMPFILE: as "NAME.tmp.PID.XXXXXX" beside
 * its place), fsynced, checked, renamed, directory fsynced.  Devices and pipes
 * are written to as they are.  What is beyond 4 MiB is copied and written
 * behind the caller's back (behind.h): an error may come up at a later write or
 * at the commit.
 * E_CREATE: the directory is missing or closed to us. */
struct publish;

MUST_CHECK int publish_create(struct publish **p, const char *path,
                              struct err *e);
MUST_CHECK int publish_write(struct publish *p, const void *buf, size_t n,
                             struct err *e); /* appends; E_IO when full */
/* Make it visible under its name; frees p, also on error. */
MUST_CHECK int publish_commit(struct publish *p, struct err *e);
void publish_discard(struct publish *p); /* NULL is allowed */
/* All of it for a small file. */
MUST_CHECK int publish_text(const char *path, const char *text, size_t len,
                            struct err *e);
/* fsync a directory, so that renames in it last. */
MUST_CHECK int publish_sync_dir(const char *path, struct err *e);

#endif
