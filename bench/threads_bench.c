/* threads_bench - what a loop of the thread pool costs: 64 empty parts by all threads,
 * right behind another loop, and behind work of one thread: threads_bench [THREADS].
 * That each part is taken once is checked first. */
#include <stdio.h>
#include <stdlib.h>

#include "common/math/threads.h"
#include "peak.h"

enum { PARTS = 64, LOOPS = 1000 };

static void count(void *ctx, size_t begin, size_t end)
{
    atomic_int *seen = ctx;

    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(seen + i, 1);
}

static void nothing(void *ctx, size_t begin, size_t end)
{
    (void)ctx, (void)begin, (void)end;
}

int main(int argc, char **argv)
{
    static const int gaps[] = { 0, 5, 10, 20, 40, 80, 200 }; /* us */
    static atomic_int seen[PARTS];

    base_init(argv[0]);
    threads_set(argc > 1 ? atoi(argv[1]) : 0);
    threads_for(PARTS, 1, count, seen);
    for (int i = 0; i < PARTS; i++)
        if (seen[i] != 1)
            die(E_BUG, "part %d was taken %d times", i, seen[i]);
    for (size_t g = 0; g < ARRAY_LEN(gaps); g++) {
        double sum = 0;

        for (int i = 0; i < LOOPS; i++) {
            double begin = seconds();

            while (seconds() - begin < gaps[g] * 1e-6)
                ;
            begin = seconds();
            threads_for(PARTS, 1, nothing, NULL);
            sum += seconds() - begin;
        }
        printf("threads %d, behind %3d us of one: a loop of %d empty parts "
               "%.1f us\n",
               threads_count(), gaps[g], PARTS, sum / LOOPS * 1e6);
    }
    return 0;
}
