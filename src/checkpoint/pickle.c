/* pickle.c - see pickle.h: the opcodes of protocol 2 for a dict of tensors.
 *
 * Every opcode is a row of ops[]; one without a row is refused.  Nothing
 * recurses, and each opcode makes at most one value, so that memory is
 * proportional to the length of the pickle. */
#include "checkpoint/pickle.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/pickle_value.h"
#include "common/io/utf8.h"

struct machine {
    const uint8_t *begin, *at, *end, *op; /* op: the current opcode */
    const char *what;
    struct err *e;
    struct arena arena;
    struct value **stack, **memo;
    size_t n_stack, stack_cap, n_memo, memo_cap;
    size_t *mark;                     /* heights of the stack at MARKs */
    size_t n_marks, mark_cap, copied; /* copied: pairs, and batches given */
    bool stopped;
};

PRINTF(2, 3) static int refuse(struct machine *m, const char *fmt, ...)
{
    char why[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return err_set(m->e, E_DATA, "%s: pickle, byte %zu: %s", m->what,
                   (size_t)(m->op - m->begin), why);
}

/* ---- the stack ---- */

/* Make space for one more element in an array of n. */
static int room(struct machine *m, void *array, size_t n, size_t *cap,
                size_t size)
{
    size_t more = *cap ? 2 * *cap : 64;

    if (n < *cap)
        return 0;
    if (mem_grow(array, more * size, "pickle", m->e))
        return m->e->code;
    *cap = more;
    return 0;
}

static int push(struct machine *m, struct value *v)
{
    if (!v || room(m, &m->stack, m->n_stack, &m->stack_cap, sizeof(v)))
        return m->e->code;
    m->stack[m->n_stack++] = v;
    return 0;
}

/* The topmost value; NULL and an error if there is none above the last mark. */
static struct value *pop(struct machine *m)
{
    size_t floor = m->n_marks ? m->mark[m->n_marks - 1] : 0;

    if (m->n_stack <= floor) {
        refuse(m, "its stack is empty");
        return NULL;
    }
    return m->stack[--m->n_stack];
}

static struct value *top(struct machine *m)
{
    struct value *v = pop(m);

    m->n_stack += v != NULL;
    return v;
}

/* Remove the last mark; *first: index of the first value above it.  The caller
 * removes these values. */
static int pop_mark(struct machine *m, size_t *first)
{
    if (!m->n_marks)
        return refuse(m, "its stack has no mark");
    *first = m->mark[--m->n_marks];
    return 0;
}

static const uint8_t *take(struct machine *m, size_t n)
{
    const uint8_t *p = m->at;

    if ((size_t)(m->end - p) < n) {
        refuse(m, "it ends early");
        return NULL;
    }
    m->at += n;
    return p;
}

/* A number of 1 byte, or of 4. */
static int take_number(struct machine *m, bool wide, uint32_t *n)
{
    const uint8_t *p = take(m, wide ? 4 : 1);

    if (!p)
        return m->e->code;
    *n = *p;
    if (wide)
        memcpy(n, p, 4);
    return 0;
}

/* ---- literals ---- */

static int push_int(struct machine *m, enum value_type type, int64_t n)
{
    struct value *v = value_new(&m->arena, type, m->e);

    if (v)
        v->number = n;
    return push(m, v);
}

/* Push n <= 8 bytes as a little-endian two's complement number. */
static int push_bytes(struct machine *m, size_t n, bool is_signed)
{
    const uint8_t *p = take(m, n);
    uint64_t v = 0;

    if (!p)
        return m->e->code;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << 8 * i;
    if (is_signed && n && n < 8 && p[n - 1] & 0x80)
        v |= UINT64_MAX << 8 * n;
    return push_int(m, VALUE_INT, (int64_t)v);
}

static int op_constant(struct machine *m)
{
    return *m->op == 'N' ? push_int(m, VALUE_NONE, 0) :
                           push_int(m, VALUE_BOOL, *m->op == 0x88);
}

static int op_int(struct machine *m)
{
    size_t n = *m->op == 'J' ? 4 : *m->op == 'M' ? 2 : 1;

    return push_bytes(m, n, n == 4);
}

static int op_long1(struct machine *m)
{
    const uint8_t *n = take(m, 1);

    if (!n)
        return m->e->code;
    if (*n > 8)
        return refuse(m, "a number of %d bytes", *n);
    return push_bytes(m, *n, true);
}

static int op_float(struct machine *m)
{
    return take(m, 8) ? push_int(m, VALUE_FLOAT, 0) : m->e->code;
}

static int push_text(struct machine *m, size_t n)
{
    const uint8_t *p = take(m, n);
    struct value *v;

    if (!p)
        return m->e->code;
    if (!utf8_printable((const char *)p, n))
        return refuse(m, "a text with control characters or no UTF-8");
    v = value_new(&m->arena, VALUE_TEXT, m->e);
    if (!v || !(v->text = arena_text(&m->arena, p, n, m->e)))
        return m->e->code;
    return push(m, v);
}

static int op_text(struct machine *m)
{
    uint32_t n = 0;

    return take_number(m, *m->op == 'X', &n) ? m->e->code : push_text(m, n);
}

/* ---- containers ---- */

static int op_mark(struct machine *m)
{
    if (room(m, &m->mark, m->n_marks, &m->mark_cap, sizeof(*m->mark)))
        return m->e->code;
    m->mark[m->n_marks++] = m->n_stack;
    return 0;
}

/* Replace the values from index first on by one tuple. */
static int make_tuple(struct machine *m, size_t first)
{
    struct value *v = value_new(&m->arena, VALUE_TUPLE, m->e);

    if (!v)
        return m->e->code;
    for (size_t i = first; i < m->n_stack; i++)
        if (value_append(&m->arena, v, m->stack[i], m->e))
            return m->e->code;
    m->n_stack = first;
    return push(m, v);
}

static int op_tuple(struct machine *m)
{
    size_t first = 0;

    return pop_mark(m, &first) ? m->e->code : make_tuple(m, first);
}

static int op_tuple_n(struct machine *m)
{
    size_t floor = m->n_marks ? m->mark[m->n_marks - 1] : 0;
    size_t n = *m->op == ')' ? 0 : (size_t)(*m->op - 0x84);

    if (m->n_stack - floor < n)
        return refuse(m, "its stack is empty");
    return make_tuple(m, m->n_stack - n);
}

static int op_empty(struct machine *m)
{
    return push(
        m, value_new(&m->arena, *m->op == ']' ? VALUE_LIST : VALUE_DICT, m->e));
}

/* Move the values from index first on into the list or dict below them. */
static int extend(struct machine *m, size_t first, enum value_type type)
{
    size_t n = m->n_stack - first;
    struct value *v;

    if (!first || (m->n_marks && m->mark[m->n_marks - 1] >= first))
        return refuse(m, "its stack is empty");
    v = m->stack[first - 1];
    if (v->type != type)
        return refuse(m, "puts values into something that is no %s",
                      type == VALUE_DICT ? "dict" : "list");
    if (type == VALUE_DICT && n % 2)
        return refuse(m, "a key without a value");
    for (size_t i = first; i < m->n_stack; i++)
        if (value_append(&m->arena, v, m->stack[i], m->e))
            return m->e->code;
    m->n_stack = first;
    return 0;
}

static int op_append(struct machine *m)
{
    return extend(m, m->n_stack ? m->n_stack - 1 : 0, VALUE_LIST);
}

static int op_setitem(struct machine *m)
{
    return extend(m, m->n_stack > 1 ? m->n_stack - 2 : 0, VALUE_DICT);
}

/* The same for all values above the last mark. */
static int op_extend(struct machine *m)
{
    size_t first = 0;

    if (pop_mark(m, &first))
        return m->e->code;
    return extend(m, first, *m->op == 'e' ? VALUE_LIST : VALUE_DICT);
}

/* ---- the memo ---- */

/* Picklers number memo entries 0, 1, 2, ...; larger gaps are refused, since
 * they would cost memory. */
static int memo_put(struct machine *m, uint32_t i)
{
    struct value *v = top(m);

    if (!v)
        return m->e->code;
    if (i > m->n_memo)
        return refuse(m, "memo %u after %zu", (unsigned)i, m->n_memo);
    if (room(m, &m->memo, i, &m->memo_cap, sizeof(v)))
        return m->e->code;
    m->memo[i] = v;
    m->n_memo += i == m->n_memo;
    return 0;
}

static int memo_get(struct machine *m, uint32_t i)
{
    if (i >= m->n_memo)
        return refuse(m, "memo %u was never filled", (unsigned)i);
    return push(m, m->memo[i]);
}

static int op_memo(struct machine *m)
{
    bool put = *m->op == 'q' || *m->op == 'r';
    uint32_t i = 0;

    if (take_number(m, *m->op == 'r' || *m->op == 'j', &i))
        return m->e->code;
    return put ? memo_put(m, i) : memo_get(m, i);
}

/* ---- globals and what they build ---- */

static const char *take_line(struct machine *m)
{
    size_t left = (size_t)(m->end - m->at);
    const uint8_t *p = m->at, *nl = left ? memchr(p, '\n', left) : NULL;

    if (!nl) {
        refuse(m, "it ends early");
        return NULL;
    }
    m->at = nl + 1;
    return arena_text(&m->arena, p, (size_t)(nl - p), m->e);
}

static int op_global(struct machine *m)
{
    const char *module = take_line(m);
    const char *name = module ? take_line(m) : NULL;
    const struct global *g;
    struct value *v;

    if (!name)
        return m->e->code;
    g = global_find(module, name);
    if (!g)
        return refuse(m,
                      "refuses to run %.80s.%.80s, a checkpoint may build "
                      "tensors and nothing else",
                      module, name);
    v = value_new(&m->arena, VALUE_GLOBAL, m->e);
    if (v)
        v->global = g;
    return push(m, v);
}

/* ("storage", class, key, location, elements) */
static int op_persid(struct machine *m)
{
    struct value *id = pop(m), *v, **a;

    if (!id)
        return m->e->code;
    a = id->item;
    if (id->type != VALUE_TUPLE || id->count != 5 || a[0]->type != VALUE_TEXT ||
        strcmp(a[0]->text, "storage") != 0 || a[1]->type != VALUE_GLOBAL ||
        a[1]->global->kind != GLOBAL_STORAGE || a[2]->type != VALUE_TEXT ||
        !value_is_size(a[4]))
        return refuse(m, "a persistent id that is no storage");
    v = value_new(&m->arena, VALUE_STORAGE, m->e);
    if (v) {
        v->global = a[1]->global;
        v->text = a[2]->text;
        v->number = a[4]->number;
    }
    return push(m, v);
}

/* (storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata]) */
static int rebuild(struct machine *m, const struct value *args, bool v3)
{
    struct value **a = args->item, *v;
    struct pickle_tensor *t;
    const struct global *g;

    if (args->count < (v3 ? 7 : 4) || a[0]->type != VALUE_STORAGE ||
        !value_is_size(a[1]))
        return refuse(m, "a tensor without a storage");
    g = a[0]->global;
    if (v3 && (a[6]->type != VALUE_GLOBAL ||
               a[6]->global->kind != GLOBAL_DTYPE || g->dtype != DT_NONE))
        return refuse(m, "a tensor without a dtype");
    if (!v3 && g->dtype == DT_NONE)
        return refuse(m, "a tensor of an untyped storage");
    v = value_new(&m->arena, VALUE_TENSOR, m->e);
    t = v ? arena_zero(&m->arena, sizeof(*t), m->e) : NULL;
    if (!t)
        return m->e->code;
    v->tensor = t;
    t->key = a[0]->text;
    t->dtype = v3 ? a[6]->global->dtype : g->dtype;
    t->offset = (uint64_t)a[1]->number;
    if (a[2]->type == VALUE_TUPLE && a[2]->count > CHECKPOINT_MAX_DIMS)
        return refuse(m, "a tensor of more than 8 dimensions");
    t->ndim = value_sizes(a[2], t->dims);
    if (t->ndim < 0 || value_sizes(a[3], t->stride) != t->ndim)
        return refuse(m, "a tensor with no good size and stride");
    if (size_mul((uint64_t)a[0]->number,
                 (uint64_t)(v3 ? 1 : dtype_bits(t->dtype) / 8),
                 &t->storage_bytes))
        return refuse(m, "a storage of %" PRId64 " elements", a[0]->number);
    return push(m, v);
}

/* OrderedDict(), or OrderedDict(list of pairs). */
static int ordered_dict(struct machine *m, const struct value *args)
{
    const struct value *pairs = args->count ? args->item[0] : NULL;
    struct value *v = value_new(&m->arena, VALUE_DICT, m->e);

    if (!v)
        return m->e->code;
    if (args->count > 1 || (pairs && pairs->type != VALUE_LIST))
        return refuse(m, "an OrderedDict of something else than pairs");
    for (size_t i = 0; pairs && i < pairs->count; i++) {
        const struct value *p = pairs->item[i];

        if (++m->copied > (size_t)(m->end - m->begin))
            return refuse(m, "OrderedDicts of more pairs than it has bytes");
        if ((p->type != VALUE_LIST && p->type != VALUE_TUPLE) || p->count != 2)
            return refuse(m, "an OrderedDict of something else than pairs");
        if (value_append(&m->arena, v, p->item[0], m->e) ||
            value_append(&m->arena, v, p->item[1], m->e))
            return m->e->code;
    }
    return push(m, v);
}

static int op_reduce(struct machine *m)
{
    struct value *args = pop(m), *f = args ? pop(m) : NULL;

    if (!f)
        return m->e->code;
    if (f->type != VALUE_GLOBAL || args->type != VALUE_TUPLE)
        return refuse(m, "calls something that is no function");
    switch (f->global->kind) {
    case GLOBAL_ORDERED_DICT: return ordered_dict(m, args);
    case GLOBAL_DEFAULT_DICT: /* (list,) */
        if (args->count == 1 && args->item[0]->type == VALUE_GLOBAL &&
            args->item[0]->global->kind == GLOBAL_LIST)
            return push(m, value_new(&m->arena, VALUE_DICT, m->e));
        break;
    case GLOBAL_REBUILD: return rebuild(m, args, false);
    case GLOBAL_REBUILD_V3: return rebuild(m, args, true);
    case GLOBAL_SIZE:
        if (args->count == 1 && args->item[0]->type == VALUE_TUPLE)
            return push(m, args->item[0]);
        break;
    case GLOBAL_PARAMETER: /* (tensor, requires_grad, hooks[, state]) */
        if (args->count && args->item[0]->type == VALUE_TENSOR)
            return push(m, args->item[0]);
        break;
    case GLOBAL_LIST:
    case GLOBAL_STORAGE:
    case GLOBAL_DTYPE: break;
    }
    return refuse(m, "refuses to call %s.%s with these arguments",
                  f->global->module, f->global->name);
}

/* Sets attributes of a dict (_metadata) or tensor: ignored. */
static int op_build(struct machine *m)
{
    struct value *state = pop(m), *v = state ? top(m) : NULL;

    if (!v)
        return m->e->code;
    if ((v->type != VALUE_DICT && v->type != VALUE_TENSOR) ||
        state->type != VALUE_DICT)
        return refuse(m, "sets the state of something that has none");
    return 0;
}

static int op_proto(struct machine *m)
{
    const uint8_t *p = take(m, 1);

    if (!p)
        return m->e->code;
    return *p == 2 ? 0 : refuse(m, "protocol %d, torch.save writes 2", *p);
}

static int op_stop(struct machine *m)
{
    m->stopped = true;
    return 0;
}

static int (*const ops[256])(struct machine *m) = {
    [0x80] = op_proto,   ['.'] = op_stop,      ['('] = op_mark,
    ['N'] = op_constant, [0x88] = op_constant, [0x89] = op_constant,
    ['J'] = op_int,      ['K'] = op_int,       ['M'] = op_int,
    [0x8a] = op_long1,   ['G'] = op_float,     ['X'] = op_text,
    ['U'] = op_text,     [')'] = op_tuple_n,   [0x85] = op_tuple_n,
    [0x86] = op_tuple_n, [0x87] = op_tuple_n,  ['t'] = op_tuple,
    [']'] = op_empty,    ['a'] = op_append,    ['e'] = op_extend,
    ['}'] = op_empty,    ['s'] = op_setitem,   ['u'] = op_extend,
    ['q'] = op_memo,     ['r'] = op_memo,      ['h'] = op_memo,
    ['j'] = op_memo,     ['c'] = op_global,    ['Q'] = op_persid,
    ['R'] = op_reduce,   [0x81] = op_reduce,   ['b'] = op_build,
};

/* ---- the run ---- */

static int run(struct machine *m)
{
    int r = 0;

    while (!r && !m->stopped) {
        m->op = m->at;
        if (m->at == m->end)
            return refuse(m, "it ends early");
        m->at++;
        if (!ops[*m->op])
            return refuse(m, "opcode 0x%02x is not allowed", *m->op);
        r = ops[*m->op](m);
    }
    if (!r && m->at != m->end)
        return refuse(m, "bytes after its end");
    return r;
}

/* Give a list's tensors as NAME[0], NAME[1], ...: of all lists, which many names may
 * share, no more than 4 bytes of memo name each. */
static int give_batches(struct machine *m, const char *name,
                        const struct value *list, pickle_each *each, void *arg)
{
    char batch[PICKLE_NAME + 32];
    int r = 0;

    for (size_t i = 0; i < list->count && !r; i++) {
        const struct value *v = list->item[i];

        if (v->type != VALUE_TENSOR)
            return refuse(m, "'%.200s' is no list of tensors", name);
        if (++m->copied > (size_t)(m->end - m->begin) / 4)
            return refuse(m, "lists of more tensors than its bytes can name");
        snprintf(batch, sizeof(batch), "%s[%zu]", name, i);
        v->tensor->name = batch;
        r = each(arg, v->tensor, m->e);
    }
    return r;
}

static int give(struct machine *m, pickle_each *each, void *arg)
{
    struct value *dict = pop(m);
    int r = 0;

    if (!dict)
        return m->e->code;
    if (dict->type != VALUE_DICT)
        return refuse(m, "it holds no dict of tensors");
    for (size_t i = 0; i < dict->count && !r; i += 2) {
        const struct value *key = dict->item[i], *v = dict->item[i + 1];

        if (key->type != VALUE_TEXT)
            return refuse(m, "a key that is no text");
        if (strlen(key->text) > PICKLE_NAME) /* each() copies it */
            return refuse(m, "'%.200s' is too long a name", key->text);
        if (v->type == VALUE_LIST || v->type == VALUE_TUPLE) {
            r = give_batches(m, key->text, v, each, arg);
        } else if (v->type == VALUE_TENSOR) {
            v->tensor->name = key->text;
            r = each(arg, v->tensor, m->e);
        } else {
            return refuse(m, "'%.200s' is no tensor", key->text);
        }
    }
    return r;
}

int pickle_run(const void *text, size_t len, const char *what,
               pickle_each *each, void *arg, struct err *e)
{
    struct machine m = { .begin = text, .what = what, .e = e };
    int r;

    m.at = m.op = m.begin;
    m.end = m.begin + len;
    r = run(&m);
    if (!r)
        r = give(&m, each, arg);
    free(m.stack);
    free(m.memo);
    free(m.mark);
    arena_release(&m.arena);
    return r;
}
