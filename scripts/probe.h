/* What the Makefile asks the compiler, by its preprocessor: which it is, whether
 * it is new enough, and whether there is liburing. */
#ifdef __clang__
clang __clang_major__
#elif defined(__GNUC__)
gcc __GNUC__
#endif
#if __clang_major__ >= 14 || (!defined(__clang__) && __GNUC__ >= 11)
new_enough
#endif
#if __has_include(<liburing.h>)
uring
#endif
