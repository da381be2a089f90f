#include "kernels/canonical_text.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

namespace rope::kernels {
namespace {

// Raise the number when the text changes: old ids then name nothing.
constexpr std::string_view kFormat = "rope.v1/config_id/3\n";

// Writes a line for each value that is set: its name, "=", the value.
class Lines {
 public:
  template <typename T>
  void Add(std::string_view name, const T& value) {
    text_.append(name).append("=");
    Write(value);
    text_.append("\n");
  }

  template <typename T>
  void Add(std::string_view name, const std::optional<T>& value) {
    if (value.has_value()) Add(name, *value);
  }

  template <typename T>
  void Add(std::string_view name, const std::vector<T>& list) {
    if (!list.empty()) AddAll(name, list);
  }

  void Add(std::string_view name, const Mrope& mrope) {
    if (!mrope.axes.empty()) return AddAll(name, mrope.axes);
    AddAll(name, mrope.section);
    Add("mrope_layout", mrope.layout);
  }

  void Add(std::string_view name, const XPos& xpos) {
    Add(name, xpos.scale_base);
    Add("xpos_centre", xpos.centre);
  }

  std::string Take() { return std::move(text_); }

 private:
  template <typename List>
  void AddAll(std::string_view name, const List& list) {
    text_.append(name).append("=");
    for (const auto value : list) {
      Write(value);
      text_.append(",");
    }
    text_.append("\n");
  }

  // An enum is its number: the order of its values is part of the format.
  template <typename T>
  void Write(const T& value) {
    std::array<char, 64> digits;
    char* const begin = digits.data();
    char* const end = begin + digits.size();
    if constexpr (std::is_floating_point_v<T>) {
      text_.append(begin, std::to_chars(begin, end, value, std::chars_format::hex).ptr);
    } else {
      text_.append(begin, std::to_chars(begin, end, static_cast<int64_t>(value)).ptr);
    }
  }

  // A layer type may hold any byte.
  void Write(const std::string& value) {
    Write(value.size());
    text_.append(":").append(value);
  }

  std::string text_ = std::string(kFormat);
};

// The names of all fields, so that a field that is added does not compile without its line.
void AddConfig(const RopeConfig& config, Lines& lines) {
  const auto& [rope_type, rope_theta, head_dim, rotary_dim, partial_rotary_factor,
               max_position_embeddings, original_max_position_embeddings, factor, attention_factor,
               mscale, mscale_all_dim, beta_fast, beta_slow, truncate, low_freq_factor,
               high_freq_factor, short_factor, long_factor, mrope, rotary_offset, attn_factor, ramp,
               longrope_branch, alpha, mixed_b, xpos, inv_freq, seq_len_policy, reverse,
               precision] = config;
  lines.Add("rope_type", rope_type);
  lines.Add("rope_theta", rope_theta);
  lines.Add("head_dim", head_dim);
  lines.Add("rotary_dim", rotary_dim);
  lines.Add("partial_rotary_factor", partial_rotary_factor);
  lines.Add("max_position_embeddings", max_position_embeddings);
  lines.Add("original_max_position_embeddings", original_max_position_embeddings);
  lines.Add("factor", factor);
  lines.Add("attention_factor", attention_factor);
  lines.Add("mscale", mscale);
  lines.Add("mscale_all_dim", mscale_all_dim);
  lines.Add("beta_fast", beta_fast);
  lines.Add("beta_slow", beta_slow);
  lines.Add("truncate", truncate);
  lines.Add("low_freq_factor", low_freq_factor);
  lines.Add("high_freq_factor", high_freq_factor);
  lines.Add("short_factor", short_factor);
  lines.Add("long_factor", long_factor);
  lines.Add("mrope", mrope);
  lines.Add("rotary_offset", rotary_offset);
  lines.Add("attn_factor", attn_factor);
  lines.Add("ramp", ramp);
  lines.Add("longrope_branch", longrope_branch);
  lines.Add("alpha", alpha);
  lines.Add("mixed_b", mixed_b);
  lines.Add("xpos", xpos);
  lines.Add("inv_freq", inv_freq);
  lines.Add("seq_len_policy", seq_len_policy);
  lines.Add("reverse", reverse);
  lines.Add("precision", precision);
}

}  // namespace

std::string CanonicalText(const LayerRope& rope) {
  Lines lines;
  AddConfig(rope.layer.config, lines);
  lines.Add("pairing", rope.pairing);
  lines.Add("channel_order", rope.layer.channel_order);
  lines.Add("layer_type", rope.layer.layer_type);
  lines.Add("rotates", rope.layer.rotates);
  return lines.Take();
}

}  // namespace rope::kernels
