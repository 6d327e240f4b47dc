/*
 * Kimi K3 on an ordinary CPU: the C interface of libkimi_k3_inference.
 *
 * Five functions do for a program that keeps its own tokens: kimi_load_model, kimi_tokenize, kimi_generate_next_token,
 * kimi_detokenize, kimi_free_model. Below them is everything else: options, streaming, sampling, sessions, reports.
 * docs/c-api.md in the repository is the guide.
 *
 * Errors. Functions that return a pointer return NULL, functions that return an int a negative enum kimi_status.
 * kimi_last_status and kimi_last_error tell more. No error ends the program, and nothing unwinds through this interface.
 *
 * Handles (kimi_model and the like) are numbers that look like pointers and are never followed. A handle that has been freed,
 * one of another kind and any other pointer are all answered with KIMI_INVALID_HANDLE.
 *
 * Buffers belong to the caller. A function that fills one returns how much there is: ids or floats, or bytes without the
 * NUL that ends every text. Called with a NULL buffer of size 0 it only returns that. If the buffer is too small the result
 * is KIMI_BUFFER_TOO_SMALL; nothing is written then but the NUL of an empty text.
 *
 * Threads. Every function may be called from any thread. Models and sessions serve one call at a time: other threads wait.
 * A callback must not compute with the session or the model that is calling it; that is answered with KIMI_BUSY.
 *
 * Text is UTF-8.
 */
#ifndef KIMI_K3_INFERENCE_H
#define KIMI_K3_INFERENCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a call ended. */
enum kimi_status {
    KIMI_OK = 0,
    /* kimi_generate_next_token: the model chose one of its end tokens. */
    KIMI_END_OF_SEQUENCE = 1,
    /* kimi_text_push: a stop text came up. */
    KIMI_STOPPED = 2,
    /* The system failed: a read, a thread. */
    KIMI_FAILED = -1,
    /* A null pointer, a number out of range, a text that is not UTF-8, a path that leads to no model. */
    KIMI_INVALID_ARGUMENT = -2,
    /* No handle, a handle of another kind, or one that has been freed. */
    KIMI_INVALID_HANDLE = -3,
    /* Called from a callback of the very object it would have to wait for. */
    KIMI_BUSY = -4,
    KIMI_BUFFER_TOO_SMALL = -5,
    /* The memory that is allowed does not suffice; the message holds the table of what is needed. */
    KIMI_DOES_NOT_FIT = -6,
    /* The model's files are damaged, incomplete, or of a model that this library does not know. */
    KIMI_CORRUPT = -7,
    /* More tokens than the context holds. */
    KIMI_CONTEXT_FULL = -8,
    /* kimi_session_cancel was called. */
    KIMI_CANCELLED = -9,
    /* The model has no tiktoken.model: it takes ids only. */
    KIMI_NO_TOKENIZER = -10,
    /* A fault of this library. What it happened in can only be freed. */
    KIMI_INTERNAL = -11
};

/* Why a generation ended. */
enum kimi_finish {
    /* An end token, which is the last of the generated ones. */
    KIMI_FINISH_EOS = 1,
    /* A stop text, which is not part of the text. */
    KIMI_FINISH_STOP = 2,
    /* All tokens that were asked for are there. */
    KIMI_FINISH_LENGTH = 3,
    /* The context is full. */
    KIMI_FINISH_CONTEXT = 4,
    /* The callback or kimi_session_cancel ended it. */
    KIMI_FINISH_CANCELLED = 5
};

/* ---- Five functions --------------------------------------------------------------------------------------------- */

/*
 * Loads a model: a folder with config.json, tiktoken.model and safetensors files, as released or packed, or one file of
 * `kimi-cli pack --single-file`, whatever it is called. NULL is an error.
 *
 * max_seq_len   the most tokens of a sequence; 0 or less: 4096. The model's own limit bounds it.
 * kv_cache_gb   the most memory for the KV cache of a sequence, in GB (10^9 bytes); 0 or less: no bound. If it holds fewer
 *               than max_seq_len tokens, the sequence is that much shorter: KIMI_CONTEXT_FULL tells when.
 * n_threads     compute threads; 0 or less: as many as affinity and CPU quota allow. Results do not depend on it.
 *
 * The process as a whole takes at most 7/8 of what the machine or its control group allows; kimi_model_open with the option
 * ram_bytes sets another bound. Nothing is computed yet, and no big matrix read.
 */
void *kimi_load_model(const char *path, int max_seq_len, float kv_cache_gb, int n_threads);

/*
 * Frees a model of kimi_load_model or kimi_model_open. NULL is fine. Freed twice, the second call does nothing but leave
 * KIMI_INVALID_HANDLE in kimi_last_status. Calls that are under way end as if nothing had happened, and sessions keep what
 * they need.
 */
void kimi_free_model(void *model);

/*
 * The ids of a text. Nothing is put before it, and names of control tokens in it are text like any other. Returns how many
 * ids there are: 0 for the empty text (the status is KIMI_OK), below 0 for an error. With tokens = NULL and max_tokens = 0
 * they are only counted. `model` may also be a kimi_tokenizer.
 */
int kimi_tokenize(void *model, const char *text, int *tokens, int max_tokens);

/*
 * The most probable token after `tokens`, which is the whole sequence so far, n of them. What an earlier call computed is
 * not computed again if this sequence begins with that one. Of one that has only its beginning in common with it, what lies
 * before the last checkpoint in there is not; without memory for checkpoints it is computed from its beginning. The result is
 * the same to the bit in every case.
 *
 * Above 0 it is a token. 0 and below:
 *     0 with kimi_last_status() == KIMI_OK               the token 0
 *     0 with kimi_last_status() == KIMI_END_OF_SEQUENCE  the model chose an end token: stop here
 *     below 0                                            an error, the value is its status
 */
int kimi_generate_next_token(void *model, const int *tokens, int n);

/*
 * The bytes of one token and a NUL. Returns their number without the NUL, at least 1; below 0 is an error. A token can be a
 * part of a character, so only the bytes of several joined need be UTF-8 (kimi_text_push does that), and it can hold a NUL
 * itself. Control tokens give their names. `model` may also be a kimi_tokenizer.
 */
int kimi_detokenize(void *model, int token, char *buf, int cap);

/* ---- How a call ended ------------------------------------------------------------------------------------------- */

/* How this thread's last call ended: a value of enum kimi_status. These three functions are not counted, nor those that
 * free something unless they fail, so a program may tidy up before it reports. */
int kimi_last_status(void);

/* What was wrong with it, empty if nothing was. Good until this thread's next call. */
const char *kimi_last_error(void);

/* The version of the library, such as "0.1.0". */
const char *kimi_version(void);

/* ---- Options ---------------------------------------------------------------------------------------------------- */

typedef struct kimi_options kimi_options;

/*
 * Options for opening a model:
 *     ram_bytes  int   most memory of the whole process; default 7/8 of what the machine or its control group allows
 *     context    int   most tokens of a session (4096)
 *     kv_bytes   int   most bytes of a session's KV cache; fewer tokens than `context` where they do not fit
 *     chunk      int   most tokens of one pass over a prompt (512); fewer where memory is short
 *     threads    int   compute threads; default what affinity and CPU quota allow
 *     kv         text  f32 (exact, the default), bf16, i8 or i4: the number format of the KV cache
 *     io         text  auto, pread, direct, uring or mmap. mmap is your word that nobody changes the files meanwhile
 *     isa        text  scalar, avx2, avx-vnni, avx512, avx512-vnni, amx, neon, sve, neon-dotprod or neon-i8mm; default the
 *                      fastest of this processor. `kimi-cli bench kernels` lists those that it has
 *     arith      text  exact (the default) or fast
 *     check      text  none, sampled (the default) or all: which tiles of a packed model are verified when they are read
 * Results depend on `kv` and `arith` only.
 */
kimi_options *kimi_model_options_new(void);

/*
 * Options for generating and sampling; the defaults are greedy:
 *     max_tokens         int    most tokens to generate (256)
 *     temperature        float  0 always takes the most probable token
 *     top_k, top_p, min_p  int, float, float: as usual
 *     repetition_penalty, presence_penalty, frequency_penalty  float
 *     penalty_window     int    tokens that the penalties look back; 0 is all
 *     seed               int    selects the random numbers
 *     stop               text   ends a generation before this text; may be set several times
 *     ignore_eos         int    1 goes on after an end token
 *     chunk              int    most tokens of one pass over the prompt
 */
kimi_options *kimi_generate_options_new(void);

/* Set an option of the type that is written above. An unknown name or a wrong type is KIMI_INVALID_ARGUMENT. */
int kimi_options_set_int(kimi_options *options, const char *name, int64_t value);
int kimi_options_set_float(kimi_options *options, const char *name, double value);
int kimi_options_set_text(kimi_options *options, const char *name, const char *value);

/* Adds a number to the logits of a token, for generating. */
int kimi_options_add_logit_bias(kimi_options *options, int token, double bias);

/* Options are copied where they are used, so they may be freed or changed right after. NULL is fine. */
void kimi_options_free(kimi_options *options);

/* ---- Models ----------------------------------------------------------------------------------------------------- */

typedef struct kimi_model kimi_model;

/* Opens a model as kimi_load_model does; options may be NULL. NULL is an error. Every function above takes this handle too, and
 * kimi_free_model frees it. */
kimi_model *kimi_model_open(const char *path, const kimi_options *options);

/* What the model is, how its memory is split, what it has done so far: JSON objects. None of them waits for a call that
 * computes; of one under way the statistics count the bytes. docs/c-api.md lists the keys. */
int kimi_model_info_json(const kimi_model *model, char *buf, int cap);
int kimi_model_plan_json(const kimi_model *model, char *buf, int cap);
int kimi_model_stats_json(const kimi_model *model, char *buf, int cap);

/* ---- Text and ids ----------------------------------------------------------------------------------------------- */

typedef struct kimi_tokenizer kimi_tokenizer;
typedef struct kimi_text kimi_text;

/* The tokenizer of a model without the model. NULL is an error. */
kimi_tokenizer *kimi_tokenizer_open(const char *path);
void kimi_tokenizer_free(kimi_tokenizer *tokenizer);

/* The ids of `len` bytes of text. If parse_special is not 0, names of control tokens in it become these tokens: only for text
 * that the program wrote itself. */
int kimi_encode(const void *model_or_tokenizer, const char *text, size_t len, int parse_special, int *tokens,
                int max_tokens);

/* The bytes of n tokens, joined. If hide_special is not 0, control tokens leave nothing; else they give their names. */
int kimi_decode(const void *model_or_tokenizer, const int *tokens, int n, int hide_special, char *buf, int cap);

/* The id of a control token by its name, such as "[BOS]"; below 0 is an error. */
int kimi_special_token(const void *model_or_tokenizer, const char *name);

/* A stream of text: ids in, whole characters out, without control tokens and up to the stop texts of `options` (of
 * kimi_generate_options_new, or NULL). NULL is an error. */
kimi_text *kimi_text_new(const void *model_or_tokenizer, const kimi_options *options);
void kimi_text_free(kimi_text *text);

/* Takes the next id. Returns how many bytes of text are waiting; the status is KIMI_STOPPED once a stop text has come up. */
int kimi_text_push(kimi_text *text, int token);

/* Ends the text. Returns how many bytes of it are waiting. The stream is at its beginning again. */
int kimi_text_finish(kimi_text *text);

/* Reads all text that is waiting. Text for which the buffer is too small goes on waiting. */
int kimi_text_read(kimi_text *text, char *buf, int cap);

/* ---- Sampling --------------------------------------------------------------------------------------------------- */

typedef struct kimi_sampler kimi_sampler;

/* A sampler for the vocabulary of a model, with the options of kimi_generate_options_new; greedy without. NULL is an error. */
kimi_sampler *kimi_sampler_new(const kimi_model *model, const kimi_options *options);
void kimi_sampler_free(kimi_sampler *sampler);

/* Tells of tokens that were given and not sampled, for the repetition penalty. */
int kimi_sampler_prompt(kimi_sampler *sampler, const int *tokens, int n);

/* Chooses a token; n is the size of the vocabulary. A logit of minus infinity forbids its token. Below 0 is an error. */
int kimi_sampler_sample(kimi_sampler *sampler, const float *logits, int n);

/* ---- Sessions --------------------------------------------------------------------------------------------------- */

typedef struct kimi_session kimi_session;

/* An empty sequence of its own. The memory for its state is taken with the first token; the plan has room for one such state
 * and for more as far as ram_bytes reaches. NULL is an error. The model may be freed before the session. */
kimi_session *kimi_session_new(kimi_model *model);
void kimi_session_free(kimi_session *session);

/* Back to the empty sequence. */
int kimi_session_reset(kimi_session *session);

/* Tokens that have been computed (all but the last chosen one), and the most that can be. */
int kimi_session_position(const kimi_session *session);
int kimi_session_capacity(const kimi_session *session);

/* Appends tokens and computes the logits after them. If the last token was chosen by kimi_session_next or
 * kimi_session_generate, it goes before them, and n may be 0. After an error the tokens of the passes before it stay. */
int kimi_session_feed(kimi_session *session, const int *tokens, int n);

/* The logits after the last fed token, as many as the vocabulary has entries. */
int kimi_session_logits(const kimi_session *session, float *logits, int cap);

/* Chooses a token from them and appends it; the next feed computes it. Chosen again, the new token takes its place. Below 0 is
 * an error. */
int kimi_session_next(kimi_session *session, kimi_sampler *sampler);

/* Hears of each token: `user` as it was given, the id, and the text that became certain with it: `len` bytes and a NUL. The
 * id is -1 for text that follows the last token. Text is empty for models without a tokenizer. A result other than 0 ends
 * the generation. It must return: no longjmp, no exception. */
typedef int (*kimi_token_fn)(void *user, int token, const char *text, size_t len);

/* Appends tokens (after the last chosen one) and generates until something of enum kimi_finish happens, which is written to
 * `finish`. Options, callback, user and finish may be NULL. Returns the number of generated tokens; below 0 is an error.
 * The generated tokens are part of the session, and another call goes on from there. */
int kimi_session_generate(kimi_session *session, const int *tokens, int n, const kimi_options *options,
                          kimi_token_fn callback, void *user, int *finish);

/* With on = 1 a call that computes with this session ends within a moment, and others end at once, until on = 0. Never
 * waits; for another thread or a signal handler's thread, not for the handler itself. */
int kimi_session_cancel(kimi_session *session, int on);

#ifdef __cplusplus
}
#endif

#endif
