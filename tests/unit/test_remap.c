/* The adapter for pruned experts: whatever the map and the choices, ids stay
 * in range, weights sum to what they did, and lost tokens are counted. */
#include <math.h>
#include <string.h>

#include "checkpoint/expertmap.h"
#include "model/remap.h"
#include "test.h"

enum { EXPERTS = 16, TOP_K = 4, TOKENS = 500 };

static struct err e;

static uint32_t next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* Keep the first `kept` of a random order; new numbers in the old order. */
static void make_map(int32_t *map, int64_t kept, uint64_t *s)
{
    int32_t order[EXPERTS], n = 0;

    for (int i = 0; i < EXPERTS; i++)
        order[i] = i;
    for (int i = EXPERTS - 1; i > 0; i--) {
        int k = (int)(next(s) % (unsigned)(i + 1)), x = order[i];

        order[i] = order[k];
        order[k] = x;
    }
    for (int i = 0; i < EXPERTS; i++)
        map[i] = -1;
    for (int64_t i = 0; i < kept; i++)
        map[order[i]] = 0;
    for (int i = 0; i < EXPERTS; i++)
        if (map[i] == 0)
            map[i] = n++;
}

static void check(int64_t kept, bool renormalize, uint64_t *s)
{
    static int32_t ids[TOKENS * TOP_K], was[TOKENS * TOP_K];
    static float w[TOKENS * TOP_K], before[TOKENS * TOP_K];
    int32_t map[EXPERTS];
    struct remap r = { map, EXPERTS, kept, renormalize };
    struct remap_counts c = { 0 };
    uint64_t pruned = 0, lost = 0;

    make_map(map, kept, s);
    CHECK(expert_row_check(map, EXPERTS, kept, &e) == 0);
    for (int i = 0; i < TOKENS; i++) {
        int first = (int)(next(s) % EXPERTS);

        for (int k = 0; k < TOP_K; k++) { /* different experts */
            ids[i * TOP_K + k] = (first + 3 * k) % EXPERTS;
            w[i * TOP_K + k] = (float)(next(s) % 1000 + 1) / 700;
        }
    }
    memcpy(was, ids, sizeof(was));
    memcpy(before, w, sizeof(w));
    CHECK(remap_tokens(&r, ids, w, TOKENS, TOP_K, &c, &e) == 0);
    for (int i = 0; i < TOKENS; i++) {
        double old = 0, sum = 0;
        int left = 0;

        for (int k = i * TOP_K; k < (i + 1) * TOP_K; k++) {
            CHECK(ids[k] >= 0 && ids[k] < kept);
            CHECK(ids[k] == (map[was[k]] < 0 ? 0 : map[was[k]]));
            CHECK(map[was[k]] >= 0 || w[k] == 0);
            CHECK(renormalize || w[k] == 0 || w[k] == before[k]);
            CHECK(!(w[k] < 0));
            old += (double)before[k];
            sum += (double)w[k];
            left += map[was[k]] >= 0;
        }
        pruned += (uint64_t)(TOP_K - left);
        lost += !left;
        if (renormalize && left)
            CHECK(fabs(sum - old) < 1e-5 * old);
        if (!left)
            CHECK(sum == 0);
        CHECK(sum <= old * (1 + 1e-6));
    }
    CHECK(c.tokens == TOKENS && c.pruned == pruned && c.lost == lost);
    CHECK(kept < EXPERTS || (c.pruned == 0 && !memcmp(w, before, sizeof(w))));
}

static void refuses(void)
{
    int32_t map[4] = { 0, -1, 1, -1 }, ids[2] = { 0, 4 };
    struct remap r = { map, 4, 2, true };
    float w[2] = { 1, 1 };

    CHECK(expert_row_check(map, 4, 2, &e) == 0);
    CHECK(remap_tokens(&r, ids, w, 1, 2, NULL, &e) == E_DATA);
    CHECK(ids[0] == 0 && w[1] == 1);
    ids[1] = -1;
    CHECK(remap_tokens(&r, ids, w, 1, 2, NULL, &e) == E_DATA);
    map[1] = 2;
    CHECK(expert_row_check(map, 4, 2, &e) == E_DATA);
    map[1] = 1;
    CHECK(expert_row_check(map, 4, 2, &e) == E_DATA);
    map[1] = map[2] = -1;
    CHECK(expert_row_check(map, 4, 2, &e) == E_DATA);
    map[1] = -2;
    CHECK(expert_row_check(map, 4, 2, &e) == E_DATA);
}

int main(void)
{
    uint64_t s = 1;

    for (int round = 0; round < 10; round++)
        for (int64_t kept = 1; kept <= EXPERTS; kept++) {
            check(kept, true, &s);
            check(kept, false, &s);
        }
    refuses();
    return 0;
}
