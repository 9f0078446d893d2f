/* merge.c - see merge.h.
 *
 * Short pieces: after each merge all pairs are searched for the lowest rank,
 * which is faster than a heap for up to some dozens of ids.  Long ones (a
 * Llama 2 text without blanks may be one piece of megabytes): a heap of pairs,
 * whose stale entries are skipped, O(n log n). */
#include <stdlib.h>

#include "tokenizer/merge.h"
#include "tokenizer/unicode.h"

enum { LINEAR_MAX = 64 };

struct merge_node {
    int32_t id;
    uint32_t prev, next; /* NONE at the ends */
    bool gone;
};

struct merge_event {
    uint32_t rank, pos;
    int32_t to;
};

static const uint32_t NONE = UINT32_MAX;

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static inline size_t pair_hash(uint64_t pair)
{
    return (size_t)((pair * 0x9e3779b97f4a7c15u) >> 24);
}

static inline const struct merge_rule *find(const struct merges *m,
                                            int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right);
    size_t i = pair_hash(pair) & m->mask;

    for (; m->rule[i].pair != UINT64_MAX; i = (i + 1) & m->mask)
        if (m->rule[i].pair == pair)
            return &m->rule[i];
    return NULL;
}

/* ---- merging ---- */

static size_t apply_short(const struct merges *m, int32_t *id, size_t n)
{
    uint32_t rank[LINEAR_MAX];
    int32_t to[LINEAR_MAX] = { 0 };

    for (size_t i = 0; i + 1 < n; i++) {
        const struct merge_rule *r = find(m, id[i], id[i + 1]);

        rank[i] = r ? r->rank : NONE;
        to[i] = r ? r->to : 0;
    }
    while (n > 1) {
        uint32_t best = NONE;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++)
            if (rank[i] < best) {
                best = rank[i];
                at = i;
            }
        if (best == NONE)
            break;
        id[at] = to[at];
        n--;
        for (size_t i = at + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
            to[i - 1] = to[i];
        }
        for (size_t i = at ? at - 1 : 0; i <= at && i + 1 < n; i++) {
            const struct merge_rule *r = find(m, id[i], id[i + 1]);

            rank[i] = r ? r->rank : NONE;
            to[i] = r ? r->to : 0;
        }
    }
    return n;
}

static inline bool before(const struct merge_event *a,
                          const struct merge_event *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void heap_push(struct merge_event *heap, size_t *n, struct merge_event x)
{
    size_t i = (*n)++;

    while (i && before(&x, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = x;
}

static struct merge_event heap_pop(struct merge_event *heap, size_t *n)
{
    struct merge_event top = heap[0], x = heap[--*n];
    size_t i = 0;

    for (size_t k; (k = 2 * i + 1) < *n; i = k) {
        if (k + 1 < *n && before(&heap[k + 1], &heap[k]))
            k++;
        if (!before(&heap[k], &x))
            break;
        heap[i] = heap[k];
    }
    heap[i] = x;
    return top;
}

static void consider(struct merges *m, size_t *n_heap, uint32_t pos)
{
    const struct merge_rule *r;

    if (pos == NONE || m->node[pos].next == NONE)
        return;
    r = find(m, m->node[pos].id, m->node[m->node[pos].next].id);
    if (r)
        heap_push(m->heap, n_heap, (struct merge_event){ r->rank, pos, r->to });
}

static int reserve(struct merges *m, size_t n, struct err *e)
{
    size_t bytes;

    if (n >= NONE / 4)
        return err_set(e, E_DATA, "a piece of %zu characters is too long", n);
    if (n > m->node_cap) {
        if (size_mul(n, sizeof(*m->node), &bytes) ||
            mem_grow(&m->node, bytes, "tokenizer", e) < 0)
            return err_set(e, E_TEMP, "tokenizer: cannot allocate memory");
        m->node_cap = n;
    }
    /* each merge uses up one entry and adds at most two */
    if (2 * n > m->heap_cap) {
        if (size_mul(2 * n, sizeof(*m->heap), &bytes) ||
            mem_grow(&m->heap, bytes, "tokenizer", e) < 0)
            return err_set(e, E_TEMP, "tokenizer: cannot allocate memory");
        m->heap_cap = 2 * n;
    }
    return 0;
}

static int apply_long(struct merges *m, int32_t *id, size_t *n, struct err *e)
{
    size_t n_heap = 0, count = 0;

    if (reserve(m, *n, e) < 0)
        return e->code;
    for (size_t i = 0; i < *n; i++)
        m->node[i] = (struct merge_node){ id[i], (uint32_t)i - 1,
                                          (uint32_t)i + 1, false };
    m->node[*n - 1].next = NONE;
    for (size_t i = 0; i + 1 < *n; i++)
        consider(m, &n_heap, (uint32_t)i);
    while (n_heap) {
        struct merge_event top = heap_pop(m->heap, &n_heap);
        struct merge_node *left = &m->node[top.pos], *right;
        const struct merge_rule *r;

        if (left->gone || left->next == NONE)
            continue;
        right = &m->node[left->next];
        r = find(m, left->id, right->id);
        if (!r || r->to != top.to)
            continue; /* stale: the pair has changed */
        left->id = top.to;
        left->next = right->next;
        right->gone = true;
        if (right->next != NONE)
            m->node[right->next].prev = top.pos;
        consider(m, &n_heap, left->prev);
        consider(m, &n_heap, top.pos);
    }
    for (uint32_t i = 0; i != NONE; i = m->node[i].next)
        id[count++] = m->node[i].id;
    *n = count;
    return 0;
}

int merges_apply(struct merges *m, int32_t *id, size_t *n, struct err *e)
{
    if (*n < 2)
        return 0;
    if (*n > LINEAR_MAX || m->always_heap)
        return apply_long(m, id, n, e);
    *n = apply_short(m, id, *n);
    return 0;
}

bool merges_use(const struct merges *m, int32_t id)
{
    for (size_t i = 0; i <= m->mask; i++)
        if (m->rule[i].pair != UINT64_MAX &&
            ((int32_t)(m->rule[i].pair >> 32) == id ||
             (int32_t)(uint32_t)m->rule[i].pair == id))
            return true;
    return false;
}

/* ---- joints ---- */

bool merges_may_join(const struct merges *m, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t i;

    if (left < 128 && right < 128)
        return m->ascii[left][right >> 6] >> (right & 63) & 1;
    for (i = pair_hash(pair) & m->joint_mask; m->joint[i] != UINT64_MAX;
         i = (i + 1) & m->joint_mask)
        if (m->joint[i] == pair)
            return true;
    return false;
}

static int joints_grow(struct merges *m, struct err *e)
{
    size_t old = m->joint ? m->joint_mask + 1 : 0, size = old ? 2 * old : 1024;
    uint64_t *was = m->joint;
    uint64_t *now = mem_alloc(size * sizeof(*now), "merges", e);

    if (!now)
        return e->code;
    memset(now, 0xff, size * sizeof(*now));
    m->joint = now;
    m->joint_mask = size - 1;
    for (size_t k = 0; k < old; k++) {
        size_t i = pair_hash(was[k]) & m->joint_mask;

        if (was[k] == UINT64_MAX)
            continue;
        while (now[i] != UINT64_MAX)
            i = (i + 1) & m->joint_mask;
        now[i] = was[k];
    }
    free(was);
    return 0;
}

static int add_joints(struct merges *m, const char *text, size_t len,
                      size_t *count, struct err *e)
{
    uint32_t left = 0;

    for (size_t at = 0, k; at < len; at += k) {
        uint32_t right = unicode_decode(text + at, &k);
        uint64_t pair = (uint64_t)left << 32 | right;
        size_t i;

        if (at && left < 128 && right < 128)
            m->ascii[left][right >> 6] |= 1ull << (right & 63);
        else if (at && !merges_may_join(m, left, right)) {
            if (++*count * 2 > m->joint_mask && joints_grow(m, e) < 0)
                return e->code;
            i = pair_hash(pair) & m->joint_mask;
            while (m->joint[i] != UINT64_MAX)
                i = (i + 1) & m->joint_mask;
            m->joint[i] = pair;
        }
        left = right;
    }
    return 0;
}

/* ---- from tokenizer.json ---- */

static void insert(struct merges *m, struct merge_rule r)
{
    size_t i = pair_hash(r.pair) & m->mask;

    while (m->rule[i].pair != UINT64_MAX && m->rule[i].pair != r.pair)
        i = (i + 1) & m->mask;
    m->rule[i] = r; /* of a pair given twice the last rule counts */
}

/* The two strings of a list entry; part[0] holds both if it is "left right". */
static int read_entry(const struct json *v, const char *part[2], size_t len[2],
                      size_t rank, const char *what, struct err *e)
{
    const char *text, *blank;

    if (json_string(v, &text)) {
        blank = strchr(text, ' ');
        if (!blank || strchr(blank + 1, ' '))
            return err_set(e, E_DATA, "%s: merge %zu is not two words", what,
                           rank);
        part[0] = text;
        len[0] = (size_t)(blank - text);
        part[1] = blank + 1;
        len[1] = strlen(blank + 1);
        return 0;
    }
    if (json_type(v) != JSON_ARRAY || json_count(v) != 2 ||
        !json_string(json_first(v), &part[0]) ||
        !json_string(json_after(json_first(v)), &part[1]))
        return err_set(e, E_DATA, "%s: merge %zu is not a pair of tokens", what,
                       rank);
    len[0] = strlen(part[0]);
    len[1] = strlen(part[1]);
    return 0;
}

/* Text of a merged token. */
struct scratch {
    char *text;
    size_t cap, joints;
};

static int add_rule(struct merges *m, const struct vocab *v, struct scratch *s,
                    const struct json *entry, size_t rank, const char *what,
                    struct err *e)
{
    const char *part[2] = { NULL };
    size_t len[2] = { 0 }, n;
    int32_t left, right, to;

    if (read_entry(entry, part, len, rank, what, e) < 0)
        return e->code;
    n = len[0] + len[1];
    if (n > s->cap) {
        if (mem_grow(&s->text, 2 * n, "merges", e) < 0)
            return e->code;
        s->cap = 2 * n;
    }
    memcpy(s->text, part[0], len[0]);
    memcpy(s->text + len[0], part[1], len[1]);
    left = vocab_find(v, part[0], len[0]);
    right = vocab_find(v, part[1], len[1]);
    to = vocab_find(v, s->text, n);
    if (left < 0 || right < 0 || to < 0)
        return err_set(e, E_DATA,
                       "%s: merge %zu: '%.*s' is not in the vocabulary", what,
                       rank, (int)(n < 64 ? n : 64), s->text);
    insert(m, (struct merge_rule){ pair_of(left, right), (uint32_t)rank, to });
    return add_joints(m, s->text, n, &s->joints, e);
}

int merges_init(struct merges *m, const struct json *list,
                const struct vocab *v, const char *what, struct err *e)
{
    struct scratch s = { 0 };
    size_t size = 16, rank = 0;
    int rc = 0;

    *m = (struct merges){ .always_heap = v->repeats };
    if (!list || json_type(list) != JSON_ARRAY)
        return err_set(e, E_DATA, "%s: model has no merges", what);
    while (size < 2 * json_count(list))
        size *= 2;
    m->mask = size - 1;
    m->rule = mem_alloc(size * sizeof(*m->rule), "merges", e);
    if (!m->rule || joints_grow(m, e) < 0)
        return e->code;
    memset(m->rule, 0xff, size * sizeof(*m->rule));
    for (const struct json *i = json_first(list); i && !rc; i = json_after(i)) {
        const char *text;

        if (json_string(i, &text) && !strncmp(text, "#version", 8))
            continue;
        rc = add_rule(m, v, &s, i, rank++, what, e);
    }
    m->count = rank;
    free(s.text);
    return rc;
}

void merges_release(struct merges *m)
{
    free(m->rule);
    free(m->joint);
    free(m->node);
    free(m->heap);
}
