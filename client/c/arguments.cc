#include "client/c/arguments.h"

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/c/dlpack.h"
#include "client/c/error.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"

namespace rope::c {
namespace {

using client::ArrayView;
using client::DType;
using client::Positions;
using client::Preparation;

// What an argument has to be: a tensor, or its result.
struct Operand {
  const std::string& layout;
  DType dtype;
  const std::vector<int64_t>& shape;
  const std::vector<int64_t>& strides;  // empty: packed
};

Operand InputOf(const Preparation::Tensor& tensor) {
  return {tensor.view.layout, tensor.view.dtype, tensor.view.shape, tensor.view.strides};
}

Operand ResultOf(const Preparation::Tensor& tensor) {
  return {tensor.wanted.layout, tensor.wanted.dtype, tensor.wanted.shape, tensor.wanted.strides};
}

Status Unknown(const std::string& name) {
  return Invalid(name, "an argument", "a name that rope.h lists");
}

Status GivenTwice(const std::string& name) {
  return Invalid(name, "a second argument of this name", "one");
}

std::string TextOf(const int64_t* numbers, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

// Takes a prefix off.
bool Take(std::string_view prefix, std::string_view* text) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

// Takes "tensors[I]", or "q" or "k" for the only tensor of that role, off a name.
std::optional<size_t> TakeTensor(const v1::RotateRequest& request, std::string_view* name) {
  const auto count = static_cast<size_t>(request.tensors_size());
  size_t found = count;
  if (Take("tensors[", name)) {
    const char* const end = name->data() + name->size();
    const auto [rest, error] = std::from_chars(name->data(), end, found);
    name->remove_prefix(static_cast<size_t>(rest - name->data()));
    if (error != std::errc() || !Take("]", name)) return std::nullopt;
  } else if (const bool is_q = Take("q", name); is_q || Take("k", name)) {
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

// Whether elements lie as prepared. The stride of an axis of one element says nothing.
bool HasStrides(const DlpackView& view, const std::vector<int64_t>& want) {
  if (view.data == nullptr) return true;
  if (want.empty()) return view.strides == nullptr;
  int64_t packed = 1;
  for (auto i = static_cast<size_t>(view.rank); i > 0; --i) {
    const int64_t stride = view.strides == nullptr ? packed : view.strides[i - 1];
    if (view.shape[i - 1] != 1 && stride != want[i - 1]) return false;
    packed *= view.shape[i - 1];
  }
  return true;
}

// Shapes are those of the preparation. `length` is that of the open axis, as the arguments before
// this one had it.
Status ReadMemory(const Operand& operand, const std::string& open_axis, const DLTensor& tensor,
                  const std::string& name, std::optional<int64_t>* length, void** memory) {
  DlpackView view;
  if (Status status = ReadDlpack(tensor, name, &view); !status.ok()) return status;
  if (view.dtype != operand.dtype) {
    return Invalid(name + ".dtype", Name(view.dtype), Name(operand.dtype));
  }
  const size_t rank = operand.shape.size();
  bool same = static_cast<size_t>(view.rank) == rank && operand.layout.size() == rank;
  for (size_t i = 0; same && i < rank; ++i) {
    const int64_t given = view.shape[i];
    if (open_axis.empty() || operand.layout[i] != open_axis[0]) {
      same = given == operand.shape[i];
    } else {
      same = given <= operand.shape[i] && given == length->value_or(given);
      *length = given;
    }
  }
  if (!same) {
    return Invalid(
        name + ".shape", TextOf(view.shape, static_cast<size_t>(view.rank)),
        TextOf(operand.shape.data(), rank) +
            (open_axis.empty() ? "" : ", with " + open_axis + " up to that, alike in all"));
  }
  if (!HasStrides(view, operand.strides)) {
    return Invalid(name + ".strides", "other strides",
                   operand.strides.empty()
                       ? "a packed tensor"
                       : TextOf(operand.strides.data(), operand.strides.size()));
  }
  *memory = view.data;
  return {};
}

// Libraries that have no type for fp8 say uint8. The preparation has the type.
DLTensor WithFloat8(DLTensor tensor, DType dtype) {
  if (tensor.dtype.code != kDLUInt || tensor.dtype.bits != 8) return tensor;
  if (dtype == DType::kFloat8E4M3) tensor.dtype.code = kDLFloat8_e4m3fn;
  if (dtype == DType::kFloat8E5M2) tensor.dtype.code = kDLFloat8_e5m2;
  return tensor;
}

// An array of any type, shape and strides.
Status ReadArray(const DLTensor& tensor, const std::string& name, ArrayView* array) {
  DlpackView view;
  if (Status status = ReadDlpack(tensor, name, &view); !status.ok()) return status;
  array->dtype = view.dtype;
  array->shape.assign(view.shape, view.shape + view.rank);
  array->data = view.data;
  if (view.strides != nullptr) array->strides.assign(view.strides, view.strides + view.rank);
  return {};
}

// A pool of pages, however its axes are cut.
Status ReadPool(DType dtype, int64_t bytes, const DLTensor& tensor, const std::string& name,
                void** memory) {
  ArrayView pool;
  if (Status status = ReadArray(tensor, name, &pool); !status.ok()) return status;
  if (pool.dtype != dtype) return Invalid(name + ".dtype", Name(pool.dtype), Name(dtype));
  const Result<int64_t> given = client::ArrayBytes(name, pool);
  if (!given.ok()) return given.status();
  if (*given < bytes) {
    return Invalid(name + ".shape", std::to_string(*given) + " bytes",
                   "the " + std::to_string(bytes) + " of pool_elements");
  }
  *memory = const_cast<void*>(pool.data);
  return {};
}

Status ReadSlots(const DLTensor& tensor, const std::string& name, std::string_view member,
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

// A number without axes.
template <typename T>
Status SetNumber(const DLTensor& tensor, const std::string& name, int64_t value,
                 std::optional<T>* number) {
  if (number->has_value()) return GivenTwice(name);
  if (tensor.ndim != 0) return Invalid(name + ".ndim", std::to_string(tensor.ndim), "0");
  *number = static_cast<T>(value);
  if (**number == value) return {};
  return Invalid(name, std::to_string(value), "a number of 32 bits");
}

// `member`: what follows "positions" or "reposition.from" in the name.
Status ReadPositions(const DLTensor& tensor, const std::string& name, std::string_view member,
                     Positions* positions) {
  std::vector<int64_t> values;
  if (Status status = ReadIntegers(tensor, name, &values); !status.ok()) return status;
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

Status ReadArgument(const Preparation& preparation, const rope_argument& argument,
                    std::optional<int64_t>* length, client::RotateRequest* call) {
  if (Status status = CheckGiven(argument.name, "arguments.name"); !status.ok()) return status;
  const std::string name = argument.name;
  if (Status status = CheckGiven(argument.tensor, argument.name); !status.ok()) return status;
  std::string_view rest = name;
  if (Take("positions", &rest)) {
    return ReadPositions(*argument.tensor, name, rest, &call->positions);
  }
  if (Take("reposition.from", &rest)) {
    if (!call->reposition.has_value()) call->reposition.emplace();
    return ReadPositions(*argument.tensor, name, rest, &call->reposition->from);
  }
  if (name == "reposition.by") {
    if (!call->reposition.has_value()) call->reposition.emplace();
    client::Reposition& move = *call->reposition;
    if (!move.by.empty()) return GivenTwice(name);
    Status status = ReadIntegers(*argument.tensor, name, &move.by);
    if (!status.ok()) return status;
    move.by_shape.assign(argument.tensor->shape, argument.tensor->shape + argument.tensor->ndim);
    return {};
  }
  if (name == "open_axis") {
    std::vector<int64_t> values;
    if (Status status = ReadIntegers(*argument.tensor, name, &values); !status.ok()) return status;
    return SetNumber(*argument.tensor, name, values.empty() ? 0 : values[0], length);
  }
  for (const client::RowArray& each : client::kRowArrays) {
    if (name != each.field) continue;
    if (!call->rows.has_value()) call->rows.emplace();
    std::optional<ArrayView>& rows = *call->rows.*each.view;
    if (rows.has_value()) return GivenTwice(name);
    return ReadArray(*argument.tensor, name, &rows.emplace());
  }
  const std::optional<size_t> index = TakeTensor(preparation.message().rotate(), &rest);
  if (index.has_value() && Take(".paged_tokens.", &rest)) {
    return ReadSlots(*argument.tensor, name, rest, &call->tensors[*index].paged);
  }
  const bool is_output = rest == ".output";
  if (!index.has_value() || !(is_output || rest.empty())) return Unknown(name);
  const Preparation::Tensor& tensor = preparation.tensors()[*index];
  client::TensorView& view = call->tensors[*index];
  if ((is_output ? view.output : view.data) != nullptr) return GivenTwice(name);
  void* memory = nullptr;
  const Operand operand = is_output ? ResultOf(tensor) : InputOf(tensor);
  const DLTensor given = WithFloat8(*argument.tensor, operand.dtype);
  Status status =
      tensor.view.paged.has_value()
          ? ReadPool(operand.dtype, is_output ? tensor.wanted.output_bytes : tensor.bytes, given,
                     name, &memory)
          : ReadMemory(operand, preparation.message().open_axis(), given, name, length, &memory);
  if (is_output) {
    view.output = memory;
  } else {
    view.data = memory;
  }
  return status;
}

}  // namespace

Status ReadArguments(const client::PreparedRotation& rotation, const rope_argument* arguments,
                     size_t count, client::RotateRequest* call) {
  const Preparation& preparation = *client::PreparedState::Of(rotation)->preparation;
  const std::vector<Preparation::Tensor>& tensors = preparation.tensors();
  call->tensors.resize(tensors.size());
  std::optional<int64_t> length;
  for (size_t i = 0; i < count; ++i) {
    Status status = ReadArgument(preparation, arguments[i], &length, call);
    if (!status.ok()) return status;
  }
  call->prepared = length.has_value() ? rotation.WithLength(*length) : rotation;
  for (size_t i = 0; i < tensors.size(); ++i) {
    client::TensorView& view = call->tensors[i];
    if (view.output != nullptr) continue;
    const Operand input = InputOf(tensors[i]);
    const Operand result = ResultOf(tensors[i]);
    if (input.dtype != result.dtype || input.layout != result.layout ||
        input.strides != result.strides) {
      return Invalid("tensors[" + std::to_string(i) + "].output", "nothing",
                     "memory for a result of another type, layout or strides");
    }
    view.output = const_cast<void*>(view.data);
  }
  return {};
}

}  // namespace rope::c
