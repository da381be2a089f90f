// Reads golden vectors (tests/conformance/golden/, whose README.md defines the format).
//
// Threading:  A value; const access from any thread.
// Errors:     NOT_FOUND: no such file. INVALID_ARGUMENT: not JSON, a key missing or of another
//             type, an array whose length is not what the format says.
#ifndef ROPE_TESTS_SUPPORT_GOLDEN_READER_H_
#define ROPE_TESTS_SUPPORT_GOLDEN_READER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rope::testing {

// One file. T = num_tokens, H = num_heads, K = num_kv_heads, D = head_dim, R = rotary_dim.
struct GoldenCase {
  struct Mrope {
    std::array<int64_t, 3> section = {};
    std::string layout;  // "sections" or "interleaved"
  };

  std::string name;
  std::string description;
  std::vector<std::string> tags;
  std::string config;      // JSON text, as a user would send it
  std::string layer_type;  // empty: the config has one entry
  std::string rope_type;
  double rope_theta = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  std::string pairing;  // "half" or "interleaved"
  std::optional<Mrope> mrope;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t num_tokens = 0;
  int64_t seq_len = 0;
  std::vector<std::vector<int64_t>> positions;  // 1 or 3 rows of T
  double attention_factor = 0;
  std::vector<double> inv_freq_f64;  // [R/2]
  std::vector<double> cos_f64;       // [T][R/2], attention factor included
  std::vector<double> sin_f64;       // [T][R/2]
  std::vector<float> q;              // [T][H][D]
  std::vector<float> k;              // [T][K][D]
  std::vector<double> q_out_f64;     // [T][H][D]
  std::vector<double> k_out_f64;     // [T][K][D]
};

absl::StatusOr<GoldenCase> ReadGoldenFile(const std::string& path);

// Paths of all golden files of this source tree, sorted. Empty when the folder is missing.
std::vector<std::string> GoldenFiles();

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_GOLDEN_READER_H_
