/*
 * A conversation with Kimi K3: a message on each line of the standard input, the answers on the standard output.
 *
 *     chat MODEL [MAX_TOKENS [TEMPERATURE]]
 *
 * The library knows no chat formats, so the program writes that of K3 itself, without reasoning. Markers are control tokens; each
 * word between them is encoded by itself; what the user says is text, whatever it looks like.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kimi_k3_inference.h"

#define LONGEST_MESSAGE 65536

static const char *const BEFORE_MESSAGE[] = {"<|open|>", "message", " role", "=\"", "user", "\"", "<|sep|>", NULL};
static const char *const BEFORE_ANSWER[] = {"<|close|>", "message", "<|sep|>", "<|end_of_msg|>",
                                            "<|open|>",  "message", " role",   "=\"",
                                            "assistant", "\"",      "<|sep|>", "<|open|>",
                                            "response",  "<|sep|>", NULL};
/* The answer ends with the first of these, which the model writes itself. */
static const char *const AFTER_ANSWER[] = {"<|close|>", "response", "<|sep|>", "<|close|>", "message", "<|sep|>",
                                           "<|end_of_msg|>", NULL};

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, kimi_last_error());
    return 1;
}

/* Ids that wait for the next generation. */
struct tokens {
    int *ids;
    int count;
};

/* Appends the ids of a text. Below 0 is an error. */
static int append(struct tokens *tokens, const kimi_model *model, const char *text, int parse_special) {
    int count = kimi_encode(model, text, strlen(text), parse_special, NULL, 0);
    if (count <= 0) {
        return count;
    }
    int *ids = realloc(tokens->ids, ((size_t)tokens->count + (size_t)count) * sizeof *ids);
    if (ids == NULL) {
        perror("realloc");
        exit(1);
    }
    tokens->ids = ids;
    count = kimi_encode(model, text, strlen(text), parse_special, ids + tokens->count, count);
    tokens->count += count > 0 ? count : 0;
    return count;
}

static int append_all(struct tokens *tokens, const kimi_model *model, const char *const *words) {
    int status = 0;
    for (; *words != NULL && status >= 0; words++) {
        status = append(tokens, model, *words, (*words)[0] == '<');
    }
    return status;
}

/* What the callback needs to know, and what it finds out. */
struct answer {
    int close;
    int closed;
};

static int show(void *user, int token, const char *text, size_t len) {
    struct answer *answer = user;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    answer->closed = token == answer->close;
    return answer->closed;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [MAX_TOKENS [TEMPERATURE]]\n", argv[0]);
        return 2;
    }
    kimi_model *model = kimi_model_open(argv[1], NULL);
    if (model == NULL) {
        return fail("kimi_model_open");
    }
    struct answer answer = {kimi_special_token(model, "<|close|>"), 0};
    if (answer.close < 0) {
        return fail("this is no model of the K3 family");
    }
    kimi_options *options = kimi_generate_options_new();
    if (kimi_options_set_int(options, "max_tokens", argc > 2 ? atoi(argv[2]) : 512) < 0 ||
        kimi_options_set_float(options, "temperature", argc > 3 ? atof(argv[3]) : 0.0) < 0) {
        return fail("kimi_options_set");
    }
    kimi_session *session = kimi_session_new(model);
    struct tokens tokens = {NULL, 0};
    static char message[LONGEST_MESSAGE];
    while (fgets(message, sizeof message, stdin) != NULL) {
        message[strcspn(message, "\n")] = '\0';
        if (append_all(&tokens, model, BEFORE_MESSAGE) < 0 || append(&tokens, model, message, 0) < 0 ||
            append_all(&tokens, model, BEFORE_ANSWER) < 0) {
            return fail("kimi_encode");
        }
        answer.closed = 0;
        int finish = 0;
        if (kimi_session_generate(session, tokens.ids, tokens.count, options, show, &answer, &finish) < 0) {
            return fail("kimi_session_generate");
        }
        putchar('\n');
        if (finish == KIMI_FINISH_CONTEXT) {
            fprintf(stderr, "the context is full\n");
            break;
        }
        /* The session holds what was generated; the rest of the turn goes before the next message. */
        tokens.count = 0;
        if (append_all(&tokens, model, AFTER_ANSWER + answer.closed) < 0) {
            return fail("kimi_encode");
        }
    }
    fprintf(stderr, "%d tokens\n", kimi_session_position(session));
    free(tokens.ids);
    kimi_options_free(options);
    kimi_session_free(session);
    kimi_free_model(model);
    return 0;
}
