// RopeServe from C, and from every language that calls C. Link librope.so: RopeServe::c in CMake,
// `rope` for pkg-config. dlpack.h takes and gives tensors as DLPack structs.
//
//   rope_client* client;
//   rope_error* error = rope_connect("inproc:", 0, &client);
//
// client/README.md has a whole program. The calls are those of the C++ headers, and do the same:
// client.h explains the calls, rotate.h and tensor.h the fields of a request. All calls are
// synchronous.
//
// ABI:        From version 0.9.0 on a program runs with every later librope.so of the same soname.
//             Later versions add functions, numbers and fields, and change none.
// Structs:    Each begins with struct_size, its size in bytes, which its INIT macro sets; only
//             rope_metadata and rope_head_range never grow, and have none. All other
//             fields may be 0: a pointer that is null is a value that is not given, and of a number
//             0 is the default. Later versions add fields at the end. A smaller struct of an older
//             program has 0 in them. INVALID_ARGUMENT: a struct_size of 0, or a larger one than the
//             library's where a field that it does not know is not 0.
// Strings:    UTF-8, with a 0 at the end.
// Threading:  A rope_client is thread-safe. Other objects may be read by many threads at once. None
//             may be in use when it is freed. In a forked child the calls of the parent's clients
//             fail with FAILED_PRECONDITION, and only "inproc:" can be connected (client.h, Forks).
// Ownership:  A call borrows its arguments until it returns. What it gives belongs to the caller,
//             who frees it with the function ..._free of its type; to free null does nothing. Text
//             and arrays that an object gives belong to that object, and live as long as it does.
// Errors:     Functions that can fail return null, or an error that the caller frees. They then set
//             no output. INVALID_ARGUMENT: a null that a comment does not allow, or a number that
//             names nothing. RESOURCE_EXHAUSTED: also, not enough memory. No C++ exception comes
//             out of a function.
// Limits:     The library links the system's Protobuf. A program that has another copy of it, as
//             many Python packages do, loads librope.so with RTLD_LOCAL, which is the default of
//             ctypes. One that links RopeServe::client cannot load it. Once loaded, it stays.
#ifndef ROPE_ROPE_H_
#define ROPE_ROPE_H_

#include <stddef.h>
#include <stdint.h>

#include "rope/rope_error.h"
#include "rope/rope_types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rope_client rope_client;
typedef struct rope_prepared rope_prepared;
typedef struct rope_reply rope_reply;
typedef struct rope_slot rope_slot;
typedef struct rope_tables rope_tables;

// The version of the library, such as "0.9.0".
const char* rope_version(void);

// Connects to "HOST:PORT", to "unix:PATH", or to "inproc:", which is one engine for all clients of
// this process. `options` may be null. Errors: as Client::Connect in client.h.
rope_error* rope_connect(const char* target, const rope_connect_options* options,
                         rope_client** client);
// A client of a new engine. Both options may be null. INVALID_ARGUMENT: also, a model's config with
// an error.
rope_error* rope_connect_in_process(const rope_engine_options* engine,
                                    const rope_connect_options* options, rope_client** client);
// Sets the options of engines of "inproc:" that start after this call. Null: the defaults.
rope_error* rope_set_in_process_engine(const rope_engine_options* engine);
// Frees the client. No call of it may be under way.
void rope_close(rope_client* client);
// "inline", "memfd", "ring" or "in_process": how tensors travel at present.
const char* rope_transport_name(const rope_client* client);

// Rotates, and blocks until the answer. `reply` may be null if each tensor has an output; `options`
// may be null, as in every call. Errors: as Client::Rotate in client.h.
rope_error* rope_rotate(const rope_client* client, const rope_request* request,
                        const rope_call_options* options, rope_reply** reply);

// Validates what stays the same in repeated requests, once. `open_axis` is "B", "S" or "T" if calls
// differ in the length of that axis, of which the tensors' shapes then have the largest; else null.
// The positions, `data` and `output` of the request are not used. INVALID_ARGUMENT: as rope_rotate;
// another axis.
rope_error* rope_prepare(const rope_client* client, const rope_request* request,
                         const char* open_axis, const rope_call_options* options,
                         rope_prepared** prepared);
// rope_rotate of a prepared request, with any client of any server. INVALID_ARGUMENT: also, a
// length of no open axis, or above its largest; another number of tensors.
rope_error* rope_rotate_prepared(const rope_client* client, const rope_prepared* prepared,
                                 const rope_values* values, const rope_call_options* options,
                                 rope_reply** reply);
// 32 hexadecimal digits: the same for equal requests on every server.
const char* rope_prepared_id(const rope_prepared* prepared);
// Warnings about the config. Past the end a warning is null, here and below.
size_t rope_prepared_warning_count(const rope_prepared* prepared);
const char* rope_prepared_warning(const rope_prepared* prepared, size_t index);
void rope_prepared_free(rope_prepared* prepared);

// Fills in `result`, whose struct_size the caller has set. INVALID_ARGUMENT: an index past the end.
rope_error* rope_reply_tensor(const rope_reply* reply, size_t index, rope_result* result);
size_t rope_reply_tensor_count(const rope_reply* reply);
const char* rope_reply_request_id(const rope_reply* reply);
const char* rope_reply_device(const rope_reply* reply);  // that ran the request: "cpu"
// The config's, applied or not. ROPE_OPERATION_REPOSITION: divided by that of the embedding before.
double rope_reply_attention_factor(const rope_reply* reply);
int32_t rope_reply_attention_factor_applied(const rope_reply* reply);
size_t rope_reply_warning_count(const rope_reply* reply);
const char* rope_reply_warning(const rope_reply* reply, size_t index);
void rope_reply_free(rope_reply* reply);

// Memory of rope_connect_options::arena_bytes: tensors in it are not sent but named. A slot is
// aligned to 64 bytes, and may be freed after its client. No call may be under way that uses it.
// RESOURCE_EXHAUSTED: no free range is large enough. INVALID_ARGUMENT: bytes < 0.
rope_error* rope_arena_allocate(const rope_client* client, int64_t bytes, rope_slot** slot);
int64_t rope_arena_capacity_bytes(const rope_client* client);
int64_t rope_arena_used_bytes(const rope_client* client);
void* rope_slot_data(const rope_slot* slot);
int64_t rope_slot_bytes(const rope_slot* slot);
void rope_slot_free(rope_slot* slot);
// Waits until the server has finished with the arena for every call that began before, also for
// calls that ended with rope_error_may_have_executed. Errors: as Client::Fence in client.h.
rope_error* rope_fence(const rope_client* client, const rope_call_options* options);

// Resolves an embedding: its frequencies, attention factor, warnings and rows, as JSON with the
// names of proto/rope/v1/describe.proto. Free `json` with rope_string_free. Errors: as rope_rotate.
rope_error* rope_describe(const rope_client* client, const rope_describe_request* request,
                          const rope_call_options* options, char** json);
// Names the rotation of K as an engine computes it, and compares two, as JSON with the names of
// proto/rope/v1/fingerprint.proto. Free `json` with rope_string_free. Errors: as
// Client::Fingerprint in client.h.
rope_error* rope_fingerprint(const rope_client* client, const rope_fingerprint_request* request,
                             const rope_call_options* options, char** json);
void rope_string_free(char* text);

// Exact cos and sin for programs that rotate by themselves; at most 65,536 rows and 16 MiB. Errors:
// as Client::GetTables in client.h.
rope_error* rope_get_tables(const rope_client* client, const rope_tables_request* request,
                            const rope_call_options* options, rope_tables** tables);
// Fills in `array`, whose struct_size the caller has set. `which` is ROPE_TABLES_TABLE, _COS or
// _SIN.
rope_error* rope_tables_array(const rope_tables* tables, int32_t which, rope_array* array);
const char* rope_tables_config_id(const rope_tables* tables);
double rope_tables_attention_factor(const rope_tables* tables);
int32_t rope_tables_attention_factor_applied(const rope_tables* tables);
int64_t rope_tables_seq_len(const rope_tables* tables);  // the length for which the numbers hold
int32_t rope_tables_depends_on_seq_len(const rope_tables* tables);
size_t rope_tables_warning_count(const rope_tables* tables);
const char* rope_tables_warning(const rope_tables* tables, size_t index);
void rope_tables_free(rope_tables* tables);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // ROPE_ROPE_H_
