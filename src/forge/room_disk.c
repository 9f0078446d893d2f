/* room_disk.c - whether the disks have room for what a quantization has yet to write; see
 * request.h. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cli/units.h"
#include "forge/disk.h"
#include "forge/request.h"

/* ---- what is there ---- */

/* Bytes of the work directory that an earlier run has made, and this one need not. */
struct there {
    double work;   /* of those of room->work */
    double states; /* and of room->resume */
};

/* Add the bytes that the files of a directory take. */
static void add_taken(struct there *t, const char *in, const char *name)
{
    char path[PATH_MAX + NAME_MAX + 2];
    struct dirent *d;
    struct stat st;
    DIR *dir;

    snprintf(path, sizeof(path), "%s/%s", in, name);
    dir = opendir(path);
    while (dir && (d = readdir(dir)))
        if (!fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
            S_ISREG(st.st_mode))
            *(strcmp(d->d_name, "hidden.fts") ? &t->work : &t->states) +=
                (double)st.st_blocks * 512;
    if (dir)
        closedir(dir);
}

/* Of the stages with this run's keys; before these are known, of all. */
static struct there made(const struct request *r)
{
    const struct job *j = &r->j;
    char name[STAGE_DIR], codes[STAGE_DIR];
    const char *work = r->work_path;
    struct there t = { 0 };
    struct dirent *d;
    DIR *dir;

    if (*j->skey) {
        if (strcmp(job_codes_dir(j, codes), job_solve_dir(j, name)) != 0)
            add_taken(&t, work, codes);
        add_taken(&t, work, job_tokens_dir(j, name));
        add_taken(&t, work, job_calib_dir(j, name));
        add_taken(&t, work, job_solve_dir(j, name));
        add_taken(&t, work, job_packed_dir(j, name));
        return t;
    }
    dir = opendir(work);
    while (dir && (d = readdir(dir)))
        if (*d->d_name != '.')
            add_taken(&t, work, d->d_name);
    if (dir)
        closedir(dir);
    return t;
}

/* What is yet to be written to --scratch.  In a work directory that is there, it is known
 * behind its keys. */
static double scratch_need(const struct request *r, const struct room *room)
{
    char name[SCRATCH_DIR];
    struct there t = { 0 };
    struct stat st;

    if (!(room->scratch > 0) || stat(r->work_path, &st))
        return room->scratch;
    if (!*r->j.skey)
        return 0;
    add_taken(&t, r->j.scratch, job_scratch_dir(&r->j, st.st_ino, name));
    return room->scratch - t.work;
}

/* ---- what is free ---- */

/* What is on the disks at one time. */
static int check_two(const struct disk_claim *x, const struct disk_claim *y,
                     struct err *e)
{
    char a[UNIT_TEXT], b[UNIT_TEXT], c[UNIT_TEXT];
    struct disk d, other;

    if (disk_check(x, e) < 0 || disk_check(y, e) < 0)
        return e->code;
    if (x->need <= 0 || y->need <= 0)
        return 0;
    if (disk_find(x, &d, e) < 0 || disk_find(y, &other, e) < 0)
        return e->code;
    return d.id != other.id || d.is >= x->need + y->need ?
               0 :
               err_set(e, E_IO,
                       "'%s' needs %s and '%s' %s, on one disk: %s are free",
                       x->given, size_text(a, x->need), y->given,
                       size_text(b, y->need), size_text(c, d.is));
}

int room_check_disks(const struct request *r, const struct room *room,
                     struct err *e)
{
    const struct there t = made(r);
    const struct disk_claim work = { r->work_path, r->work_path,
                                     room->work - t.work };
    const struct disk_claim scratch = { r->scratch, r->j.scratch,
                                        scratch_need(r, room) };
    const struct disk_claim rest = { r->work_path, r->work_path,
                                     work.need - room->passing };
    const struct disk_claim out = { r->out, r->j.out, room->out };

    return check_two(&work, &scratch, e) < 0 || check_two(&rest, &out, e) < 0 ?
               e->code :
               0;
}

void room_note_resume(const struct request *r, const struct room *room)
{
    static bool said;
    const struct there t = made(r);
    const struct disk_claim work = { r->work_path, r->work_path, room->work },
                            out = { r->out, r->j.out, room->out };
    double need = room->work, is;
    char a[UNIT_TEXT], b[UNIT_TEXT];
    struct disk d, other;
    struct err why;

    if (said || disk_find(&work, &d, &why) < 0 ||
        disk_find(&out, &other, &why) < 0)
        return;
    if (d.id == other.id)
        need = fmax(need, need - room->passing + room->out);
    is = d.is + t.work + t.states - need;
    if (is >= room->resume)
        return;
    said = true;
    remark("'%s': %s more would keep hidden states to go on from, %s are free: "
           "after a kill, layers that have their codes may be run again",
           r->work_path, size_text(a, room->resume), size_text(b, is));
}
