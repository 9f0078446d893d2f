/* cardeval.c - see cardeval.h. */
#include "shard/cardeval.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/io/file.h"
#include "shard/card.h"
#include "checkpoint/digests.h"

enum { CARD_MAX = 16 << 20 };

static const char heading[] = "## Evaluation\n";
static const char behind[] = "## How it was made\n"; /* the section after it */

static int read_text(const char *dir, const char *name, char **text,
                     struct err *e)
{
    char path[PATH_MAX];
    size_t len;

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >=
        sizeof(path))
        return err_set(e, E_USAGE, "'%.200s...': path is too long", dir);
    return file_slurp(text, &len, path, CARD_MAX, e);
}

static int write_text(const char *dir, const char *name, const char *text,
                      struct err *e)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return publish_text(path, text, strlen(text), e);
}

/* Find a line of text by its beginning; NULL: there is none. */
static char *find_line(char *text, const char *line)
{
    char *p = text;

    while ((p = strstr(p, line)) && p != text && p[-1] != '\n')
        p++;
    return p;
}

static int read_card(const char *dir, char **card, struct err *e)
{
    int rc = read_text(dir, CARD_FILE, card, e);

    if (rc && rc != E_NOINPUT)
        return rc;
    if (!rc && strstr(*card, CARD_MARK) && find_line(*card, behind))
        return 0;
    if (!rc)
        free(*card);
    return err_set(e, E_CONFIG, "'%s': has no model card of this program", dir);
}

int card_eval_check(const char *dir, struct err *e)
{
    char *card;
    int rc = read_card(dir, &card, e);

    if (rc)
        return rc;
    free(card);
    return access(dir, W_OK | X_OK) ?
               err_set(e, E_CREATE, "'%s': cannot be written to:", dir) :
               0;
}

static double number(const struct json *result, const char *key)
{
    double x = 0;

    (void)!json_number(json_get(result, key), &x);
    return x;
}

static void put_predictions(FILE *out, const struct json *r)
{
    double was = number(r, "ppl_original"), is = number(r, "ppl");

    fprintf(out, "| | original | this |\n|---|---|---|\n");
    fprintf(out, "| perplexity | %.4f | %.4f (%+.2f %%) |\n", was, is,
            was > 0 ? 100 * (is / was - 1) : 0);
    fprintf(out, "| KL divergence, mean | | %.6f ± %.6f |\n",
            number(r, "kl_mean"), number(r, "kl_sem"));
    fprintf(out, "| KL divergence, 99 %% | | %.6f |\n", number(r, "kl_p99"));
    fprintf(out, "| the same most likely token | | %.2f %% |\n",
            100 * number(r, "top1"));
}

static void put_states(FILE *out, const struct json *r)
{
    fprintf(out, "| last hidden states, to the original's | |\n|---|---|\n");
    fprintf(out, "| cosine, mean | %.6f ± %.6f |\n", number(r, "cosine_mean"),
            number(r, "cosine_sem"));
    fprintf(out, "| cosine, smallest | %.6f |\n", number(r, "cosine_min"));
    fprintf(out, "| cosine, last tokens of sequences | %.6f ± %.6f |\n",
            number(r, "cosine_last"), number(r, "cosine_last_sem"));
    fprintf(out, "| relative error, RMS | %.6f ± %.6f |\n",
            number(r, "error_rms"), number(r, "error_sem"));
}

static void put_result(FILE *out, const struct json *r)
{
    const char *text = "";

    (void)!json_string(json_get(r, "text_sha256"), &text);
    fprintf(out, "%s\n", heading);
    if (json_get(r, "cosine_mean"))
        put_states(out, r);
    else
        put_predictions(out, r);
    fprintf(out,
            "\nBy `forge eval` on %.0f tokens in %.0f sequences of the text "
            "with SHA-256 `%s`.\n\n",
            number(r, "tokens"), number(r, "sequences"), text);
}

/* The card with the new section; free() it. */
static char *with_result(char *card, const struct json *result)
{
    char *end = find_line(card, behind), *begin = find_line(card, heading);
    char *made = NULL;
    size_t len;
    FILE *out = open_memstream(&made, &len);

    if (!out)
        return NULL;
    if (!begin || begin > end)
        begin = end;
    fwrite(card, 1, (size_t)(begin - card), out);
    put_result(out, result);
    fputs(end, out);
    if (fclose(out)) {
        free(made);
        return NULL;
    }
    return made;
}

/* Update the card's digest in SHA256SUMS, if that lists it. */
static int renew_digest(const char *dir, const char *card, struct err *e)
{
    static const char name[] = "  " CARD_FILE "\n";
    char hex[SHA256_HEX + 1], *sums, *at;
    int rc = read_text(dir, SUMS_FILE, &sums, e);

    if (rc)
        return rc == E_NOINPUT ? 0 : rc;
    at = strstr(sums, name);
    rc = sha256_of(card, strlen(card), hex, e);
    if (!rc && at && at - sums >= SHA256_HEX) {
        memcpy(at - SHA256_HEX, hex, SHA256_HEX);
        rc = write_text(dir, SUMS_FILE, sums, e);
    }
    free(sums);
    return rc;
}

int card_eval(const char *dir, const struct json *result, struct err *e)
{
    char *card, *made;
    int rc = read_card(dir, &card, e);

    if (rc)
        return rc;
    made = with_result(card, result);
    free(card);
    if (!made)
        return err_set(e, E_TEMP, "model card: out of memory");
    rc = write_text(dir, CARD_FILE, made, e);
    if (!rc)
        rc = renew_digest(dir, made, e);
    free(made);
    return rc;
}
