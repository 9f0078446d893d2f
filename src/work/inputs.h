/* inputs.h - the files that the keys of a work directory are made of, and whether
 * they are still as they were then.
 *
 * A file is hashed once.  Later its size, inode and times identify it, among
 * them ctime, which no program can set back (utime(2) sets it to now).  Steps look
 * when they begin and before they publish: what was made of other bytes never gets a
 * name. */
#ifndef FORGE_INPUTS_H
#define FORGE_INPUTS_H

#include "work/settings.h"

enum { HOST_LEN = 256 };

/* A file as it was when it was hashed; all 0 but the name: it was not there. */
struct input_file {
    char name[256];
    uint64_t size, inode;
    int64_t mtime, mtime_ns, ctime, ctime_ns;
    uint64_t
        hash; /* of weights: XXH3-64 of those of its pieces (forge/weights.c) */
};

enum { INPUT_TEXT, INPUT_SIDECARS = 4, INPUT_OTHERS };

struct known_inputs {
    char host[HOST_LEN];     /* where they were hashed */
    struct input_file *file; /* [files]: those of the weights, by name */
    size_t files;
    struct input_file
        other[INPUT_OTHERS]; /* the text; files beside the weights */
    bool others;             /* they are known */
};

/* Set in->host and in->other.  E_DATA: a name is too long. */
MUST_CHECK int inputs_note(struct known_inputs *in, const char *model,
                           const char *text, struct err *e);
/* Set all members of *f but the hash.  E_NOINPUT: no such file; E_DATA. */
MUST_CHECK int input_stat(struct input_file *f, const char *model,
                          const char *name, struct err *e);
/* Whether a file is unchanged, by all numbers of the same host. */
bool input_unchanged(const struct input_file *a, const struct input_file *b);

/* Members of settings.json. */
void inputs_write(struct json_writer *w, const struct known_inputs *in);
/* inputs_release() *in in any case.  E_DATA: they are not of the form that
 * inputs_write() gives them; E_TEMP. */
MUST_CHECK int inputs_read(struct known_inputs *in,
                           const struct work_settings *s, struct err *e);
void inputs_release(struct known_inputs *in);

/* E_DATA: a file has changed since it was hashed.  On another host than in->host,
 * where inodes and times of change may differ, only size and modification time are
 * compared.  A text that is gone is for those to miss who read it. */
MUST_CHECK int inputs_same(const struct known_inputs *in, const char *model,
                           const char *text, struct err *e);
/* The same of the run whose settings are in the directory work; errors of
 * settings_read(), too.  NULL: there is none, 0. */
MUST_CHECK int inputs_check(const char *work, struct err *e);

#define INPUTS_OPTION(dst)                                                     \
    {                                                                          \
        OPT_STR, 0, "inputs-of", "WORK",                                       \
            "publish nothing once an input of the work directory WORK has "    \
            "changed",                                                         \
            dst, 0, 0, true                                                    \
    }

#endif
