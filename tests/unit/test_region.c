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

/* What region_keep() allows is memory, of all regions together; what is given back may
 * be taken again. */
static void test_kept(void)
{
    const size_t large = REGION_MEMORY + (8 << 20), size = (size_t)PAGES * PAGE;
    struct region a, b;
    struct err e;

    region_keep(2 * large + (64 << 20));
    region_init(&a, directory());
    region_init(&b, "/nowhere/at/all");
    CHECK(region_reserve(&a, large, &e) == 0 && !a.file);
    write_pages(&a, large - size, 5);
    CHECK(region_reserve(&b, large, &e) == 0 && !b.file);
    CHECK(region_reserve(&b, 2 * large, &e) == E_CREATE);
    region_release(&b);
    region_init(&b, "/nowhere/at/all");
    CHECK(region_reserve(&a, large + (32 << 20), &e) == 0 && !a.file);
    CHECK(pages_are(&a, large - size, 5));
    CHECK(region_reserve(&a, 3 * large, &e) == 0 && a.file);
    CHECK(pages_are(&a, large - size, 5) && a.on_disk == a.cap);
    CHECK(region_reserve(&b, 2 * large, &e) == 0 && !b.file);
    region_release(&a);
    region_release(&b);
    region_keep(0);
    region_init(&b, "/nowhere/at/all");
    CHECK(region_reserve(&b, REGION_MEMORY, &e) == 0 && !b.file);
    CHECK(region_reserve(&b, large, &e) < 0);
    region_release(&b);
}

int main(void)
{
    test_growth();
    test_refused();
    test_kept();
    return 0;
}
