/* Levels of CPU: which are chosen, and what is said of those that are not. */
#include <string.h>

#include "test.h"

static struct err e;

static void names_choose(void)
{
    enum cpu_level best = cpu_level();

    CHECK(cpu_has(CPU_PLAIN));
    for (int l = 0; l < CPU_LEVELS; l++) {
        const char *name = cpu_level_name((enum cpu_level)l);

        if (!cpu_has((enum cpu_level)l)) {
            CHECK(cpu_choose(name, &e) == E_CONFIG && strstr(e.msg, name));
            CHECK(cpu_level() == best && !cpu_uses((enum cpu_level)l));
            continue;
        }
        CHECK(cpu_choose(name, &e) == 0 && cpu_level() == (enum cpu_level)l);
        for (int k = 0; k < CPU_LEVELS; k++)
            CHECK(cpu_uses((enum cpu_level)k) ==
                  (k <= l && cpu_has((enum cpu_level)k)));
        CHECK(l >= CPU_AVX2 ||
              (!cpu_uses_vbmi() && !cpu_uses_vnni() && !cpu_uses_crc32c()));
        cpu_set(best);
    }
    CHECK(cpu_choose(NULL, &e) == 0 && cpu_choose("", &e) == 0);
    CHECK(cpu_choose("AVX2", &e) == E_USAGE && strstr(e.msg, "plain"));
    CHECK(cpu_level() == best);
}

int main(void)
{
    names_choose();
    return 0;
}
