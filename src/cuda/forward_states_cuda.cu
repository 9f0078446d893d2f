/* forward_states_cuda.cu - the states of linear attention, token by token.
 *
 * The columns of a state do not meet: a column S[., c] of a head is read with k and q
 * of its tokens and v[c] alone.  LANES threads of a warp have a column in registers,
 * each R of its rows; a block has some columns of one head and one sequence, and copies
 * q, k, v and the gates of the next tokens to shared memory while it works on these.
 * Sums run within a thread in four parts, then over the lanes, so their order depends
 * on k_dim only, and nothing on other sequences of the batch.
 *
 * Floor: none in memory, where states do not go.  A token takes about 5 R
 * instructions of each warp, and two sums over lanes, one behind the other: a long
 * sequence waits for those. */
#include "cuda/mma.cuh"
#include "cuda/recur_internal.cuh"

/* Start the copy of a number to shared memory; there == false: of a zero. */
static __device__ __forceinline__ void copy_number(float *to, const float *from,
                                                   bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(there ? 4 : 0)
                 : "memory");
}

/* The sum over neighbouring lanes; all get it. */
template <int LANES> static __device__ __forceinline__ float lanes_sum(float x)
{
    for (int i = LANES / 2; i; i >>= 1)
        x += __shfl_xor_sync(~0u, x, i);
    return x;
}

/* GATED: the delta rule with one decay; CHANNELS: with one of each dim of a key; PLAIN:
 * S += k (beta v)T. */
enum rule { RULE_PLAIN, RULE_GATED, RULE_CHANNELS };

/* Sizes of a kernel: R rows of a state for each of LANES threads. */
template <int R, int LANES, enum rule RULE>
struct shape {
    static const int threads = 128, dim = R *LANES, cols = threads / LANES;
    static const int tokens = dim <= 128 ? 8 :
                              dim <= 256 ? 4 :
                                           2;
    static const int vectors = RULE == RULE_CHANNELS ? 3 : 2;
};

/* What some tokens bring.  Row i of a state has index i / (4 LANES) * R / 4 ... of lane
 * i / 4 % LANES: its lanes read neighbours. */
template <class S> struct stage {
    alignas(16) float vector[S::tokens][S::vectors][S::dim]; /* q, k, decays */
    float v[S::tokens][S::cols], beta[S::tokens], decay[S::tokens];
};

/* Where a block is: value head, first column, first row and rows. */
struct block_of {
    int head, col;
    int64_t first, rows;
};

/* Start the copies of tokens t.. of the block's sequence. */
template <class S>
static __device__ void bring_tokens(const struct recur_job &j,
                                    const struct block_of &b, int64_t t,
                                    struct stage<S> *to)
{
    int kd = (int)j.a.of.k_dim, vd = (int)j.a.of.v_dim;
    int heads = (int)j.a.of.v_heads, key = b.head / j.each * kd;
    int all = S::tokens * S::vectors * S::dim;

    for (int i = (int)threadIdx.x; i < all; i += S::threads) {
        int d = i % S::dim, x = i / S::dim % S::vectors,
            token = i / (S::dim * S::vectors);
        int64_t row = b.first + t + token;
        bool there = t + token < b.rows && d < kd;
        const float *from =
            x == 2 ? j.decay + (row * heads + b.head) * kd :
                     j.mixed + row * j.channels + key + (x ? j.k_at : j.q_at);

        copy_number(&to->vector[token][x][d], there ? from + d : j.mixed,
                    there);
    }
    for (int i = (int)threadIdx.x; i < S::tokens * S::cols; i += S::threads) {
        int c = i % S::cols, token = i / S::cols;
        int64_t row = b.first + t + token;
        bool there = t + token < b.rows && b.col + c < vd;
        const float *from =
            j.mixed + row * j.channels + j.v_at + b.head * vd + b.col + c;

        copy_number(&to->v[token][c], there ? from : j.mixed, there);
    }
    if (threadIdx.x < S::tokens) {
        int64_t at = (b.first + t + threadIdx.x) * heads + b.head;
        bool there = t + threadIdx.x < b.rows;

        copy_number(&to->beta[threadIdx.x], there ? j.beta + at : j.mixed,
                    there);
        if (S::vectors == 2)
            copy_number(&to->decay[threadIdx.x], there ? j.decay + at : j.mixed,
                        there);
    }
    copy_commit();
}

static __device__ __forceinline__ float4 four(const float *x, int i)
{
    return ((const float4 *)x)[i];
}

/* One token of a column s, R rows of it: the column's output. */
template <int R, int LANES, enum rule RULE, class S>
static __device__ float next_token(const struct stage<S> *x, int token,
                                   int lane, int col, float s[R])
{
    const float *q = x->vector[token][0], *k = x->vector[token][1];
    const float *each = x->vector[token][S::vectors - 1];
    float decay = x->decay[token], add = x->v[token][col];
    float seen[4] = { 0 }, out[4] = { 0 };

#pragma unroll
    for (int i = 0; i < R / 4; i++) {
        float4 d = RULE == RULE_CHANNELS ?
                       four(each, i * LANES + lane) :
                       make_float4(decay, decay, decay, decay);
        float4 key = four(k, i * LANES + lane);

        s[4 * i] *= d.x;
        s[4 * i + 1] *= d.y;
        s[4 * i + 2] *= d.z;
        s[4 * i + 3] *= d.w;
        if (RULE == RULE_PLAIN)
            continue;
        seen[0] = fmaf(s[4 * i], key.x, seen[0]);
        seen[1] = fmaf(s[4 * i + 1], key.y, seen[1]);
        seen[2] = fmaf(s[4 * i + 2], key.z, seen[2]);
        seen[3] = fmaf(s[4 * i + 3], key.w, seen[3]);
    }
    if (RULE != RULE_PLAIN)
        add -= lanes_sum<LANES>(seen[0] + seen[1] + (seen[2] + seen[3]));
    add *= x->beta[token];
#pragma unroll
    for (int i = 0; i < R / 4; i++) {
        float4 key = four(k, i * LANES + lane), ask = four(q, i * LANES + lane);

        s[4 * i] = fmaf(add, key.x, s[4 * i]);
        s[4 * i + 1] = fmaf(add, key.y, s[4 * i + 1]);
        s[4 * i + 2] = fmaf(add, key.z, s[4 * i + 2]);
        s[4 * i + 3] = fmaf(add, key.w, s[4 * i + 3]);
        out[0] = fmaf(s[4 * i], ask.x, out[0]);
        out[1] = fmaf(s[4 * i + 1], ask.y, out[1]);
        out[2] = fmaf(s[4 * i + 2], ask.z, out[2]);
        out[3] = fmaf(s[4 * i + 3], ask.w, out[3]);
    }
    return lanes_sum<LANES>(out[0] + out[1] + (out[2] + out[3]));
}

/* Where the state's row of index r of a lane is in the cache; NULL: nowhere. */
template <int LANES>
static __device__ __forceinline__ float *kept_at(const struct recur_job &j,
                                                 const struct block_of &b,
                                                 int col, int lane, int r)
{
    int64_t i = r / 4 * 4 * LANES + lane * 4 + r % 4;

    return j.a.states && i < j.a.of.k_dim && b.col + col < j.a.of.v_dim ?
               j.a.states + (b.head * j.a.of.k_dim + i) * j.a.of.v_dim + b.col +
                   col :
               NULL;
}

/* The tokens of a sequence, for the columns of a block; each output goes where its v
 * was, plus D v in front of Mamba's gate. */
template <int R, int LANES, enum rule RULE>
static __global__ void __launch_bounds__(128)
    recur_kernel(const struct recur_job j)
{
    typedef struct shape<R, LANES, RULE> S;
    __shared__ struct stage<S> stages[2];
    int col = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES;
    struct block_of b = { (int)blockIdx.y, (int)blockIdx.x * S::cols,
                          j.first[blockIdx.z],
                          j.first[blockIdx.z + 1] - j.first[blockIdx.z] };
    float skip = RULE == RULE_PLAIN ? j.a.skip[b.head] : 0, s[R];
    float *to = j.mixed + b.first * j.channels + j.v_at +
                b.head * (int)j.a.of.v_dim + b.col + col;
    bool writes = !lane && b.col + col < j.a.of.v_dim;

#pragma unroll
    for (int r = 0; r < R; r++) {
        const float *kept = kept_at<LANES>(j, b, col, lane, r);

        s[r] = kept ? *kept : 0;
    }
    bring_tokens<S>(j, b, 0, &stages[0]);
    for (int64_t t = 0; t < b.rows; t += S::tokens) {
        const struct stage<S> *x = &stages[t / S::tokens % 2];

        bring_tokens<S>(j, b, t + S::tokens, &stages[(t / S::tokens + 1) % 2]);
        copy_wait<1>();
        __syncthreads();
        for (int i = 0; i < S::tokens && t + i < b.rows; i++) {
            float y = next_token<R, LANES, RULE>(x, i, lane, col, s);

            if (RULE == RULE_PLAIN)
                y += skip * x->v[i][col];
            if (writes)
                to[(t + i) * j.channels] = y;
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < R; r++) {
        float *kept = kept_at<LANES>(j, b, col, lane, r);

        if (kept)
            *kept = s[r];
    }
}

template <int R, int LANES, enum rule RULE>
static int run_rule(struct cuda_context *c, const struct recur_job &j,
                    struct err *e)
{
    typedef struct shape<R, LANES, RULE> S;
    dim3 grid((unsigned)((j.a.of.v_dim + S::cols - 1) / S::cols),
              (unsigned)j.a.of.v_heads, (unsigned)j.a.n_sequences);

    recur_kernel<R, LANES, RULE><<<grid, S::threads, 0, c->stream>>>(j);
    LAUNCHED();
    return 0;
}

template <int R, int LANES>
static int run_states(struct cuda_context *c, const struct recur_job &j,
                      struct err *e)
{
    if (j.a.form == DELTA_MAMBA)
        return run_rule<R, LANES, RULE_PLAIN>(c, j, e);
    return j.a.form == DELTA_CHANNELS ?
               run_rule<R, LANES, RULE_CHANNELS>(c, j, e) :
               run_rule<R, LANES, RULE_GATED>(c, j, e);
}

int recur_states(struct cuda_context *c, const struct recur_job &j,
                 struct err *e)
{
    int64_t n = j.a.of.k_dim;

    return n <= 32  ? run_states<8, 4>(c, j, e) :
           n <= 64  ? run_states<16, 4>(c, j, e) :
           n <= 128 ? run_states<32, 4>(c, j, e) :
           n <= 256 ? run_states<32, 8>(c, j, e) :
                      run_states<32, 16>(c, j, e);
}
