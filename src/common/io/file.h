/* file.h - reading and publishing files at the speed of the device.
 *
 * Large ranges go through io_uring as a queue of large requests, with O_DIRECT
 * where file system and alignment allow it; otherwise pread and pwrite.  The
 * bytes are the same.  Only file.c and write_behind.c use liburing. */
#ifndef FORGE_FILE_H
#define FORGE_FILE_H

#include "common/base.h"

struct file;

/* Open a regular file for reading, relative to dirfd (AT_FDCWD: the current
 * directory).  E_NOINPUT: cannot be opened; E_DATA: not a regular file;
 * E_CREATE: it is an output; E_TEMP: no memory or descriptors. */
MUST_CHECK int file_open(struct file **f, int dirfd, const char *path,
                         struct err *e);
/* The same for an open descriptor, which belongs to *f after success and stays
 * the caller's after an error.  path: for messages, copied. */
MUST_CHECK int file_from_fd(struct file **f, int fd, const char *path,
                            struct err *e);
/* path is an output that replaces what is there: from here on that file, if it is a
 * regular one, is no input, by whatever name. */
void file_guard(const char *path);
/* E_CREATE: fd, opened as `path`, is a file that file_guard() was told of; so
 * say file_open() and file_from_fd(), too. */
MUST_CHECK int file_guarded(int fd, const char *path, struct err *e);
/* Bytes, as of when the file was opened. */
uint64_t file_size(const struct file *f);
/* Read exactly n bytes at offset off.  E_DATA: the file ends before off + n;
 * E_IO. */
MUST_CHECK int file_read(struct file *f, void *buf, size_t n, uint64_t off,
                         struct err *e);
/* Hint: [off, off+n) will be read next (posix_fadvise for ranges below 4 MiB,
 * else nothing). */
void file_prefetch(struct file *f, uint64_t off, uint64_t n);
void file_close(struct file *f); /* NULL is allowed */

/* Read a whole file; *text has a NUL after its *len bytes, free() it.
 * E_NOINPUT, E_IO, E_TEMP; E_DATA: more than max bytes. */
MUST_CHECK int file_slurp(char **text, size_t *len, const char *path,
                          size_t max, struct err *e);

/* ---- writing: publish.c puts files into place ---- */

/* A file that gets its name only when it is complete.  It is written without a
 * name (O_TMPFILE; where the file system lacks that, as "NAME.tmp.PID.XXXXXX"
 * in the same directory), then fsynced, renamed to its name, and the directory
 * is fsynced.  Devices and pipes are written to directly.
 *
 * Bytes beyond the first 4 MiB are copied and written asynchronously
 * (write_behind.h), so their errors are reported by a later call. */
struct publish;

/* E_CREATE: the directory is missing or not writable; E_TEMP. */
MUST_CHECK int publish_create(struct publish **p, const char *path,
                              struct err *e);
/* Append n bytes.  E_IO: write error, disk full. */
MUST_CHECK int publish_write(struct publish *p, const void *buf, size_t n,
                             struct err *e); /* appends; E_IO when full */
/* Behind the last publish_write(): write n bytes again, from offset off on.  A
 * device or pipe keeps what it has.  E_IO. */
MUST_CHECK int publish_rewrite(struct publish *p, const void *buf, size_t n,
                               uint64_t off, struct err *e);
/* The file once more, for reading while it is written; close() it.  -1: it cannot be
 * opened, or is a device or a pipe. */
int publish_reader(const struct publish *p);
/* Bytes from its beginning that a reader finds there. */
uint64_t publish_there(const struct publish *p);
/* Give the file its name.  Frees p, also on error, which leaves no file. */
MUST_CHECK int publish_commit(struct publish *p, struct err *e);
/* Remove what was written and free p.  NULL is allowed. */
void publish_discard(struct publish *p); /* NULL is allowed */
/* Create, write and commit a small file in one call. */
MUST_CHECK int publish_text(const char *path, const char *text, size_t len,
                            struct err *e);
/* Open a file that is written where it lies, as a lock or a log, and create it if it is
 * not there; flags: of open(2), the caller closes *fd.  E_CREATE: it cannot be, or is a
 * link, whose target may be anything of the user's, or a pipe, or else no file. */
MUST_CHECK int file_in_place(int *fd, const char *path, int flags,
                             struct err *e);
/* fsync a directory, so that renames in it survive a power cut.  E_IO. */
MUST_CHECK int publish_sync_dir(const char *path, struct err *e);

#endif
