/*
 * A session that streams: options, sampling, a callback.
 *
 *     generate MODEL PROMPT [MAX_TOKENS [TEMPERATURE]]
 *
 * Prints the text as it comes on the standard output, and how it ended and what was read on the standard error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kimi_k3_inference.h"

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, kimi_last_error());
    return 1;
}

/* Gets every piece of text; a result other than 0 would end the generation. */
static int print(void *user, int token, const char *text, size_t len) {
    (void)token;
    fwrite(text, 1, len, (FILE *)user);
    fflush((FILE *)user);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [MAX_TOKENS [TEMPERATURE]]\n", argv[0]);
        return 2;
    }
    kimi_options *opening = kimi_model_options_new();
    kimi_options_set_int(opening, "context", 2048);
    kimi_model *model = kimi_model_open(argv[1], opening);
    kimi_options_free(opening);
    if (model == NULL) {
        return fail("kimi_model_open");
    }

    int count = kimi_encode(model, argv[2], strlen(argv[2]), 0, NULL, 0);
    if (count <= 0) {
        return fail("kimi_encode");
    }
    int *tokens = malloc((size_t)count * sizeof *tokens);
    if (tokens == NULL || kimi_encode(model, argv[2], strlen(argv[2]), 0, tokens, count) < 0) {
        return fail("kimi_encode");
    }

    kimi_options *generating = kimi_generate_options_new();
    if (kimi_options_set_int(generating, "max_tokens", argc > 3 ? atoi(argv[3]) : 100) < 0 ||
        kimi_options_set_float(generating, "temperature", argc > 4 ? atof(argv[4]) : 0.0) < 0) {
        return fail("kimi_options_set");
    }
    kimi_session *session = kimi_session_new(model);
    int finish = 0;
    int generated = kimi_session_generate(session, tokens, count, generating, print, stdout, &finish);
    if (generated < 0) {
        return fail("kimi_session_generate");
    }
    putchar('\n');

    char stats[8192];
    if (kimi_model_stats_json(model, stats, sizeof stats) < 0) {
        return fail("kimi_model_stats_json");
    }
    fprintf(stderr, "%d tokens, ended by %s\n%s\n", generated,
            finish == KIMI_FINISH_EOS ? "an end token" : finish == KIMI_FINISH_LENGTH ? "length" : "context", stats);

    free(tokens);
    kimi_session_free(session);
    kimi_options_free(generating);
    kimi_free_model(model);
    return 0;
}
