// RopeServe from C, and from every language that calls C. Link librope.so: RopeServe::c in CMake,
// `rope` for pkg-config.
//
//   rope_client* client;
//   rope_error* error = rope_connect("inproc:", NULL, &client);
//
// client/README.md has a whole program. What is said once is JSON: requests of proto/rope/v1 in
// Protobuf's JSON (field names as in the .proto files; bytes in base64), and options. What is said
// in every step is arrays: a rotation is prepared once, and each call brings tensors as DLPack
// structs (dlpack.h). All calls block.
//
// ABI:        From version 0.9.0 on a program runs with every later librope.so of the same soname.
//             Later versions add functions, names of arguments and options, and change none.
// Strings:    UTF-8, with a 0 at the end.
// Threading:  A rope_client and a rope_prepared are thread-safe. None may be in use when it is
//             freed. In a forked child the calls of the parent's clients fail with
//             FAILED_PRECONDITION, and only engines in process can be connected (client.h, Forks).
// Ownership:  A call borrows its arguments until it returns. What it gives belongs to the caller,
//             who frees it with the function ..._free of its type; to free null does nothing. Text
//             that an object gives belongs to that object.
// Errors:     Functions that can fail return null, or an error that the caller frees. They then set
//             no output. INVALID_ARGUMENT: a null that a comment does not allow; JSON that is
//             malformed, or has a name that the library does not know. RESOURCE_EXHAUSTED: also,
//             not enough memory. No C++ exception comes out of a function.
// Limits:     The library links the system's Protobuf. A program that has another copy of it, as
//             many Python packages do, loads librope.so with RTLD_LOCAL, which is the default of
//             ctypes. One that links RopeServe::client cannot load it. Once loaded, it stays.
#ifndef ROPE_ROPE_H_
#define ROPE_ROPE_H_

#include <stddef.h>
#include <stdint.h>

#include "rope/dlpack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rope_client rope_client;
typedef struct rope_error rope_error;
typedef struct rope_memory rope_memory;
typedef struct rope_prepared rope_prepared;

// The version of the library, such as "0.9.0".
const char* rope_version(void);
// Frees a text that a call gave.
void rope_text_free(char* text);

// Connects to "HOST:PORT", to "unix:PATH", or to "inproc:", which is one engine for all clients of
// this process. Errors: as Client::Connect in client.h. `options` is null or a JSON object with the
// names of ConnectOptions in options.h, durations with their unit; all may be left out:
//
//   {"timeout_ms": 5000, "require_serving": true, "spin_us": 200, "max_message_bytes": 269484032,
//    "arena_bytes": 0, "staged_bytes": 67108864, "transports": ["ring", "memfd", "inline"],
//    "tls": true, "tls_ca_file": "...", "tls_cert_file": "...", "tls_key_file": "...",
//    "tls_server_name": "...", "token": "...", "token_file": "..."}
rope_error* rope_connect(const char* target, const char* options, rope_client** client);
// A client of a new engine in this process. `options` is null or a JSON object with the names of
// embedded::Options in embedded.h, and the client's arena_bytes:
//
//   {"threads": 0, "memory_bytes": 0, "device_table_bytes": 268435456, "arena_bytes": 0,
//    "models": {"NAME": "a config.json"}}
//
// INVALID_ARGUMENT: also, a model's config with an error.
rope_error* rope_connect_embedded(const char* options, rope_client** client);
// Frees the client. Its connection ends with the last of its prepared rotations.
void rope_close(rope_client* client);
// "inline", "memfd", "ring" or "in_process": how tensors travel at present.
const char* rope_transport(const rope_client* client);

// Calls a method of rope.v1.RopeService by its name: "Describe", "Fingerprint", "GetTables",
// "ListModels", "GetServerInfo", "ListConnections", "ListRegions"; also "Rotate", with tensors as
// numbers. `request` is the JSON of its request message, and `reply` that of its answer, to be
// freed with rope_text_free. Errors: as the method's in proto/rope/v1/rope_service.proto.
// INVALID_ARGUMENT: also, another method. `options` is null or a JSON object, as options.h
// explains CallOptions:
//
//   {"timeout_ms": 30000, "attempts_max": 4, "backoff_initial_ms": 100, "backoff_max_ms": 5000,
//    "metadata": {"x-name": "value"}}
rope_error* rope_call(const rope_client* client, const char* method, const char* request,
                      const char* options, char** reply);

// Validates a rotation once. `request` is the JSON of rope.v1.PrepareRequest, such as
//
//   {"rotate": {"rope": {"model": "llama-3.1-8b"},
//               "tensors": [{"role": "ROLE_Q", "layout": "SHD",
//                            "array": {"dtype": "DTYPE_BF16", "shape": [1, 32, 128]}}]}}
//
// "open_axis": "B", "S" or "T" leaves the length of that axis to each call. output.strides are
// those of the results; a tensor with strides that is rotated in place has them there too. A move
// has an empty "reposition", or one with from_rope. Arrays of "rows", and of slots in
// "paged_tokens", have a dtype and a shape; of pages, pool_elements is required. `options` is null
// or a JSON object as of rope_call, for this call and those of the rotation. Errors: as
// Client::PrepareJson in client.h.
rope_error* rope_prepare(const rope_client* client, const char* request, const char* options,
                         rope_prepared** prepared);
// The JSON of rope.v1.PrepareResponse: an id, the same for equal requests on every server, and the
// warnings about the config.
const char* rope_prepared_text(const rope_prepared* prepared);
void rope_prepared_free(rope_prepared* prepared);

// A tensor of a call, by its path in the request:
//   tensors[I]         the elements of tensor I; "q" or "k" also names the only tensor of that
//                      role. Of pages: their pool from page 0 on, in any shape and strides, in
//                      memory that the server shares
//   tensors[I].output  memory for its result, or "q.output"; it may be the tensor itself. Without
//                      it the tensor is rotated in place: then its result has its type, layout and
//                      strides
//   positions          no axes: the position of the first token of every sequence, from which later
//                      tokens count up; else of each token: [S], [B, S] or [T], or with a leading
//                      3. Beside tensors on a GPU those of each token lie there too, without the 3
//   positions.starts, positions.cu_seqlens, positions.seq_lens, positions.cp_size,
//   positions.cp_rank  as rope.v1.Positions explains them; the last two have no axes
//   reposition.from    and reposition.from.starts and so on: with OPERATION_REPOSITION
//   reposition.by      no axes, or as rope.v1.Reposition explains it
//   rows.cos_sin, rows.cos, rows.sin, rows.angles
//                      the caller's own table, with the dtype, shape and strides that it has
//   tensors[I].paged_tokens.pages, .slots, .target_slots
//                      as many as rope.v1.PagedTokens explains, in any shape
//   open_axis          no axes: the length of the open axis, where no tensor has it
//   positions_max, prepares_only, positions_outside
//                      beside tensors on a GPU, as device.h explains DeviceQueue: two numbers
//                      without axes, and one int32 in memory of the GPU
typedef struct rope_argument {
  const char* name;
  const DLTensor* tensor;
} rope_argument;

// Rotates: gives the prepared rotation the tensors of one call, and blocks until the results are
// there. Tensors lie in host memory (kDLCPU), aligned to their elements; of fp8, uint8 is the type
// that was prepared. `stream` is null. Positions and slots are packed, of 32 or 64 bits.
//
// Experimental: in process, all tensors may lie in memory of one GPU (kDLCUDA). The work is then
// enqueued on `stream`, a cudaStream_t or CUstream of that GPU (null: the legacy default stream),
// and the call returns at once; the memory stays until the work has run. Errors and captures are
// those of Client::Enqueue in client.h.
// INVALID_ARGUMENT: the field is the name of an argument that is unknown or given twice, or its
// .device, .dtype, .shape, .strides or .data: it is what was prepared, but for the open axis, which
// is up to its length in all tensors alike. Else as Client::Rotate in client.h.
rope_error* rope_rotate(const rope_prepared* prepared, const rope_argument* arguments,
                        size_t argument_count, void* stream);

// Memory that the client shares with its server (arena_bytes): tensors in it are not sent but
// named. It is aligned to 64 bytes, and may be freed after its client. No call may be under way
// that uses it. RESOURCE_EXHAUSTED: no free range is large enough. INVALID_ARGUMENT: bytes < 0.
rope_error* rope_allocate(const rope_client* client, int64_t bytes, rope_memory** memory);
void* rope_memory_data(const rope_memory* memory);
void rope_memory_free(rope_memory* memory);
// Waits until the server has finished with that memory for every call that began before, also for
// calls that ended with rope_error_may_have_executed. `options`: as of rope_call. Errors: as
// Client::Fence in client.h.
rope_error* rope_fence(const rope_client* client, const char* options);

// The parts of an error. They take null, which is success: its code is "OK", other texts are empty.
// Codes are those of gRPC: "INVALID_ARGUMENT". Reasons say why a call failed, for a program to
// branch on: "INVALID_FIELD"; proto/rope/v1/rotate.proto explains each.
const char* rope_error_code(const rope_error* error);
const char* rope_error_reason(const rope_error* error);
// Field, got and want, if there are any, in one text:
// "rope.config.factor: got 0, want a number > 0".
const char* rope_error_message(const rope_error* error);
const char* rope_error_field(const rope_error* error);  // path of the faulty field, or ""
const char* rope_error_got(const rope_error* error);
const char* rope_error_want(const rope_error* error);
// Milliseconds. > 0: the same call may succeed after this delay.
int64_t rope_error_retry_delay_ms(const rope_error* error);
// 1: the request may have run, so that a call in place may have changed its tensors.
int32_t rope_error_may_have_executed(const rope_error* error);
void rope_error_free(rope_error* error);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // ROPE_ROPE_H_
