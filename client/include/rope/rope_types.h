// Structs and numbers of the C API. rope.h explains struct_size, the INIT macros, and who owns what
// a pointer points to.
//
// Threading:  Values.
#ifndef ROPE_ROPE_TYPES_H_
#define ROPE_ROPE_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Transports that Connect may choose, as bits.
enum { ROPE_TRANSPORT_INLINE = 1, ROPE_TRANSPORT_MEMFD = 2, ROPE_TRANSPORT_RING = 4 };

// options.h explains each. Numbers < 0 are INVALID_ARGUMENT, except the -1 that is named.
typedef struct rope_connect_options {
  size_t struct_size;
  int64_t timeout_ms;         // of the connection; 0: 5000
  int64_t spin_us;            // 0: by the number of processors; -1: no spinning
  int64_t max_message_bytes;  // 0: 257 MiB
  int64_t arena_bytes;        // 0: no arena
  int64_t staged_bytes;       // 0: 64 MiB; -1: none
  int64_t pooled_bytes;       // 0: 256 MiB; -1: none
  uint32_t transports;        // ROPE_TRANSPORT_... joined by |; 0: all
  int32_t allow_not_serving;  // 1: connects to a server that starts or drains
  int32_t tls;                // 1: as "https://" before the target; implied by the files
  int32_t reserved;           // 0
  const char* tls_ca_file;    // PEM, as the next two; each may be null
  const char* tls_cert_file;
  const char* tls_key_file;
  const char* tls_server_name;
  const char* token;  // "authorization: Bearer TOKEN" of each RPC
  const char* token_file;
} rope_connect_options;
#define ROPE_CONNECT_OPTIONS_INIT \
  { sizeof(rope_connect_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// A model to know by name, beside the presets: the text of its config.json.
typedef struct rope_model_config {
  size_t struct_size;
  const char* name;         // required
  const char* config_json;  // required
} rope_model_config;
#define ROPE_MODEL_CONFIG_INIT \
  { sizeof(rope_model_config), 0, 0 }

// The engine in this process; embedded.h explains it.
typedef struct rope_engine_options {
  size_t struct_size;
  int64_t memory_bytes;             // 0: three quarters of what the process may use
  int64_t threads;                  // 0: as many as the process may use
  const rope_model_config* models;  // [model_count], each of the struct_size of the first
  size_t model_count;
} rope_engine_options;
#define ROPE_ENGINE_OPTIONS_INIT \
  { sizeof(rope_engine_options), 0, 0, 0, 0 }

// gRPC metadata of a call; options.h says which names and values it may have.
typedef struct rope_metadata {
  const char* name;    // required
  const char* value;   // required
  size_t value_bytes;  // 0: up to the 0 at its end; names that end with "-bin" take any bytes
} rope_metadata;

// The policy of one call; each `options` of this type may be null.
typedef struct rope_call_options {
  size_t struct_size;
  int64_t timeout_ms;             // of the whole call, retries included; 0: 30000
  int64_t attempts_max;           // 0: 4
  int64_t backoff_initial_ms;     // 0: 100
  int64_t backoff_max_ms;         // 0: 5000
  const rope_metadata* metadata;  // [metadata_count]
  size_t metadata_count;
} rope_call_options;
#define ROPE_CALL_OPTIONS_INIT \
  { sizeof(rope_call_options), 0, 0, 0, 0, 0, 0 }

// Element types, little-endian. 0 is FP32, but the tensors' own in rope_request::output_dtype.
enum {
  ROPE_DTYPE_FP32 = 1,
  ROPE_DTYPE_FP16 = 2,
  ROPE_DTYPE_BF16 = 3,
  ROPE_DTYPE_FP64 = 4,      // norm weights and tables
  ROPE_DTYPE_FP8_E4M3 = 7,  // outputs
  ROPE_DTYPE_FP8_E5M2 = 8   // outputs
};
enum { ROPE_ROLE_Q = 1, ROPE_ROLE_K = 2 };  // 0 is Q, but "not rotated" in rope_head_range
enum { ROPE_PAIRING_HALF = 1, ROPE_PAIRING_INTERLEAVED = 2 };
enum {
  ROPE_COMPAT_HF = 1,
  ROPE_COMPAT_VLLM = 2,
  ROPE_COMPAT_LLAMACPP = 3,
  ROPE_COMPAT_DEEPSEEK = 4
};
enum { ROPE_PRECISION_EXACT = 1, ROPE_PRECISION_HF = 2 };
enum {
  ROPE_OPERATION_ROTATE = 1,  // also 0
  ROPE_OPERATION_INVERSE = 2,
  ROPE_OPERATION_BACKWARD = 3,
  ROPE_OPERATION_REPOSITION = 4,
  ROPE_OPERATION_ADD_SINUSOIDAL = 5
};

// Names one rotary embedding. Give one of model, config_id and config_json.
typedef struct rope_spec {
  size_t struct_size;
  const char* model;           // a name that the server knows
  const char* config_id;       // from rope_describe; excludes all other fields
  const char* config_json;     // a verbatim config.json, at most 1 MiB
  const char* layer_type;      // of a config that differs by layer; or `layer`
  const char* sub_config;      // path in a composite config.json, such as "vision_config"
  const int32_t* layer;        // number of the layer
  const int32_t* first_layer;  // of tensors with an L axis, in place of layer and layer_type
  int32_t pairing;             // 0: of the model
  int32_t compat;              // 0: Hugging Face; dynamic and longrope by sequence
  int64_t precision;           // 0: exact
} rope_spec;
#define ROPE_SPEC_INIT \
  { sizeof(rope_spec), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// Positions of the tokens, 0 to 2^30: exactly one of `position_ids`, `starts` and `start`, which is
// given unless one of the others is.
typedef struct rope_positions {
  size_t struct_size;
  int64_t start;          // of the first token of every sequence; later tokens count up from it
  const int64_t* starts;  // [start_count], of the first token of each sequence
  size_t start_count;
  const int64_t* position_ids;  // [position_id_count], of each token
  size_t position_id_count;
  // Lengths of the axes of position_ids: S; B, S; or T; with a leading 3 for axes t, h, w.
  const int64_t* position_ids_shape;  // [position_ids_rank]; null: one axis
  size_t position_ids_rank;
  const int64_t* cu_seqlens;  // [cu_seqlen_count], packed sequences: offset of each, then T
  size_t cu_seqlen_count;
  const int64_t* seq_lens;  // [seq_len_count], final lengths for dynamic and longrope
  size_t seq_len_count;
  int32_t cp_size;  // context parallelism; 0: none
  int32_t cp_rank;
} rope_positions;
#define ROPE_POSITIONS_INIT \
  { sizeof(rope_positions), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// Heads [begin, end) of a tensor that combines several, such as packed QKV.
typedef struct rope_head_range {
  int64_t begin;
  int64_t end;
  int64_t role;
} rope_head_range;

// A tensor to rotate, in row-major order. tensor.h explains each field.
typedef struct rope_tensor {
  size_t struct_size;
  const void* data;        // borrowed; not used by rope_prepare
  void* output;            // may be `data`; null: the reply has the result
  const char* layout;      // required: one letter of B, S, T, H, L and D for each axis: "SHD"
  const int64_t* shape;    // [rank], required
  const int64_t* strides;  // [rank], in elements, >= 0; null: packed
  int32_t rank;
  int32_t dtype;
  int64_t role;
  const char* output_layout;           // null: as `layout`
  const rope_head_range* head_ranges;  // [head_range_count], ascending, in place of `role`
  size_t head_range_count;
  const double* scale;                // multiplies the result
  const double* fp8_scale;            // divides an 8-bit output before rounding
  const double* llama4_scaling_beta;  // multiplies q by a factor that grows with the position
  const int64_t* rotary_offset;       // first rotated channel; null: the config's
  const void* norm_weight;            // [D], RMS norm before the rotation; null: none
  double norm_eps;                    // > 0 with norm_weight
  int64_t norm_dtype;                 // of norm_weight
  const int64_t* output_strides;      // [rank], of `output`, in elements; null: packed
} rope_tensor;
#define ROPE_TENSOR_INIT \
  { sizeof(rope_tensor), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct rope_request {
  size_t struct_size;
  const char* request_id;           // null: the server makes one
  const rope_spec* rope;            // required
  const rope_positions* positions;  // required, except by rope_prepare
  const rope_tensor* tensors;       // [tensor_count], each of the struct_size of the first
  size_t tensor_count;              // 1 to 64
  int32_t operation;
  int32_t output_dtype;           // 0: each tensor's own
  int32_t channel_order;          // a pairing: order of a rotated pair's channels; 0: the pairing's
  int32_t skip_attention_factor;  // 1: the results do not include the attention factor
  // ROPE_OPERATION_REPOSITION: the current positions, required there. Two `start` move all tokens
  // by one difference.
  const rope_positions* from;
  const rope_spec* from_rope;  // the current embedding; null: `rope`
} rope_request;
#define ROPE_REQUEST_INIT \
  { sizeof(rope_request), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// What differs from call to call.
typedef struct rope_values {
  size_t struct_size;
  const char* request_id;
  const rope_positions* positions;  // required
  const rope_positions* from;       // with ROPE_OPERATION_REPOSITION
  const void* const* data;          // [tensor_count]
  void* const* outputs;             // [tensor_count]; null, or null in it: the reply has the result
  size_t tensor_count;
  const int64_t* length;  // of the open axis; null: the largest
} rope_values;
#define ROPE_VALUES_INIT \
  { sizeof(rope_values), 0, 0, 0, 0, 0, 0, 0 }

// A rotated tensor of a reply, packed unless rope_tensor::output_strides were given.
typedef struct rope_result {
  size_t struct_size;
  const void* data;  // rope_tensor::output if that was given, else memory of the reply
  int64_t bytes;
  const int64_t* shape;  // [rank]
  const char* layout;
  int32_t rank;
  int32_t dtype;
  int32_t role;      // of rope_tensor; ROPE_ROLE_Q with head_ranges
  int32_t is_owned;  // 1: `data` is memory of the reply
  double fp8_scale;  // the divisor that was applied to an 8-bit output; else 0
} rope_result;
#define ROPE_RESULT_INIT \
  { sizeof(rope_result), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// A request for exact cos and sin; tables.h explains it.
enum {
  ROPE_TABLE_LAYOUT_COS_SIN = 1,        // COS and SIN, [rows, n] each; also 0
  ROPE_TABLE_LAYOUT_COS_SIN_CACHE = 2,  // TABLE, [rows, 2n]: n cosines, then n sines
  ROPE_TABLE_LAYOUT_DUPLICATED = 3,     // COS and SIN, [rows, 2n]: the n numbers twice
  ROPE_TABLE_LAYOUT_COMPLEX = 4         // TABLE, [rows, n, 2]
};
typedef struct rope_tables_request {
  size_t struct_size;
  const rope_spec* rope;  // required
  int64_t begin;          // positions [begin, end)
  int64_t end;
  const int64_t* position_ids;  // [position_id_count], in place of begin and end
  size_t position_id_count;
  int32_t dtype;                  // FP32, FP16, BF16 or FP64
  int32_t layout;                 // ROPE_TABLE_LAYOUT_...
  int32_t role;                   // with xpos only
  int32_t skip_attention_factor;  // 1: the rows do not include it
  const int64_t* seq_len;         // for dynamic and longrope; null: the largest position + 1
  const int64_t* head_dim;        // required if the config does not contain it
  // Rows that move vectors which are rotated already: their current positions, and embedding.
  int64_t from_begin;
  int64_t from_end;
  const int64_t* from_ids;  // [from_id_count], in place of from_begin and from_end
  size_t from_id_count;
  const rope_spec* from_rope;  // null: `rope`
  const int64_t* from_seq_len;
} rope_tables_request;
#define ROPE_TABLES_REQUEST_INIT \
  { sizeof(rope_tables_request), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// An array of tables, packed.
enum { ROPE_TABLES_TABLE = 1, ROPE_TABLES_COS = 2, ROPE_TABLES_SIN = 3 };
typedef struct rope_array {
  size_t struct_size;
  const void* data;
  int64_t bytes;
  const int64_t* shape;  // [rank]
  int32_t rank;          // 0: the layout does not have this array
  int32_t dtype;
} rope_array;
#define ROPE_ARRAY_INIT \
  { sizeof(rope_array), 0, 0, 0, 0, 0 }

typedef struct rope_describe_request {
  size_t struct_size;
  const rope_spec* rope;     // required
  const int64_t* positions;  // [position_count], each gives a row of cos and sin
  size_t position_count;
  const int64_t* seq_len;   // null: the largest position + 1, or 1
  const int64_t* head_dim;  // required if the config does not contain it
  int32_t dtype;            // with ROPE_PRECISION_HF only
  int32_t sinusoidal;       // 1: rows have the sinusoidal table too
} rope_describe_request;
#define ROPE_DESCRIBE_REQUEST_INIT \
  { sizeof(rope_describe_request), 0, 0, 0, 0, 0, 0, 0 }

// Whose K: a config, and the engine that computes it. `rope` has no compat and no precision.
typedef struct rope_key_source {
  size_t struct_size;
  const rope_spec* rope;         // required
  const char* engine;            // "vllm" or "vllm@0.33.0"; null: the config as it is written
  const int64_t* max_model_len;  // required where the engine chooses longrope's list by it
  const int64_t* head_dim;       // required if the config does not contain it
  int64_t dtype;                 // of K; 0: the fingerprint says nothing of rounding
} rope_key_source;
#define ROPE_KEY_SOURCE_INIT \
  { sizeof(rope_key_source), 0, 0, 0, 0, 0 }

typedef struct rope_fingerprint_request {
  size_t struct_size;
  const rope_key_source* key;    // required
  const rope_key_source* other;  // null, or identified too, and compared with `key`
} rope_fingerprint_request;
#define ROPE_FINGERPRINT_REQUEST_INIT \
  { sizeof(rope_fingerprint_request), 0, 0 }

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // ROPE_ROPE_TYPES_H_
