/* arguments.h - checks of operands and options that several commands of forge
 * share: paths, texts, models; all before any work. */
#ifndef FORGE_ARGUMENTS_H
#define FORGE_ARGUMENTS_H

#include <limits.h>

#include "common/cli/opt.h"

/* *model is a directory, or a Hugging Face id ORG/NAME or ORG/NAME@REVISION,
 * which becomes the directory of its snapshot in the local cache: to.  REVISION: a
 * branch or tag in refs, or a commit.  Nothing is downloaded.  E_NOINPUT: neither. */
MUST_CHECK int find_model(const char **model, char to[PATH_MAX], struct err *e);
/* The value of --text, an OPT_LIST: *text, unchanged if there is none.  E_USAGE:
 * it is given twice. */
MUST_CHECK int only_text(const struct opt_list *l, const char **text,
                         struct err *e);
/* Check the file of a calibration text; "-" is standard input.  E_USAGE: path is
 * NULL, none was given, or "-" is a terminal; E_NOINPUT; E_DATA: it is empty. */
MUST_CHECK int check_text(const char *path, struct err *e);
/* Check OUT, a directory to be created.  given: OUT as the user wrote it, for
 * messages; out: absolute; model: absolute path of the model.  E_CREATE: OUT
 * exists, cannot be created, or would lie inside the model. */
MUST_CHECK int check_out(const char *given, const char *out, const char *model,
                         struct err *e);
/* E_CONFIG: the model is 4-bit already (packed). */
MUST_CHECK int check_plain(const char *model, bool packed, struct err *e);
/* Whether a is the directory b or inside it; absolute paths. */
bool path_inside(const char *a, const char *b);
/* to = the absolute path, as realpath -m: components that exist are resolved,
 * the rest is taken as it is.  E_USAGE: too long, or not UTF-8; E_IO. */
MUST_CHECK int path_absolute(const char *path, char to[PATH_MAX],
                             struct err *e);

#endif
