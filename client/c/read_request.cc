#include "client/c/read_request.h"

#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/error.h"
#include "client/c/struct_size.h"

namespace rope::c {
namespace {

using client::DType;
using client::Operation;
using client::Positions;
using client::RopeSpec;
using client::TensorView;

constexpr size_t kTensorsMax = 64;

constexpr std::pair<int64_t, DType> kDTypes[] = {
    {ROPE_DTYPE_FP32, DType::kFloat32},        {ROPE_DTYPE_FP16, DType::kFloat16},
    {ROPE_DTYPE_BF16, DType::kBFloat16},       {ROPE_DTYPE_FP64, DType::kFloat64},
    {ROPE_DTYPE_FP8_E4M3, DType::kFloat8E4M3}, {ROPE_DTYPE_FP8_E5M2, DType::kFloat8E5M2},
};
constexpr std::pair<int64_t, client::Role> kRoles[] = {
    {ROPE_ROLE_Q, client::Role::kQ},
    {ROPE_ROLE_K, client::Role::kK},
};
constexpr std::pair<int64_t, client::Pairing> kPairings[] = {
    {ROPE_PAIRING_HALF, client::Pairing::kHalf},
    {ROPE_PAIRING_INTERLEAVED, client::Pairing::kInterleaved},
};
constexpr std::pair<int64_t, client::Compat> kCompats[] = {
    {ROPE_COMPAT_HF, client::Compat::kHf},
    {ROPE_COMPAT_VLLM, client::Compat::kVllm},
    {ROPE_COMPAT_LLAMACPP, client::Compat::kLlamacpp},
    {ROPE_COMPAT_DEEPSEEK, client::Compat::kDeepseek},
};
constexpr std::pair<int64_t, client::Precision> kPrecisions[] = {
    {ROPE_PRECISION_EXACT, client::Precision::kExact},
    {ROPE_PRECISION_HF, client::Precision::kHf},
};
constexpr std::pair<int64_t, Operation> kOperations[] = {
    {ROPE_OPERATION_ROTATE, Operation::kRotate},
    {ROPE_OPERATION_INVERSE, Operation::kInverse},
    {ROPE_OPERATION_BACKWARD, Operation::kBackward},
    {ROPE_OPERATION_REPOSITION, Operation::kReposition},
    {ROPE_OPERATION_ADD_SINUSOIDAL, Operation::kAddSinusoidal},
};
constexpr std::pair<int64_t, client::TableLayout> kTableLayouts[] = {
    {ROPE_TABLE_LAYOUT_COS_SIN, client::TableLayout::kCosSin},
    {ROPE_TABLE_LAYOUT_COS_SIN_CACHE, client::TableLayout::kCosSinCache},
    {ROPE_TABLE_LAYOUT_DUPLICATED, client::TableLayout::kDuplicated},
    {ROPE_TABLE_LAYOUT_COMPLEX, client::TableLayout::kComplex},
};

std::string Path(std::string_view parent, std::string_view field) {
  return std::string(parent).append(".").append(field);
}

std::string Path(std::string_view array, size_t index) {
  return std::string(array).append("[").append(std::to_string(index)).append("]");
}

// Leaves `value`, which is the default, where the number is 0.
template <typename Enum, size_t kCount, typename Value>
Status ReadEnum(const std::pair<int64_t, Enum> (&names)[kCount], int64_t number,
                std::string_view parent, std::string_view field, Value* value) {
  if (number == 0) return {};
  for (const auto& [known, meaning] : names) {
    if (known == number) {
      *value = meaning;
      return {};
    }
  }
  return Invalid(Path(parent, field), std::to_string(number), "a number that rope_types.h names");
}

Status ReadFlag(int64_t number, std::string_view parent, std::string_view field, bool* flag) {
  if (number != 0 && number != 1) {
    return Invalid(Path(parent, field), std::to_string(number), "0 or 1");
  }
  *flag = number == 1;
  return {};
}

void ReadText(const char* source, std::string* text) {
  if (source != nullptr) *text = source;
}

template <typename T>
void ReadNumber(const T* source, std::optional<T>* number) {
  if (source != nullptr) *number = *source;
}

Status ReadArray(const int64_t* source, size_t count, std::string_view parent,
                 std::string_view field, std::vector<int64_t>* numbers) {
  if (source == nullptr && count > 0) {
    return Invalid(Path(parent, field), "null", std::to_string(count) + " numbers");
  }
  if (source == nullptr) return {};
  numbers->reserve(count);  // fails before the end of an impossible array is computed
  numbers->assign(source, source + count);
  return {};
}

// Calls `read` with each element of an array of structs, which lie as far apart as the struct_size
// of the first says.
template <typename T, typename Read>
Status ReadStructs(const T* source, size_t count, std::string_view field, const Read& read) {
  if (count == 0) return {};
  if (source == nullptr) {
    return Invalid(std::string(field), "null", std::to_string(count) + " structs");
  }
  const size_t size = StructSize(source);
  const auto* element = reinterpret_cast<const std::byte*>(source);
  for (size_t i = 0; i < count; ++i, element += size) {
    const std::string path = Path(field, i);
    if (StructSize(element) != size) {
      return Invalid(path + ".struct_size", std::to_string(StructSize(element)),
                     std::to_string(size) + ", as in the first");
    }
    T known;
    Status status = ReadStruct(reinterpret_cast<const T*>(element), path, &known);
    if (status.ok()) status = read(known, path);
    if (!status.ok()) return status;
  }
  return {};
}

Status ReadSpec(const rope_spec* source, std::string_view field, RopeSpec* rope) {
  rope_spec spec;
  if (Status status = ReadStruct(source, field, &spec); !status.ok()) return status;
  ReadText(spec.model, &rope->model);
  ReadText(spec.config_id, &rope->config_id);
  ReadText(spec.config_json, &rope->config_json);
  ReadText(spec.layer_type, &rope->layer_type);
  ReadText(spec.sub_config, &rope->sub_config);
  ReadNumber(spec.layer, &rope->layer);
  ReadNumber(spec.first_layer, &rope->first_layer);
  Status status = ReadEnum(kPairings, spec.pairing, field, "pairing", &rope->pairing);
  if (status.ok()) status = ReadEnum(kCompats, spec.compat, field, "compat", &rope->compat);
  if (status.ok()) {
    status = ReadEnum(kPrecisions, spec.precision, field, "precision", &rope->precision);
  }
  return status;
}

Status ReadPositions(const rope_positions* source, std::string_view field, Positions* positions) {
  rope_positions given;
  if (Status status = ReadStruct(source, field, &given); !status.ok()) return status;
  Status status = ReadArray(given.starts, given.start_count, field, "starts", &positions->starts);
  if (status.ok()) {
    status = ReadArray(given.position_ids, given.position_id_count, field, "position_ids",
                       &positions->position_ids);
  }
  if (status.ok()) {
    status = ReadArray(given.position_ids_shape, given.position_ids_rank, field,
                       "position_ids_shape", &positions->position_ids_shape);
  }
  if (status.ok()) {
    status = ReadArray(given.cu_seqlens, given.cu_seqlen_count, field, "cu_seqlens",
                       &positions->cu_seqlens);
  }
  if (status.ok()) {
    status =
        ReadArray(given.seq_lens, given.seq_len_count, field, "seq_lens", &positions->seq_lens);
  }
  if (!status.ok()) return status;
  const bool has_arrays = given.starts != nullptr || given.position_ids != nullptr;
  if (has_arrays && given.start != 0) {
    return Invalid(Path(field, "start"), std::to_string(given.start),
                   "0 beside starts or position_ids");
  }
  if (!has_arrays) positions->start = given.start;
  if (given.cp_size != 0 || given.cp_rank != 0) {
    positions->cp_size = given.cp_size;
    positions->cp_rank = given.cp_rank;
  }
  return {};
}

Status ReadNorm(const rope_tensor& source, std::string_view path, TensorView* tensor) {
  if (source.norm_weight == nullptr) {
    if (source.norm_eps == 0 && source.norm_dtype == 0) return {};
    return Invalid(Path(path, "norm_weight"), "null", "a weight for each channel");
  }
  client::HeadNorm norm = {.eps = source.norm_eps};
  norm.weight.data = source.norm_weight;
  norm.weight.shape = {tensor->shape.empty() ? 0 : tensor->shape.back()};
  if (Status status = ReadDType(source.norm_dtype, Path(path, "norm_dtype"), &norm.weight.dtype);
      !status.ok()) {
    return status;
  }
  tensor->norm = std::move(norm);
  return {};
}

Status ReadHeads(const rope_tensor& source, std::string_view path, TensorView* tensor) {
  if (source.head_ranges == nullptr && source.head_range_count > 0) {
    return Invalid(Path(path, "head_ranges"), "null",
                   std::to_string(source.head_range_count) + " ranges");
  }
  for (size_t i = 0; i < source.head_range_count; ++i) {
    const rope_head_range& given = source.head_ranges[i];
    client::HeadRange range = {.begin = given.begin, .end = given.end};
    if (Status status =
            ReadEnum(kRoles, given.role, Path(Path(path, "head_ranges"), i), "role", &range.role);
        !status.ok()) {
      return status;
    }
    tensor->head_ranges.push_back(range);
  }
  return ReadEnum(kRoles, source.role, path, "role", &tensor->role);
}

Status ReadTensor(const rope_tensor& source, std::string_view path, TensorView* tensor) {
  if (source.rank < 0) return Invalid(Path(path, "rank"), std::to_string(source.rank), ">= 0");
  const auto rank = static_cast<size_t>(source.rank);
  ReadText(source.layout, &tensor->layout);
  ReadText(source.output_layout, &tensor->output_layout);
  tensor->data = source.data;
  tensor->output = source.output;
  ReadNumber(source.scale, &tensor->scale);
  ReadNumber(source.fp8_scale, &tensor->fp8_scale);
  ReadNumber(source.llama4_scaling_beta, &tensor->llama4_scaling_beta);
  ReadNumber(source.rotary_offset, &tensor->rotary_offset);
  Status status = ReadArray(source.shape, rank, path, "shape", &tensor->shape);
  if (status.ok() && source.strides != nullptr) {
    status = ReadArray(source.strides, rank, path, "strides", &tensor->strides);
  }
  if (status.ok() && source.output_strides != nullptr) {
    status =
        ReadArray(source.output_strides, rank, path, "output_strides", &tensor->output_strides);
  }
  if (status.ok()) status = ReadDType(source.dtype, Path(path, "dtype"), &tensor->dtype);
  if (status.ok()) status = ReadHeads(source, path, tensor);
  if (status.ok()) status = ReadNorm(source, path, tensor);
  return status;
}

Status ReadReposition(const rope_positions* from, const rope_spec* from_rope,
                      client::RotateRequest* request) {
  if (from == nullptr && from_rope == nullptr) return {};
  client::Reposition reposition;
  if (from != nullptr) {
    if (Status status = ReadPositions(from, "from", &reposition.from); !status.ok()) return status;
  }
  if (from_rope != nullptr) {
    Status status = ReadSpec(from_rope, "from_rope", &reposition.from_rope.emplace());
    if (!status.ok()) return status;
  }
  request->reposition = std::move(reposition);
  return {};
}

Status CheckCount(size_t count) {
  if (count <= kTensorsMax) return {};
  return Invalid("tensor_count", std::to_string(count), "at most " + std::to_string(kTensorsMax));
}

// 0 leaves the default and -1 is none.
template <typename Set>
Status ReadSize(int64_t number, std::string_view field, const Set& set) {
  if (number < -1) return Invalid(std::string(field), std::to_string(number), "-1, 0 or more");
  if (number != 0) set(number == -1 ? 0 : number);
  return {};
}

Status ReadMilliseconds(int64_t number, std::string_view field,
                        std::chrono::milliseconds* duration) {
  if (number < 0) return Invalid(std::string(field), std::to_string(number), "0 or more");
  if (number != 0) *duration = std::chrono::milliseconds(number);
  return {};
}

Status ReadMetadata(const rope_call_options& source, client::Metadata* metadata) {
  if (source.metadata == nullptr && source.metadata_count > 0) {
    return Invalid("metadata", "null", std::to_string(source.metadata_count) + " names");
  }
  for (size_t i = 0; i < source.metadata_count; ++i) {
    const auto& [name, value, value_bytes] = source.metadata[i];
    if (name == nullptr || value == nullptr) {
      return Invalid(Path("metadata", i), "null", "a name and a value");
    }
    metadata->emplace_back(name,
                           std::string(value, value_bytes == 0 ? std::strlen(value) : value_bytes));
  }
  return {};
}

}  // namespace

int32_t NumberOf(DType dtype) {
  for (const auto& [number, known] : kDTypes) {
    if (known == dtype) return static_cast<int32_t>(number);
  }
  return 0;
}

Status ReadDType(int64_t number, std::string_view field, DType* dtype) {
  *dtype = DType::kFloat32;
  if (number == 0 || ReadEnum(kDTypes, number, "", "", dtype).ok()) return {};
  return Invalid(std::string(field), std::to_string(number), "a ROPE_DTYPE_... of rope_types.h");
}

Status ReadOptions(const rope_connect_options* source, client::ConnectOptions* options) {
  if (source == nullptr) return {};
  rope_connect_options given;
  if (Status status = ReadStruct(source, "options", &given); !status.ok()) return status;
  constexpr std::pair<uint32_t, client::Transport> kTransports[] = {
      {ROPE_TRANSPORT_RING, client::Transport::kRing},
      {ROPE_TRANSPORT_MEMFD, client::Transport::kMemfd},
      {ROPE_TRANSPORT_INLINE, client::Transport::kInline},
  };
  if (given.transports != 0) options->transports.clear();
  for (const auto& [bit, transport] : kTransports) {
    if ((given.transports & bit) != 0) options->transports.push_back(transport);
    given.transports &= ~bit;
  }
  if (given.transports != 0) {
    return Invalid("transports", std::to_string(given.transports), "bits of ROPE_TRANSPORT_...");
  }
  if (given.max_message_bytes < 0) {
    return Invalid("max_message_bytes", std::to_string(given.max_message_bytes), "0 or more");
  }
  if (given.max_message_bytes != 0) options->max_message_bytes = given.max_message_bytes;
  options->arena_bytes = given.arena_bytes;
  if (given.reserved != 0) return Invalid("reserved", std::to_string(given.reserved), "0");
  const auto text = [](const char* from) { return std::string(from == nullptr ? "" : from); };
  options->tls.ca_file = text(given.tls_ca_file);
  options->tls.cert_file = text(given.tls_cert_file);
  options->tls.key_file = text(given.tls_key_file);
  options->tls.server_name = text(given.tls_server_name);
  options->token = text(given.token);
  options->token_file = text(given.token_file);
  bool allow_not_serving = false;
  Status status = ReadMilliseconds(given.timeout_ms, "timeout_ms", &options->timeout);
  if (status.ok()) status = ReadFlag(given.tls, "options", "tls", &options->tls.enabled);
  if (status.ok()) {
    status = ReadSize(given.spin_us, "spin_us",
                      [&](int64_t us) { options->spin = std::chrono::microseconds(us); });
  }
  if (status.ok()) {
    status = ReadSize(given.staged_bytes, "staged_bytes",
                      [&](int64_t bytes) { options->staged_bytes = bytes; });
  }
  if (status.ok()) {
    status = ReadSize(given.pooled_bytes, "pooled_bytes",
                      [&](int64_t bytes) { options->pooled_bytes = bytes; });
  }
  if (status.ok()) {
    status = ReadFlag(given.allow_not_serving, "options", "allow_not_serving", &allow_not_serving);
  }
  options->require_serving = !allow_not_serving;
  return status;
}

Status ReadOptions(const rope_engine_options* source, embedded::Options* options) {
  if (source == nullptr) return {};
  rope_engine_options given;
  if (Status status = ReadStruct(source, "engine", &given); !status.ok()) return status;
  if (given.threads < 0 || given.threads > INT32_MAX) {
    return Invalid("engine.threads", std::to_string(given.threads), "a number of threads");
  }
  options->memory_bytes = given.memory_bytes;
  options->threads = static_cast<int>(given.threads);
  return ReadStructs(given.models, given.model_count, "engine.models",
                     [&](const rope_model_config& model, std::string_view path) -> Status {
                       if (model.name == nullptr) {
                         return Invalid(Path(path, "name"), "null", "a name");
                       }
                       if (model.config_json == nullptr) {
                         return Invalid(Path(path, "config_json"), "null", "a config.json");
                       }
                       options->models.push_back({model.name, model.config_json});
                       return {};
                     });
}

Status ReadOptions(const rope_call_options* source, client::CallOptions* options) {
  if (source == nullptr) return {};
  rope_call_options given;
  if (Status status = ReadStruct(source, "options", &given); !status.ok()) return status;
  if (given.attempts_max < 0 || given.attempts_max > INT32_MAX) {
    return Invalid("attempts_max", std::to_string(given.attempts_max), "a number of attempts");
  }
  if (given.attempts_max != 0) options->attempts_max = static_cast<int>(given.attempts_max);
  Status status = ReadMilliseconds(given.timeout_ms, "timeout_ms", &options->timeout);
  if (status.ok()) {
    status =
        ReadMilliseconds(given.backoff_initial_ms, "backoff_initial_ms", &options->backoff_initial);
  }
  if (status.ok()) {
    status = ReadMilliseconds(given.backoff_max_ms, "backoff_max_ms", &options->backoff_max);
  }
  if (status.ok()) status = ReadMetadata(given, &options->metadata);
  return status;
}

Status ReadRequest(const rope_request* source, client::RotateRequest* request) {
  rope_request given;
  Status status = ReadStruct(source, "request", &given);
  if (status.ok()) status = CheckCount(given.tensor_count);
  if (status.ok()) status = ReadSpec(given.rope, "rope", &request->rope);
  if (status.ok() && given.positions != nullptr) {
    status = ReadPositions(given.positions, "positions", &request->positions);
  }
  if (status.ok()) status = ReadReposition(given.from, given.from_rope, request);
  if (status.ok()) {
    status = ReadEnum(kOperations, given.operation, "request", "operation", &request->operation);
  }
  if (status.ok()) {
    status =
        ReadEnum(kDTypes, given.output_dtype, "request", "output_dtype", &request->output_dtype);
  }
  if (status.ok()) {
    status = ReadEnum(kPairings, given.channel_order, "request", "channel_order",
                      &request->channel_order);
  }
  if (status.ok()) {
    status = ReadFlag(given.skip_attention_factor, "request", "skip_attention_factor",
                      &request->skip_attention_factor);
  }
  if (!status.ok()) return status;
  ReadText(given.request_id, &request->request_id);
  return ReadStructs(given.tensors, given.tensor_count, "tensors",
                     [&](const rope_tensor& tensor, std::string_view path) {
                       return ReadTensor(tensor, path, &request->tensors.emplace_back());
                     });
}

Status ReadValues(const rope_values* source, const client::PreparedRotation& prepared,
                  client::RotateRequest* request) {
  rope_values given;
  Status status = ReadStruct(source, "values", &given);
  if (status.ok()) status = CheckCount(given.tensor_count);
  if (status.ok()) status = ReadPositions(given.positions, "positions", &request->positions);
  if (status.ok()) status = ReadReposition(given.from, nullptr, request);
  if (!status.ok()) return status;
  if (given.data == nullptr && given.tensor_count > 0) {
    return Invalid("data", "null", std::to_string(given.tensor_count) + " pointers");
  }
  ReadText(given.request_id, &request->request_id);
  request->prepared = given.length == nullptr ? prepared : prepared.WithLength(*given.length);
  request->tensors.resize(given.tensor_count);
  for (size_t i = 0; i < given.tensor_count; ++i) {
    request->tensors[i].data = given.data[i];
    if (given.outputs != nullptr) request->tensors[i].output = given.outputs[i];
  }
  return {};
}

namespace {

Status ReadKey(const rope_key_source* source, const std::string& field, client::KeySource* key) {
  rope_key_source given;
  Status status = ReadStruct(source, field, &given);
  if (status.ok()) status = ReadSpec(given.rope, field + ".rope", &key->rope);
  if (status.ok()) status = ReadEnum(kDTypes, given.dtype, field, "dtype", &key->dtype);
  if (!status.ok()) return status;
  ReadText(given.engine, &key->engine);
  ReadNumber(given.max_model_len, &key->max_model_len);
  ReadNumber(given.head_dim, &key->head_dim);
  return {};
}

}  // namespace

Status ReadRequest(const rope_fingerprint_request* source, client::FingerprintRequest* request) {
  rope_fingerprint_request given;
  Status status = ReadStruct(source, "request", &given);
  if (status.ok()) status = ReadKey(given.key, "key", &request->key);
  if (!status.ok() || given.other == nullptr) return status;
  return ReadKey(given.other, "other", &request->other.emplace());
}

Status ReadRequest(const rope_describe_request* source, client::DescribeRequest* request) {
  rope_describe_request given;
  Status status = ReadStruct(source, "request", &given);
  if (status.ok()) status = ReadSpec(given.rope, "rope", &request->rope);
  if (status.ok()) {
    status = ReadArray(given.positions, given.position_count, "request", "positions",
                       &request->positions);
  }
  if (status.ok()) status = ReadEnum(kDTypes, given.dtype, "request", "dtype", &request->dtype);
  if (status.ok()) {
    status = ReadFlag(given.sinusoidal, "request", "sinusoidal", &request->sinusoidal);
  }
  if (!status.ok()) return status;
  ReadNumber(given.seq_len, &request->seq_len);
  ReadNumber(given.head_dim, &request->head_dim);
  return {};
}

namespace {

Status ReadMove(const rope_tables_request& given, client::TablesRequest* request) {
  if (given.from_begin == 0 && given.from_end == 0 && given.from_id_count == 0 &&
      given.from_rope == nullptr && given.from_seq_len == nullptr) {
    return {};
  }
  client::TableReposition& move = request->reposition.emplace();
  move.from.begin = given.from_begin;
  move.from.end = given.from_end;
  ReadNumber(given.from_seq_len, &move.from_seq_len);
  Status status = ReadArray(given.from_ids, given.from_id_count, "request", "from_ids",
                            &move.from.position_ids);
  if (status.ok() && given.from_rope != nullptr) {
    status = ReadSpec(given.from_rope, "from_rope", &move.from_rope.emplace());
  }
  return status;
}

}  // namespace

Status ReadRequest(const rope_tables_request* source, client::TablesRequest* request) {
  rope_tables_request given;
  Status status = ReadStruct(source, "request", &given);
  if (status.ok()) status = ReadSpec(given.rope, "rope", &request->rope);
  if (status.ok()) status = ReadMove(given, request);
  if (status.ok()) {
    status = ReadArray(given.position_ids, given.position_id_count, "request", "position_ids",
                       &request->positions.position_ids);
  }
  if (status.ok()) status = ReadDType(given.dtype, "request.dtype", &request->dtype);
  if (status.ok()) {
    status = ReadEnum(kTableLayouts, given.layout, "request", "layout", &request->layout);
  }
  if (status.ok()) status = ReadEnum(kRoles, given.role, "request", "role", &request->role);
  if (status.ok()) {
    status = ReadFlag(given.skip_attention_factor, "request", "skip_attention_factor",
                      &request->skip_attention_factor);
  }
  if (!status.ok()) return status;
  request->positions.begin = given.begin;
  request->positions.end = given.end;
  ReadNumber(given.seq_len, &request->seq_len);
  ReadNumber(given.head_dim, &request->head_dim);
  return {};
}

}  // namespace rope::c
