/* Regions: what they hold when they grow from memory into a file and leave it. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "common/io/region.h"

enum { PAGE = 4096, PAGES = 512 };

static const char *directory(void)
{
    const char *dir = getenv("TMPDIR");

    return dir ? dir : "/tmp";
}

static void write_pages(struct region *r, size_t at, int first)
{
    for (int i = 0; i < PAGES; i++)
        ((char *)r->p)[at + (size_t)i * PAGE] = (char)(first + i);
}

static bool pages_are(const struct region *r, size_t at, int first)
{
    for (int i = 0; i < PAGES; i++)
        if (((const char *)r->p)[at + (size_t)i * PAGE] != (char)(first + i) ||
            ((const char *)r->p)[at + (size_t)i * PAGE + 1])
            return false;
    return true;
}

static void test_growth(void)
{
    const size_t half = REGION_MEMORY, size = (size_t)PAGES * PAGE;
    struct region r;
    struct err e;

    region_init(&r, directory());
    CHECK(region_reserve(&r, 0, &e) == 0 && r.p && !r.file);
    CHECK(region_reserve(&r, half, &e) == 0 && !r.file);
    write_pages(&r, half - size, 3);
    region_leave(&r, 0, half); /* memory stays what it is */
    CHECK(pages_are(&r, half - size, 3));
    CHECK(region_reserve(&r, half + size, &e) == 0 && r.file);
    CHECK(r.cap >= half + size && r.on_disk == r.cap);
    write_pages(&r, half, 90);
    CHECK(pages_are(&r, half - size, 3) && pages_are(&r, half, 90));
    region_leave(&r, 0, half + size);
    CHECK(pages_are(&r, half - size, 3) && pages_are(&r, half, 90));
    CHECK(region_fits() == (r.cap <= region_share()));
    region_release(&r);
    CHECK(!r.p && !r.file && !r.on_disk);
}

static void test_refused(void)
{
    struct region r;
    struct err e;

    region_init(&r, "/nowhere/at/all");
    CHECK(region_reserve(&r, REGION_MEMORY + 1, &e) == E_CREATE);
    region_release(&r);
}

int main(void)
{
    test_growth();
    test_refused();
    return 0;
}
