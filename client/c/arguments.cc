#include "client/c/arguments.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/c/dlpack.h"
#include "client/c/error.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::c {
namespace {

using client::ArrayView;
using client::InvalidField;
using client::Positions;
using client::Preparation;

Status Unknown(const std::string& name) {
  return InvalidField(name, "an argument", "a name that rope.h lists");
}

Status GivenTwice(const std::string& name) {
  return InvalidField(name, "a second argument of this name", "one");
}

std::string TextOf(const std::vector<int64_t>& numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
}

// Takes "tensors[I]", or "q" or "k" for the only tensor of that role, off a name.
std::optional<size_t> TakeTensor(const v1::RotateRequest& request, absl::string_view* name) {
  const auto count = static_cast<size_t>(request.tensors_size());
  size_t found = count;
  if (absl::ConsumePrefix(name, "tensors[")) {
    const char* const end = name->data() + name->size();
    const auto [rest, error] = std::from_chars(name->data(), end, found);
    name->remove_prefix(static_cast<size_t>(rest - name->data()));
    if (error != std::errc() || !absl::ConsumePrefix(name, "]")) return std::nullopt;
  } else if (const bool is_q = absl::ConsumePrefix(name, "q");
             is_q || absl::ConsumePrefix(name, "k")) {
    const v1::Role role = is_q ? v1::ROLE_Q : v1::ROLE_K;
    for (size_t i = 0; i < count; ++i) {
      if (request.tensors(static_cast<int>(i)).role() != role) continue;
      if (found != count) return std::nullopt;
      found = i;
    }
  }
  if (found >= count) return std::nullopt;
  return found;
}

// What a call says of a GPU. Values that no argument gave are unset.
struct GpuArguments {
  Place place = {};
  std::optional<int64_t> positions_max = {};
  std::optional<int64_t> prepares_only = {};
  uint32_t* positions_outside = nullptr;
};

// `operand`: a tensor (TensorView) or its result (WantedTensor), as it was prepared. `pool_bytes`:
// of a pool of pages, however its axes are cut; 0: it is none.
template <typename Operand>
Status ReadMemory(const Operand& operand, int64_t pool_bytes, const DLTensor& tensor,
                  const std::string& name, OpenAxis* open, GpuArguments* gpu, void** memory) {
  DlpackView view;
  ROPE_RETURN_IF_ERROR(ReadDlpack(WithFloat8(tensor, operand.dtype), name, &view, &gpu->place));
  if (view.dtype != operand.dtype) {
    return InvalidField(name + ".dtype", Name(view.dtype), Name(operand.dtype));
  }
  *memory = view.data;
  if (pool_bytes > 0) {
    ROPE_ASSIGN_OR_RETURN(const int64_t bytes, client::ArrayBytes(name, view.array()));
    if (bytes >= pool_bytes) return {};
    return InvalidField(name + ".shape", absl::StrCat(bytes, " bytes"),
                        absl::StrCat("the ", pool_bytes, " of pool_elements"));
  }
  if (!HasShape(view, operand.layout, operand.shape, open)) {
    const std::string& letter = open->letter;
    return InvalidField(
        name + ".shape", TextOf(view.array().shape),
        TextOf(operand.shape) +
            (letter.empty() ? "" : ", with " + letter + " up to that, alike in all"));
  }
  if (HasStrides(tensor, operand.strides)) return {};
  return InvalidField(name + ".strides", "other strides",
                      operand.strides.empty() ? "a packed tensor" : TextOf(operand.strides));
}

Status ReadSlots(const DLTensor& tensor, const std::string& name, absl::string_view member,
                 std::optional<client::PagedTokens>* paged) {
  if (!paged->has_value()) paged->emplace();
  std::vector<int64_t>* const list = member == "pages"          ? &(*paged)->pages
                                     : member == "slots"        ? &(*paged)->slots
                                     : member == "target_slots" ? &(*paged)->target_slots
                                                                : nullptr;
  if (list == nullptr) return Unknown(name);
  if (!list->empty()) return GivenTwice(name);
  return ReadIntegers(tensor, name, list);
}

// Sets a number without axes.
template <typename T>
Status SetNumber(const DLTensor& tensor, const std::string& name, int64_t value,
                 std::optional<T>* number) {
  if (number->has_value()) return GivenTwice(name);
  if (tensor.ndim != 0) return InvalidField(name + ".ndim", tensor.ndim, "0");
  *number = static_cast<T>(value);
  if (**number == value) return {};
  return InvalidField(name, value, "a number of 32 bits");
}

template <typename T>
Status ReadNumber(const DLTensor& tensor, const std::string& name, std::optional<T>* number) {
  std::vector<int64_t> values;
  ROPE_RETURN_IF_ERROR(ReadIntegers(tensor, name, &values));
  return SetNumber(tensor, name, values.empty() ? 0 : values[0], number);
}

// Positions that lie on a GPU: nothing reads them here.
Status SetDeviceIds(const DLTensor& tensor, const std::string& name, GpuArguments* gpu,
                    Positions* positions) {
  if (positions->device_ids != nullptr) return GivenTwice(name);
  void* memory = nullptr;
  ROPE_RETURN_IF_ERROR(FindIntegers(tensor, name, &gpu->place, &memory));
  positions->device_ids = memory;
  positions->device_id_bytes = tensor.dtype.bits / 8;
  positions->position_ids_shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  return {};
}

Status ReadPositionsOutside(const DLTensor& tensor, const std::string& name, GpuArguments* gpu) {
  void* memory = nullptr;
  if (tensor.device.device_type != kDLCUDA || tensor.dtype.bits != 32) {
    return InvalidField(name, "another tensor", "an integer of 32 bits in memory of the GPU");
  }
  ROPE_RETURN_IF_ERROR(FindIntegers(tensor, name, &gpu->place, &memory));
  gpu->positions_outside = static_cast<uint32_t*>(memory);
  return {};
}

// `member`: what follows "positions" or "reposition.from" in the name.
Status ReadPositions(const DLTensor& tensor, const std::string& name, absl::string_view member,
                     Positions* positions) {
  std::vector<int64_t> values;
  ROPE_RETURN_IF_ERROR(ReadIntegers(tensor, name, &values));
  const int64_t first = values.empty() ? 0 : values[0];
  if (member.empty() && tensor.ndim == 0) return SetNumber(tensor, name, first, &positions->start);
  if (member == ".cp_size") return SetNumber(tensor, name, first, &positions->cp_size);
  if (member == ".cp_rank") return SetNumber(tensor, name, first, &positions->cp_rank);
  std::vector<int64_t>* const list = member.empty()            ? &positions->position_ids
                                     : member == ".starts"     ? &positions->starts
                                     : member == ".cu_seqlens" ? &positions->cu_seqlens
                                     : member == ".seq_lens"   ? &positions->seq_lens
                                                               : nullptr;
  if (list == nullptr) return Unknown(name);
  if (!list->empty()) return GivenTwice(name);
  *list = std::move(values);
  if (member.empty()) {
    positions->position_ids_shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  }
  return {};
}

Status ReadArgument(const Preparation& preparation, const rope_argument& argument, OpenAxis* open,
                    GpuArguments* gpu, client::RotateRequest* call) {
  ROPE_RETURN_IF_ERROR(CheckGiven({{argument.name, "arguments.name"}}));
  ROPE_RETURN_IF_ERROR(CheckGiven({{argument.tensor, argument.name}}));
  const std::string name = argument.name;
  absl::string_view rest = name;
  if (name == "positions_outside") return ReadPositionsOutside(*argument.tensor, name, gpu);
  if (name == "positions_max") return ReadNumber(*argument.tensor, name, &gpu->positions_max);
  if (name == "prepares_only") return ReadNumber(*argument.tensor, name, &gpu->prepares_only);
  if (name == "positions" && argument.tensor->device.device_type == kDLCUDA) {
    return SetDeviceIds(*argument.tensor, name, gpu, &call->positions);
  }
  if (absl::ConsumePrefix(&rest, "positions")) {
    return ReadPositions(*argument.tensor, name, rest, &call->positions);
  }
  if (absl::ConsumePrefix(&rest, "reposition.")) {
    if (!call->reposition.has_value()) call->reposition.emplace();
    client::Reposition& move = *call->reposition;
    if (absl::ConsumePrefix(&rest, "from"))
      return ReadPositions(*argument.tensor, name, rest, &move.from);
    if (rest != "by") return Unknown(name);
    if (!move.by.empty()) return GivenTwice(name);
    ROPE_RETURN_IF_ERROR(ReadIntegers(*argument.tensor, name, &move.by));
    move.by_shape.assign(argument.tensor->shape, argument.tensor->shape + argument.tensor->ndim);
    return {};
  }
  if (name == "open_axis") return ReadNumber(*argument.tensor, name, &open->length);
  for (const client::RowArray& each : client::kRowArrays) {
    if (name != each.field) continue;
    if (!call->rows.has_value()) call->rows.emplace();
    std::optional<ArrayView>& rows = *call->rows.*each.view;
    if (rows.has_value()) return GivenTwice(name);
    DlpackView view;
    ROPE_RETURN_IF_ERROR(ReadDlpack(*argument.tensor, name, &view));
    rows = view.array();
    return {};
  }
  const std::optional<size_t> index = TakeTensor(preparation.message().rotate(), &rest);
  if (index.has_value() && absl::ConsumePrefix(&rest, ".paged_tokens.")) {
    return ReadSlots(*argument.tensor, name, rest, &call->tensors[*index].paged);
  }
  const bool is_output = rest == ".output";
  if (!index.has_value() || !(is_output || rest.empty())) return Unknown(name);
  const Preparation::Tensor& tensor = preparation.tensors()[*index];
  client::TensorView& view = call->tensors[*index];
  if (argument.tensor->device.device_type == kDLCUDA) view.memory = client::Memory::kCuda;
  if ((is_output ? view.output : view.data) != nullptr) return GivenTwice(name);
  const bool is_paged = tensor.view.paged.has_value();
  if (is_output) {
    return ReadMemory(tensor.wanted, is_paged ? tensor.wanted.output_bytes : 0, *argument.tensor,
                      name, open, gpu, &view.output);
  }
  void* memory = nullptr;
  Status status = ReadMemory(tensor.view, is_paged ? tensor.bytes : 0, *argument.tensor, name, open,
                             gpu, &memory);
  view.data = memory;
  return status;
}

}  // namespace

Status ReadArguments(const client::PreparedRotation& rotation, const rope_argument* arguments,
                     size_t count, client::RotateRequest* call, std::optional<DeviceQueue>* queue) {
  const Preparation& preparation = *client::PreparedState::Of(rotation)->preparation;
  const std::vector<Preparation::Tensor>& tensors = preparation.tensors();
  call->tensors.resize(tensors.size());
  OpenAxis open = {.letter = preparation.message().open_axis()};
  GpuArguments gpu;
  for (size_t i = 0; i < count; ++i) {
    ROPE_RETURN_IF_ERROR(ReadArgument(preparation, arguments[i], &open, &gpu, call));
  }
  if (gpu.place.cuda.has_value()) {
    *queue = {.device = *gpu.place.cuda,
              .positions_max = gpu.positions_max.value_or(0),
              .positions_outside = gpu.positions_outside,
              .prepares_only = gpu.prepares_only.value_or(0) != 0};
  }
  call->prepared = open.length.has_value() ? rotation.WithLength(*open.length) : rotation;
  for (size_t i = 0; i < tensors.size(); ++i) {
    client::TensorView& view = call->tensors[i];
    if (view.output != nullptr) continue;
    const client::TensorView& input = tensors[i].view;
    const client::WantedTensor& result = tensors[i].wanted;
    if (input.dtype != result.dtype || input.layout != result.layout ||
        input.strides != result.strides) {
      return InvalidField(absl::StrCat("tensors[", i, "].output"), "nothing",
                          "memory for a result of another type, layout or strides");
    }
    view.output = const_cast<void*>(view.data);
  }
  return {};
}

namespace {

using google::protobuf::Struct;
using google::protobuf::Value;

// These set `target`, or say that the value is of another kind.
bool Set(const Value& value, std::string* target) {
  *target = value.string_value();
  return value.has_string_value();
}

bool Set(const Value& value, bool* target) {
  *target = value.bool_value();
  return value.has_bool_value();
}

template <typename Integer>
bool Set(const Value& value, Integer* target) {
  constexpr double kExactMax = 0x1p53;  // of the integers that a double holds exactly
  const double max = std::min(kExactMax, static_cast<double>(std::numeric_limits<Integer>::max()));
  const double number = value.number_value();
  if (!(number >= 0 && number <= max && number == std::floor(number))) return false;
  *target = static_cast<Integer>(number);
  return value.has_number_value();
}

template <typename Period>
bool Set(const Value& value, std::chrono::duration<int64_t, Period>* target) {
  int64_t count = 0;
  const bool is_set = Set(value, &count);
  *target = std::chrono::duration<int64_t, Period>(count);
  return is_set;
}

template <typename T>
bool Set(const Value& value, std::optional<T>* target) {
  return Set(value, &target->emplace());
}

bool Set(const Value& value, std::vector<client::Transport>* target) {
  target->clear();
  for (const Value& name : value.list_value().values()) {
    for (const client::Transport each :
         {client::Transport::kRing, client::Transport::kMemfd, client::Transport::kInline}) {
      if (name.string_value() == Name(each)) target->push_back(each);
    }
  }
  const int count = value.list_value().values_size();
  return count > 0 && count == static_cast<int>(target->size());
}

// An object of names and texts.
template <typename Pair>
bool Set(const Value& value, std::vector<Pair>* target) {
  for (const auto& [name, text] : value.struct_value().fields()) {
    if (!text.has_string_value()) return false;
    target->push_back({name, text.string_value()});
  }
  return value.has_struct_value();
}

class Reader {
 public:
  explicit Reader(const char* json) {
    if (json == nullptr) return;
    const auto read = google::protobuf::util::JsonStringToMessage(json, &object_);
    if (!read.ok()) {
      status_ = client::InvalidField("options", std::string(read.message()), "a JSON object");
    }
  }

  // Reads an option if it is given.
  template <typename T>
  Reader& Read(const char* name, T* target) {
    const auto given = object_.fields().find(name);
    if (!status_.ok() || given == object_.fields().end()) return *this;
    if (!Set(given->second, target)) {
      status_ = client::InvalidField(std::string("options.") + name, "a value of another kind",
                                     "one as rope.h shows");
    }
    object_.mutable_fields()->erase(name);
    return *this;
  }

  // After all options have been read.
  Status End() const {
    if (!status_.ok() || object_.fields().empty()) return status_;
    return client::InvalidField("options." + object_.fields().begin()->first, "an unknown option",
                                "one that rope.h shows");
  }

 private:
  Struct object_;
  Status status_;
};

}  // namespace

Status ReadOptions(const char* json, client::ConnectOptions* options) {
  return Reader(json)
      .Read("timeout_ms", &options->timeout)
      .Read("require_serving", &options->require_serving)
      .Read("spin_us", &options->spin)
      .Read("max_message_bytes", &options->max_message_bytes)
      .Read("arena_bytes", &options->arena_bytes)
      .Read("staged_bytes", &options->staged_bytes)
      .Read("transports", &options->transports)
      .Read("tls", &options->tls.enabled)
      .Read("tls_ca_file", &options->tls.ca_file)
      .Read("tls_cert_file", &options->tls.cert_file)
      .Read("tls_key_file", &options->tls.key_file)
      .Read("tls_server_name", &options->tls.server_name)
      .Read("token", &options->token)
      .Read("token_file", &options->token_file)
      .End();
}

Status ReadOptions(const char* json, embedded::Options* engine, client::ConnectOptions* options) {
  return Reader(json)
      .Read("threads", &engine->threads)
      .Read("memory_bytes", &engine->memory_bytes)
      .Read("device_table_bytes", &engine->device_table_bytes)
      .Read("models", &engine->models)
      .Read("arena_bytes", &options->arena_bytes)
      .End();
}

Status ReadOptions(const char* json, client::CallOptions* options) {
  return Reader(json)
      .Read("timeout_ms", &options->timeout)
      .Read("attempts_max", &options->attempts_max)
      .Read("backoff_initial_ms", &options->backoff_initial)
      .Read("backoff_max_ms", &options->backoff_max)
      .Read("metadata", &options->metadata)
      .End();
}

}  // namespace rope::c
