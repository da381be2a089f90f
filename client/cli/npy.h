// NumPy's .npy files: little-endian, C order.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: not a .npy file, or its data does not match its shape.
// Limits:     Headers of at most 64 KiB, 32 axes.
#ifndef ROPE_CLIENT_CLI_NPY_H_
#define ROPE_CLIENT_CLI_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rope/status.h"
#include "rope/tensor.h"

namespace rope::client {

struct NpyArray {
  std::string descr;  // the element type in NumPy's spelling, for example "<f4"
  std::vector<int64_t> shape;
  absl::string_view data;  // a view into the parsed bytes
};

// Parses `bytes`, which must outlive the result.
Result<NpyArray> ParseNpy(absl::string_view bytes);

// The part of a file before its data.
std::string NpyHeader(absl::string_view descr, const std::vector<int64_t>& shape);

// Writes a whole file. NumPy has neither bf16 nor fp8: their bits are written as unsigned integers.
// UNKNOWN: it cannot be written.
Status WriteNpy(const std::string& path, DType dtype, const std::vector<int64_t>& shape,
                absl::string_view data);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_NPY_H_
