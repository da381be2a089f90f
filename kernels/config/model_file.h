// ReadModelFile: the rotary embeddings of a model's file, a GGUF file or a config.json.
//
// The first bytes decide: GGUF's magic, or a JSON object. Of a GGUF file only the header and the
// rope tensors are read, so a file of 100 GB takes as long as one of 10 MB. Of a split GGUF model
// the caller names the first part; if it has no rope tensor, the headers of the other parts, next
// to it, are searched for one, and a warning says if one of them could not be read.
//
// Threading:  Pure functions; any thread.
// Errors:     NOT_FOUND, PERMISSION_DENIED or another status of a system call, with the path.
//             INVALID_ARGUMENT, with the path: the file is neither GGUF nor JSON, or its reader
//             refuses it (gguf_header.h, gguf_config.h, config_json.h).
// Limits:     16 MiB of JSON; gguf_header.h's.
#ifndef ROPE_KERNELS_CONFIG_MODEL_FILE_H_
#define ROPE_KERNELS_CONFIG_MODEL_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/config/byte_source.h"
#include "kernels/config/config_json.h"

namespace rope::kernels {

// `sub_config` is the path of the config to read in a composite config.json; empty: the file's own.
// A GGUF file has none.
absl::StatusOr<ModelConfig> ReadModelFile(const std::string& path,
                                          std::string_view sub_config = "");

// The same from bytes, without the path in errors and without other parts of a split model.
absl::StatusOr<ModelConfig> ReadModel(const ByteSource& source);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MODEL_FILE_H_
