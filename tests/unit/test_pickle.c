/* The pickle machine: what torch.save writes is run, everything else is
 * refused with a message that says what it was. */
#include <string.h>

#include "checkpoint/pickle.h"
#include "test.h"

static struct err e;
static int given;
static struct pickle_tensor last;
static char last_name[100], last_key[100];

static int each(void *arg, const struct pickle_tensor *t, struct err *err)
{
    (void)arg, (void)err;
    given++;
    last = *t;
    CHECK(strlen(t->name) < 100 && strlen(t->key) < 100);
    strcpy(last_name, t->name);
    strcpy(last_key, t->key);
    return 0;
}

/* Run an exact-size copy, so that a read beyond it shows. */
static int run(const char *bytes, size_t n)
{
    char *copy = malloc(n ? n : 1);
    int r;

    CHECK(copy);
    memcpy(copy, bytes, n);
    given = 0;
    r = pickle_run(copy, n, "'f'", each, NULL, &e);
    free(copy);
    return r;
}

#define RUN(s) run(s, sizeof(s) - 1)
#define REFUSED(s, why)                                                        \
    do {                                                                       \
        CHECK(RUN(s) == E_DATA && e.code == E_DATA);                           \
        if (!strstr(e.msg, why)) {                                             \
            fprintf(stderr, "line %d: want '%s', got '%s'\n", __LINE__, why,   \
                    e.msg);                                                    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

#define P        "\x80\2"
#define TEXT1(c) "X\1\0\0\0" c
#define STORAGE_OF(cls, n)                                                     \
    "(X\7\0\0\0storagectorch\n" cls "\n" TEXT1("0") "X\3\0\0\0cpuK" n "tQ"
#define REBUILD "ctorch._utils\n_rebuild_tensor_v2\n"
#define HOOKS                                                                  \
    "\x89"                                                                     \
    "ccollections\nOrderedDict\n)R"
#define TENSOR                                                                 \
    REBUILD "(" STORAGE_OF("HalfStorage",                                      \
                           "\6") "K\0K\2K\3\x86K\3K\1\x86" HOOKS "tR"

static void accepts(void)
{
    CHECK(RUN(P "}.") == 0 && given == 0);
    CHECK(RUN(P "}(u.") == 0 && given == 0);
    CHECK(RUN(P "}" TEXT1("w") TENSOR "s.") == 0 && given == 1);
    CHECK(strcmp(last_name, "w") == 0 && strcmp(last_key, "0") == 0);
    CHECK(last.dtype == DT_F16 && last.ndim == 2 && last.dims[0] == 2 &&
          last.dims[1] == 3 && last.stride[0] == 3 && last.stride[1] == 1 &&
          last.offset == 0 && last.storage_bytes == 12);
    /* an OrderedDict with _metadata; the same tensor twice by the memo */
    CHECK(RUN(P "ccollections\nOrderedDict\n)R(" TEXT1("w") TENSOR
              "q\0" TEXT1("v") "h\0u}X\x09\0\0\0_metadata}sb.") == 0);
    CHECK(given == 2 && strcmp(last_name, "v") == 0);
    /* a parameter, and numbers of each size */
    CHECK(RUN(P
              "}" TEXT1("w") "ctorch._utils\n_rebuild_parameter\n" TENSOR HOOKS
                             "\x87Rs.") == 0 &&
          given == 1);
    CHECK(RUN(P "}" TEXT1("w") REBUILD "(" STORAGE_OF(
              "ByteStorage",
              "\xff") "J\1\0\0\0M\1\0\x8a\2\2\0\x86\x8a\0K\0\x86" HOOKS
                      "tRs.") == 0);
    CHECK(last.offset == 1 && last.dims[1] == 2 && last.stride[0] == 0);
    /* float8 comes as bytes with a dtype */
    CHECK(RUN(P "}" TEXT1(
              "w") "ctorch._utils\n_rebuild_tensor_v3\n("
                   "(X\7\0\0\0storagectorch.storage\nUntypedStorage\n" TEXT1(
                       "7") "X\3\0\0\0cpuK\4tQK\0K\4\x85K\1\x85" HOOKS
                            "ctorch\nfloat8_e4m3fn\ntRs.") == 0);
    CHECK(last.dtype == DT_F8_E4M3 && last.storage_bytes == 4);
    /* a torch.Size, and an OrderedDict of pairs */
    CHECK(RUN(P "ccollections\nOrderedDict\n(]]" TEXT1("w") "a" TENSOR
                                                            "aatR.") == 0 &&
          given == 1);
    /* batches under one name, and a defaultdict */
    CHECK(RUN(P "}" TEXT1("w") "](" TENSOR "q\0h\0es.") == 0 && given == 2);
    CHECK(strcmp(last_name, "w[1]") == 0 && last.dims[1] == 3);
    CHECK(RUN(P "}" TEXT1("w") TENSOR "\x85s.") == 0 && given == 1);
    CHECK(strcmp(last_name, "w[0]") == 0);
    CHECK(RUN(P "ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(" TEXT1(
              "w") "]" TENSOR "au.") == 0 &&
          given == 1);
}

static void refuses_to_run(void)
{
    REFUSED(P "cos\nsystem\n" TEXT1("x") "\x85R.", "refuses to run os.system");
    REFUSED(P "cposix\nsystem\n.", "refuses to run posix.system");
    REFUSED(P "cbuiltins\neval\n.", "refuses to run builtins.eval");
    REFUSED(P "ctorch\nload\n.", "refuses to run torch.load");
    REFUSED(P "ctorch\nComplexFloatStorage\n.", "ComplexFloatStorage");
    REFUSED(P "(cos\nsystem\nios\nsystem\n.", "refuses to run os.system");
    REFUSED(P "ios\nsystem\n.", "opcode 0x69 is not allowed");
    REFUSED(P "Pabc\n.", "opcode 0x50");
    REFUSED(P "\x82\1.", "opcode 0x82");
    REFUSED(P "\x93.", "opcode 0x93");
    REFUSED(P "}" TEXT1("w") "ctorch\nfloat32\n)Rs.",
            "refuses to call torch.float32");
    REFUSED(P "c__builtin__\nlist\n)R.", "refuses to call __builtin__.list");
    REFUSED(P "c__builtin__\neval\n.", "refuses to run __builtin__.eval");
    REFUSED(P "ccollections\ndefaultdict\nccollections\ndefaultdict\n\x85R.",
            "refuses to call collections.defaultdict");
    REFUSED(P "ccollections\ndefaultdict\n)R.", "refuses to call");
    REFUSED(P "ctorch\nSize\nK\1\x85R.", "refuses to call torch.Size");
    REFUSED(P "ctorch._utils\n_rebuild_parameter\n)R.", "refuses to call");
}

/* Few bytes that ask for many values: a list of n pairs, copied m times. */
static void proportion(void)
{
    enum { N = 100, M = 100 };
    char s[N * 2 + M * 5 + 100] = P "}ccollections\nOrderedDict\nq\0]q\1("
                                    "K\0K\0\x86q\2";
    size_t n = sizeof(P "}ccollections\nOrderedDict\nq\0]q\1("
                        "K\0K\0\x86q\2") -
               1;

    for (int i = 0; i < N; i++, n += 2)
        memcpy(s + n, "h\2", 2);
    memcpy(s + n, "e\x85q\3", 4);
    n += 4;
    for (int i = 0; i < M; i++, n += 5)
        memcpy(s + n, "h\0h\3R", 5);
    s[n++] = '.';
    CHECK(run(s, n) == E_DATA && strstr(e.msg, "more pairs than it has bytes"));
}

/* One list of many tensors under many names. */
static void shared_list(void)
{
    static const char head[] = P "](" TENSOR "q\0", name[] = TEXT1("w") "h\1s";
    enum { N = 200 };
    char s[sizeof(head) + 2 * N + sizeof(name) * N + 10];
    size_t n = sizeof(head) - 1;

    memcpy(s, head, n);
    for (int i = 0; i < N; i++, n += 2)
        memcpy(s + n, "h\0", 2);
    memcpy(s + n, "eq\1}", 4);
    n += 4;
    for (int i = 0; i < N; i++, n += sizeof(name) - 1)
        memcpy(s + n, name, sizeof(name) - 1);
    s[n++] = '.';
    CHECK(run(s, n) == E_DATA && strstr(e.msg, "than its bytes can name"));
    CHECK((size_t)given <= n / 4);
}

/* Each tensor of a list has a copy of its name. */
static void long_name(void)
{
    char s[300] = P "}X\xfb\0\0\0";
    size_t n = sizeof(P "}X\xfb\0\0\0") - 1;

    memset(s + n, 'k', 251);
    memcpy(s + n + 251, "Ns.", 3);
    CHECK(run(s, n + 254) == E_DATA && strstr(e.msg, "is too long a name"));
}

static void structure(void)
{
    REFUSED("", "ends early");
    REFUSED(P, "ends early");
    REFUSED("\x80", "ends early");
    REFUSED("\x80\4}.", "protocol 4");
    REFUSED(P "}.x", "bytes after its end");
    REFUSED(P ".", "its stack is empty");
    REFUSED(P "].", "no dict of tensors");
    REFUSED(P "}K\1Ns.", "a key that is no text");
    REFUSED(P "}" TEXT1("w") "Ns.", "'w' is no tensor");
    REFUSED(P "}" TEXT1("w") "]Nas.", "'w' is no list of tensors");
    REFUSED(P "}" TEXT1("w") "]q\0h\0as.", "'w' is no list of tensors");
    REFUSED(P "}" TEXT1("w") "(u.", "puts values into something");
    REFUSED(P "}(" TEXT1("w") "u.", "a key without a value");
    REFUSED(P "(u.", "its stack is empty");
    REFUSED(P "u.", "no mark");
    REFUSED(P "t.", "no mark");
    REFUSED(P "e.", "no mark");
    REFUSED(P "}(a.", "its stack is empty");
    REFUSED(P "}(s.", "its stack is empty");
    REFUSED(P "s.", "its stack is empty");
    REFUSED(P "a.", "its stack is empty");
    REFUSED(P "\x86.", "its stack is empty");
    REFUSED(P "N(\x85.", "its stack is empty");
    REFUSED(P "R.", "its stack is empty");
    REFUSED(P "NNR.", "calls something that is no function");
    REFUSED(P "N)R.", "calls something that is no function");
    REFUSED(P "NQ.", "no storage");
    REFUSED(P "(NNNNNtQ.", "no storage");
    REFUSED(P "]}b.", "sets the state");
    REFUSED(P "}Nb.", "sets the state");
    REFUSED(P "q\0.", "its stack is empty");
    REFUSED(P "Nq\1.", "memo 1 after 0");
    REFUSED(P "Nr\xff\xff\xff\xff.", "memo 4294967295 after 0");
    REFUSED(P "h\0.", "never filled");
    REFUSED(P "j\0\0\0\1.", "never filled");
    REFUSED(P "X\xff\xff\xff\xff"
              "a.",
            "ends early");
    REFUSED(P "U\2a", "ends early");
    REFUSED(P "K", "ends early");
    REFUSED(P "J\0\0\0", "ends early");
    REFUSED(P "G\0\0\0\0\0\0\0", "ends early");
    REFUSED(P "\x8a\x09\0\0\0\0\0\0\0\0\0.", "a number of 9 bytes");
    REFUSED(P "cabc", "ends early");
    REFUSED(P "cabc\nabc", "ends early");
    REFUSED(P "}X\1\0\0\0\0Ns.", "control characters");
    REFUSED(P "}X\1\0\0\0\xffNs.", "no UTF-8");
}

static void tensors(void)
{
    REFUSED(P REBUILD ")R.", "without a storage");
    REFUSED(P REBUILD "(NK\0)"
                      "N"
                      "tR.",
            "without a storage");
    REFUSED(P REBUILD "(" STORAGE_OF("HalfStorage",
                                     "\6") "J\xff\xff\xff\xffK\2\x85K\1\x85tR.",
            "without a storage");
    REFUSED(P REBUILD "(" STORAGE_OF("HalfStorage",
                                     "\6") "K\0J\xff\xff\xff\xff\x85K\1\x85tR.",
            "no good size");
    REFUSED(P REBUILD "(" STORAGE_OF("HalfStorage",
                                     "\6") "K\0K\2\x85J\xff\xff\xff\xff\x85tR.",
            "no good size");
    REFUSED(P REBUILD "(" STORAGE_OF("HalfStorage", "\6") "K\0K\2\x85)tR.",
            "no good size");
    REFUSED(P REBUILD
            "(" STORAGE_OF("HalfStorage",
                           "\6") "K\0(K\1K\1K\1K\1K\1K\1K\1K\1K\1tq\0h\0tR.",
            "more than 8 dimensions");
    REFUSED(P "ctorch._utils\n_rebuild_tensor_v3\n(" STORAGE_OF(
                "HalfStorage", "\6") "K\0))" HOOKS "ctorch\nfloat16\ntR.",
            "without a dtype");
    REFUSED(P REBUILD
            "((X\7\0\0\0storagectorch.storage\nUntypedStorage\n" TEXT1(
                "7") "X\3\0\0\0cpuK\4tQK\0))" HOOKS "tR.",
            "untyped storage");
    REFUSED(P REBUILD "((X\7\0\0\0storagectorch\nDoubleStorage\n" TEXT1(
                "7") "X\3\0\0\0cpu\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7ftQK\0)"
                     ")" HOOKS "tR.",
            "elements");
}

/* A pickle cut anywhere is refused. */
static void cuts(void)
{
    static const char s[] = P "}" TEXT1("w") TENSOR "s.";

    for (size_t n = 0; n + 1 < sizeof(s) - 1; n++)
        CHECK(run(s, n) == E_DATA);
    CHECK(run(s, sizeof(s) - 1) == 0);
}

int main(void)
{
    accepts();
    refuses_to_run();
    structure();
    proportion();
    shared_list();
    long_name();
    tensors();
    cuts();
    return 0;
}
