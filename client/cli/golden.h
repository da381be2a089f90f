// Reads golden files (tests/conformance/golden/README.md), and measures how far rotated tensors are
// from them.
//
// Threading:  Functions and values.
// Errors:     INVALID_ARGUMENT: not a golden file; the message names the key.
// Precision:  The tolerance of a channel of the pair (a, b) is
//             1.5e-7 * attention_factor * (|a| + |b|), plus half a unit of the stored value for
//             16-bit types; 0 for channels that do not rotate.
#ifndef ROPE_CLIENT_CLI_GOLDEN_H_
#define ROPE_CLIENT_CLI_GOLDEN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rope/config.h"
#include "rope/status.h"
#include "rope/tensor.h"

namespace rope::client {

// q or k: [tokens, heads, head_dim].
struct GoldenTensor {
  Role role = Role::kQ;
  int64_t heads = 0;
  std::vector<double> input;
  std::vector<double> expected;
};

struct GoldenFile {
  std::string config_json;
  std::string layer_type;  // empty: the config has one entry
  std::optional<Pairing> pairing = {};
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  int64_t tokens = 0;
  int64_t seq_len = 0;
  double attention_factor = 0;
  std::vector<int64_t> positions;
  std::vector<int64_t> positions_shape;  // {tokens} or {3, tokens}
  std::vector<GoldenTensor> tensors;     // q and k
};

Result<GoldenFile> ParseGolden(absl::string_view text);

// The values as elements of `dtype`, rounded to nearest.
std::vector<std::byte> Store(const std::vector<double>& values, DType dtype);

struct Deviation {
  double ratio = 0;   // largest error / tolerance; 0/0 is 0, x/0 and NaN are infinite
  std::string where;  // the channel with that ratio, and its values; empty if ratio is 0
};

// `rotated` holds the returned elements of `tensor`. REQUIRES: the same number of elements.
Deviation Compare(const GoldenFile& golden, const GoldenTensor& tensor, DType dtype,
                  const void* rotated);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_GOLDEN_H_
