// GgufHeader: the parts of a GGUF file that describe its rotary embedding: metadata values, and the
// tensors that divide frequencies.
//
// The file is read in order: magic, version, counts, metadata, tensor infos. Of the tensors' data
// only rope_freqs, rope_factors_long and rope_factors_short are read. Values of other keys, for
// example the tokenizer's lists, are skipped without being stored, and the weights are never
// touched. Format: gguf.md of ggml-org/ggml; ggml/src/gguf.cpp of ggml-org/llama.cpp at 0c1e57098.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT: the magic is not GGUF; the version is not 2 or 3; the file is
//             big-endian or ends early (the message names what is missing); a count, a length, a
//             type or an offset is not possible; a key or a tensor occurs twice. Or an error of the
//             source.
// Limits:     65536 keys, 2^20 tensors, 256 MiB of header, 1 MiB of stored values, 65536 elements
//             of a stored list, 32768 frequencies of a tensor. Memory: 64 KiB for reading and what
//             is stored.
#ifndef ROPE_KERNELS_CONFIG_GGUF_HEADER_H_
#define ROPE_KERNELS_CONFIG_GGUF_HEADER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/byte_source.h"

namespace rope::kernels {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr std::string_view kRopeFreqs = "rope_freqs.weight";
inline constexpr std::string_view kRopeFactorsLong = "rope_factors_long.weight";
inline constexpr std::string_view kRopeFactorsShort = "rope_factors_short.weight";

// A value of the metadata, or a list of values.
struct GgufValue {
  enum class Kind { kInteger, kNumber, kBool, kString };
  Kind kind = Kind::kInteger;
  bool list = false;
  std::vector<int64_t> integers;  // kInteger; kBool as 0 and 1. 2^63 and more count as 2^63 - 1
  // kNumber. A float32 is the double with the float's shortest decimal form, 0.1 and not
  // 0.10000000149: a converter rounded the number of a config.json.
  std::vector<double> numbers;
  std::string text;  // kString, not a list: bytes of any kind
};

struct GgufHeader {
  // By key; only keys that gguf_config.h reads.
  std::map<std::string, GgufValue, std::less<>> values;
  // By name; only the three tensors above, float32 in the file.
  std::map<std::string, std::vector<double>, std::less<>> tensors;
  // Whether the caller searched all parts of a split model for the tensors.
  bool all_parts = false;
};

absl::StatusOr<GgufHeader> ReadGgufHeader(const ByteSource& source);

// Text of unknown bytes for error messages: in quotes, other characters than printable ASCII as ?,
// truncated after 48 characters.
std::string ShowText(std::string_view text);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_GGUF_HEADER_H_
