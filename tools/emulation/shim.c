/* Two symbols of newer C libraries that the Bochs core asks for, and the choice of the processor model by BX_MODEL_SYM: the
 * core always builds one model, whose constructor is replaced by the one wanted. Preloaded by `run`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

unsigned long long __isoc23_strtoull(const char *text, char **end, int base) {
    return strtoull(text, end, base);
}

int __isoc23_sscanf(const char *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int count = vsscanf(text, format, arguments);
    va_end(arguments);
    return count;
}

void *_Z23create_corei3_cnl_cpuidP8BX_CPU_C(void *cpu) {
    const char *library = getenv("BX_SO"), *model = getenv("BX_MODEL_SYM");
    void *core = library ? dlopen(library, RTLD_NOLOAD | RTLD_NOW) : NULL;
    void *(*create)(void *) = core && model ? (void *(*)(void *))dlsym(core, model) : NULL;
    if (!create) {
        fprintf(stderr, "shim: no processor model %s\n", model ? model : "(BX_MODEL_SYM is not set)");
        abort();
    }
    return create(cpu);
}
