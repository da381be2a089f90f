// NumPy's .npy files: little-endian, C order.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: not such a file, or one whose size is not that of its shape.
// Limits:     Headers of at most 64 KiB, 32 axes.
#ifndef ROPE_CLIENT_CLI_NPY_H_
#define ROPE_CLIENT_CLI_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rope/status.h"

namespace rope::client {

struct NpyArray {
  std::string descr;  // the element type in NumPy's spelling, for example "<f4"
  std::vector<int64_t> shape;
  absl::string_view data;  // within the bytes that were parsed
};

// An array in `bytes`, which must outlive it.
Result<NpyArray> ParseNpy(absl::string_view bytes);

// Everything of a file before its data.
std::string NpyHeader(absl::string_view descr, const std::vector<int64_t>& shape);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_NPY_H_
