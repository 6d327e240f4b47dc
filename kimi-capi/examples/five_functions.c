/*
 * The five functions: a program that keeps its own tokens.
 *
 *     five_functions MODEL PROMPT [MAX_TOKENS]
 *
 * Prints the text of the generated tokens on the standard output and their ids on the standard error.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kimi_k3_inference.h"

#define MAX_SEQUENCE 1024

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, kimi_last_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [MAX_TOKENS]\n", argv[0]);
        return 2;
    }
    int left = argc > 3 ? atoi(argv[3]) : 32;

    void *model = kimi_load_model(argv[1], MAX_SEQUENCE, 1.0f, 0);
    if (model == NULL) {
        return fail("kimi_load_model");
    }
    int tokens[MAX_SEQUENCE];
    int count = kimi_tokenize(model, argv[2], tokens, MAX_SEQUENCE);
    if (count <= 0) {
        return fail("kimi_tokenize");
    }
    while (left-- > 0 && count < MAX_SEQUENCE) {
        int token = kimi_generate_next_token(model, tokens, count);
        if (token < 0) {
            return fail("kimi_generate_next_token");
        }
        /* 0 may be the token 0. */
        if (token == 0 && kimi_last_status() == KIMI_END_OF_SEQUENCE) {
            break;
        }
        tokens[count++] = token;
        char text[512];
        if (kimi_detokenize(model, token, text, sizeof text) < 0) {
            return fail("kimi_detokenize");
        }
        fputs(text, stdout);
        fprintf(stderr, "%d\n", token);
    }
    kimi_free_model(model);
    return 0;
}
