/* decode - ids to text, for tests: decode MODEL specials|none < FILE; of each line
 * of decimal ids a line with the text as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/io/json.h"
#include "tokenizer/decode.h"

static void print(struct text *t)
{
    struct json_writer w;

    jw_init(&w, 0);
    jw_text(&w, t->p, t->len);
    printf("%s\n", w.text);
    free(w.text);
    t->len = 0;
}

int main(int argc, char **argv)
{
    struct text t = { 0 };
    struct decoder *d;
    struct err e;
    char *line = NULL;
    size_t cap = 0;

    base_init(argv[0]);
    if (argc != 3)
        die(E_USAGE, "want MODEL specials|none");
    if (decoder_open(&d, argv[1], !strcmp(argv[2], "specials"), &e) < 0)
        die_err(&e);
    while (getline(&line, &cap, stdin) > 0) {
        char *p = line, *end;

        for (;;) {
            long id = strtol(p, &end, 10);

            if (end == p)
                break;
            if (decoder_add(d, (int32_t)id, &t, &e) < 0)
                die_err(&e);
            p = end;
        }
        if (decoder_end(d, &t, &e) < 0)
            die_err(&e);
        print(&t);
    }
    free(line);
    free(t.p);
    decoder_close(d);
    return 0;
}
