/*
 * What goes where in memory, as JSON, before anything is computed.
 *
 *     plan MODEL [RAM_BYTES]
 */
#include <stdio.h>
#include <stdlib.h>

#include "kimi_k3_inference.h"

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL [RAM_BYTES]\n", argv[0]);
        return 2;
    }
    kimi_options *options = kimi_model_options_new();
    if (argc > 2 && kimi_options_set_int(options, "ram_bytes", strtoll(argv[2], NULL, 10)) < 0) {
        fprintf(stderr, "%s\n", kimi_last_error());
        return 2;
    }
    kimi_model *model = kimi_model_open(argv[1], options);
    if (model == NULL) {
        /* Of a model that does not fit, the message is the plan. */
        fprintf(stderr, "%s\n", kimi_last_error());
        return kimi_last_status() == KIMI_DOES_NOT_FIT ? 3 : 1;
    }
    int len = kimi_model_plan_json(model, NULL, 0);
    char *plan = malloc((size_t)len + 1);
    if (plan == NULL || kimi_model_plan_json(model, plan, len + 1) < 0) {
        fprintf(stderr, "%s\n", kimi_last_error());
        return 1;
    }
    puts(plan);
    free(plan);
    kimi_options_free(options);
    kimi_free_model(model);
    return 0;
}
