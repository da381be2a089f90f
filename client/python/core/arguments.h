// Arguments of calls by name, as Python gives them.
//
// Threading:  With the GIL.
// Ownership:  Arguments borrows the dict and its values.
// Errors:     TypeError: an unknown name. InvalidField: a value that its argument cannot have.
#ifndef ROPE_CLIENT_PYTHON_CORE_ARGUMENTS_H_
#define ROPE_CLIENT_PYTHON_CORE_ARGUMENTS_H_

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rope/options.h"
#include "rope/rotate.h"

namespace rope::python {

// A call takes a range of these.
inline constexpr std::string_view kArguments[] = {
    // Of moves.
    "block_size", "rotary_offset", "scale", "dtype",
    // Of each call of a prepared one.
    "table", "from_", "to", "by", "pages", "slots", "out", "out_slots", "timeout",
    // Of the embedding.
    "pairing", "rope", "model", "config", "config_id", "layer", "layer_type", "first_layer",
    "sub_config", "compat", "precision",
    // Of rotations; first where the tokens are.
    "start", "starts", "positions", "positions_outside", "seq_lens", "cu_seqlens",
    "context_parallel", "cos", "sin", "angles", "layout", "output_dtype", "channel_order",
    "skip_attention_factor", "positions_max", "request_id"};

// The place of a name among them, known to the compiler.
struct Argument {
  consteval Argument(const char* name)
      : index(static_cast<size_t>(std::ranges::find(kArguments, name) - kArguments)) {
    static_cast<void>(kArguments[index].size());  // another name does not compile
  }
  const char* name() const { return kArguments[index].data(); }

  size_t index;
};

struct Gpu;

class Arguments {
 public:
  // Of a dict, which may have the names from `first` to `last`.
  Arguments(nanobind::handle given, Argument first, Argument last);

  bool has(Argument argument) const { return at(argument).is_valid(); }
  // None for an argument that is not given.
  nanobind::handle operator[](Argument argument) const;
  // The name of the first of a range that is given; null: none is.
  const char* Any(Argument first, Argument last) const;

  // The embedding that a call names. A call with a table names the pairing alone. Warns of what is
  // doubtful about the embedding's file.
  client::RopeSpec Rope(bool has_table) const;
  std::optional<Pairing> PairingOf(Argument argument) const;
  std::optional<client::DType> DTypeOf(Argument argument) const;
  std::optional<int64_t> IntegerOf(Argument argument) const;
  std::string TextOf(Argument argument) const;  // empty: not given
  // Where the tokens are: one of start, starts and positions; or none, if that may be. Positions
  // may lie on the GPU of the call's tensors.
  client::Positions Positions(bool may_be_none, Gpu& gpu) const;
  // Sets the lengths that are given.
  void SetLengths(client::Positions& positions) const;

 private:
  // Null: not given, or None.
  nanobind::handle at(Argument argument) const { return values_[argument.index]; }

  std::array<nanobind::handle, std::size(kArguments)> values_ = {};
};

// The names of the values of enums, in their order.
inline constexpr const char* kPairings[] = {"half", "interleaved"};
inline constexpr const char* kDTypes[] = {"fp32", "fp16", "bf16", "fp64", "fp8_e4m3", "fp8_e5m2"};

// The place of a name among others. InvalidField: another object.
size_t IndexOf(nanobind::handle name, const std::string& field, std::span<const char* const> names);
template <typename Enum>
Enum ChoiceOf(nanobind::handle name, const std::string& field, std::span<const char* const> names) {
  return static_cast<Enum>(IndexOf(name, field, names));
}

// None: the default.
client::CallOptions OptionsOf(nanobind::handle timeout_seconds);

// A start, or the position of each token; with a `gpu` the latter, which may lie there.
client::Positions PositionsOf(nanobind::handle given, const char* name, Gpu* gpu = nullptr);

// Shows ConfigWarnings, as said by the code that called the package.
void Warn(nanobind::handle texts);

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_ARGUMENTS_H_
