/* What the Makefile asks the compiler, by its preprocessor: which it is, whether
 * it is new enough, and whether there is liburing. */
#ifdef __clang__
clang __clang_major__
#elif defined(__GNUC__)
gcc __GNUC__
#endif
/* clang 16 and 17 crash on vectors of bf16 */
#if __clang_major__ == 14 || __clang_major__ == 15 || __clang_major__ >= 18 || \
    (!defined(__clang__) && __GNUC__ >= 11)
new_enough
#endif
#if __has_include(<liburing.h>)
uring
#endif
