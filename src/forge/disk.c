/* disk.c - see disk.h. */
#include "forge/disk.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "common/cli/units.h"
#include "work/place.h"

int disk_find(const struct disk_claim *c, struct disk *d, struct err *e)
{
    char at[PATH_MAX];
    struct statvfs v;
    struct stat st;

    snprintf(at, sizeof(at), "%s", c->path);
    place_existing(at);
    if (stat(at, &st) || statvfs(at, &v))
        return err_set(e, E_IO, "'%s':", c->given);
    *d = (struct disk){ st.st_dev, (double)v.f_bavail * (double)v.f_frsize };
    return 0;
}

int disk_check(const struct disk_claim *c, struct err *e)
{
    char a[UNIT_TEXT], b[UNIT_TEXT];
    struct disk d;

    if (c->need <= 0)
        return 0;
    if (disk_find(c, &d, e) < 0)
        return e->code;
    return d.is >= c->need ?
               0 :
               err_set(e, E_IO, "'%s': needs %s, %s are free", c->given,
                       size_text(a, c->need), size_text(b, d.is));
}
