/* variables.h - what make is told of a job. */
#ifndef FORGE_VARIABLES_H
#define FORGE_VARIABLES_H

#include "forge/job.h"

/* make's variables for pipeline.mk, as arguments "NAME=value"; values have no
 * characters that are special to make.  Errors of stops_list(); E_TEMP. */
enum { JOB_VARIABLES = 13 };
struct job_variables {
    char *text[JOB_VARIABLES];
};
MUST_CHECK int job_variables(const struct job *j, struct job_variables *v,
                             struct err *e);
void job_variables_release(struct job_variables *v);

#endif
