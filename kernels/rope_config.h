// RopeConfig: one rotary embedding in the vocabulary of Hugging Face config.json, as a user states
// it. Resolve it (frequencies.h) to get numbers; config_json.h reads one from a config.json.
//
// Threading:  A value; const access from any thread.
// Errors:     INVALID_ARGUMENT only, "field: got X, want Y", the field spelt as in config.json.
// Limits:     head_dim and rotary_dim to 65536, lengths to 2^53, attention_factor to what a float32
//             holds.
#ifndef ROPE_KERNELS_ROPE_CONFIG_H_
#define ROPE_KERNELS_ROPE_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rope::kernels {

enum class RopeType { kDefault, kLinear, kDynamic, kYarn, kLongrope, kLlama3, kProportional };

// The name in config.json: "default", "linear", ...
std::string_view Name(RopeType type);

// Reads a name; "su" is longrope, "mrope" is default. INVALID_ARGUMENT lists the names.
absl::StatusOr<RopeType> ParseRopeType(std::string_view name);

// Three-axis positions (t, h, w): which axis each frequency takes.
struct Mrope {
  enum class Layout {
    kSections,     // the first section[0] frequencies take t, the next section[1] h, the rest w
    kInterleaved,  // j % 3 == 1 and j < 3*section[1]: h; j % 3 == 2 and j < 3*section[2]: w; else t
  };
  std::array<int64_t, 3> section = {};  // counts of frequencies, sum rotary_dim/2
  Layout layout = Layout::kSections;

  // Axis (0 t, 1 h, 2 w) of frequency `index`.
  int Axis(int64_t index) const;
  bool operator==(const Mrope&) const = default;
};

// Unset optionals take the default of their type, given with each.
struct RopeConfig {
  RopeType rope_type = RopeType::kDefault;
  double rope_theta = 10000;               // base, finite, > 0
  std::optional<int64_t> head_dim = {};    // channels of a head, >= 2
  std::optional<int64_t> rotary_dim = {};  // even, 2..head_dim; head_dim * partial_rotary_factor
  std::optional<double> partial_rotary_factor = {};     // (0, 1]; 1
  std::optional<int64_t> max_position_embeddings = {};  // positions, >= 1
  // Positions, >= 1; max_position_embeddings.
  std::optional<int64_t> original_max_position_embeddings = {};
  std::optional<double> factor = {};            // > 0; yarn and longrope: the ratio of the lengths
  std::optional<double> attention_factor = {};  // >= 0; replaces the computed one
  std::optional<double> mscale = {};            // yarn
  std::optional<double> mscale_all_dim = {};    // yarn
  std::optional<double> beta_fast = {};         // yarn; 32
  std::optional<double> beta_slow = {};         // yarn; 1
  std::optional<bool> truncate = {};            // yarn; true
  std::optional<double> low_freq_factor = {};   // llama3
  std::optional<double> high_freq_factor = {};  // llama3
  std::vector<double> short_factor = {};        // longrope, rotary_dim/2
  std::vector<double> long_factor = {};         // longrope, rotary_dim/2
  std::optional<Mrope> mrope = {};

  bool operator==(const RopeConfig&) const = default;
};

// Checks every rule that holds whatever the tensor: numbers finite and in range, what the type
// requires is there, list lengths and sections where rotary_dim is known. `head_dim` is taken where
// the config has none.
absl::Status Validate(const RopeConfig& config, std::optional<int64_t> head_dim = std::nullopt);

// Legal settings that are probably mistakes, in words: factor below 1, high_freq_factor equal to
// low_freq_factor, a factor that contradicts the length ratio, settings that implementations read
// differently. Each says the number that it changes. `head_dim` as for Validate.
// REQUIRES: Validate(config, head_dim) is OK.
std::vector<std::string> Warnings(const RopeConfig& config,
                                  std::optional<int64_t> head_dim = std::nullopt);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_ROPE_CONFIG_H_
