/* Jobs of a device: alike ones in one call, in order; whichever calls fail, each
 * job is done once, or says that it is not; a broken device ends all. */
#include <string.h>

#include "device/jobs.h"
#include "test.h"

enum { N = 23 };

struct device {
    int kind[N];     /* of jobs that are alike */
    bool bad[N];     /* fails wherever it is */
    int ran[N];      /* how often it was done */
    int calls, most; /* most: jobs that there is memory for; 0: all */
    int fail_call;   /* this call fails, */
    int fail_code;   /* with this */
};

static bool alike(const void *ctx, int a, int b)
{
    const struct device *d = ctx;

    return d->kind[a] == d->kind[b];
}

static int run(void *ctx, const int *job, int n, struct err *e)
{
    struct device *d = ctx;

    CHECK(n > 0);
    if (++d->calls == d->fail_call)
        return err_set(e, d->fail_code, "call %d", d->calls);
    for (int i = 0; i < n; i++) {
        CHECK(alike(d, job[0], job[i]) && (!i || job[i] > job[i - 1]));
        if (d->bad[job[i]])
            return err_set(e, E_DATA, "job %d", job[i]);
    }
    if (d->most && n > d->most)
        return err_set(e, E_TEMP, "no memory");
    for (int i = 0; i < n; i++)
        d->ran[job[i]]++;
    return 0;
}

static struct device device(void)
{
    struct device d = { .most = 0 };

    for (int i = 0; i < N; i++)
        d.kind[i] = i * i % 5; /* 0, 1, 4 */
    return d;
}

static int work(struct device *d, bool *done)
{
    const struct jobs j = { alike, run, d };
    struct err e;
    int rc;

    memset(done, 1, N); /* must be set */
    rc = jobs_run(&j, N, done, &e);
    for (int i = 0; i < N; i++)
        CHECK(d->ran[i] == done[i]);
    return rc;
}

static int count(const bool *done)
{
    int n = 0;

    for (int i = 0; i < N; i++)
        n += done[i];
    return n;
}

/* A call for each kind; with little memory more of them. */
static void check_batches(void)
{
    bool done[N];
    struct device d = device();

    CHECK(work(&d, done) == 0 && count(done) == N && d.calls == 3);
    d = device();
    d.most = 3;
    CHECK(work(&d, done) == 0 && count(done) == N && d.calls > 3);
}

/* Jobs that cannot be done, in all places: nobody else suffers. */
static void check_bad(void)
{
    for (int a = 0; a < N; a++)
        for (int b = 0; b < N; b++) {
            struct device d = device();
            bool done[N];

            d.bad[a] = d.bad[b] = true;
            CHECK(work(&d, done) == 0);
            for (int i = 0; i < N; i++)
                CHECK(done[i] == !d.bad[i]);
        }
}

/* The n-th call fails, for all n: what fails once is done in
 * halves; what a device cannot do costs the batch; a broken
 * one ends all. */
static void check_calls(int code, int most)
{
    bool reached = true;

    for (int n = 1; reached; n++) {
        struct device d = device();
        bool done[N];
        int rc;

        d.most = most;
        d.fail_call = n;
        d.fail_code = code;
        rc = work(&d, done);
        reached = d.calls >= n;
        if (!reached || code == E_TEMP || code == E_DATA)
            CHECK(rc == 0 && count(done) == N);
        else if (code == E_DEVICE)
            CHECK(rc == E_DEVICE && d.calls == n && count(done) < N);
        else
            CHECK(rc == 0 && count(done) < N);
    }
}

int main(void)
{
    base_init("test_jobs");
    check_batches();
    check_bad();
    check_calls(E_TEMP, 0);
    check_calls(E_DATA, 0);
    check_calls(E_DEVICE, 3);
    check_calls(E_CONFIG, 0);
    return 0;
}
