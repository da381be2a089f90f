// ReadGgufConfig: the rotary embeddings of a GGUF file, as the same types as those of a
// config.json.
//
// The reading is that of the config.json from which the file was converted, as far as the file has
// it. Where the file alone decides, llama.cpp's defaults hold; a warning names each default that is
// assumed. What llama.cpp computes otherwise is ApplyCompat's llama.cpp (rope_readings.h). The
// pairing is that of the GGUF's own tensors, which for Llama-like models is not the checkpoint's.
//
// Sources: ggml-org/llama.cpp at 0c1e57098: src/llama-arch.cpp (the keys), load_hparams in
// src/llama-model.cpp, src/llama-context.cpp (yarn), ggml/src/ggml-cpu/ops.cpp (the rotation),
// conversion/; the PyPI package gguf 0.19.0.
//
// Threading:  Pure function; any thread.
// Errors:     INVALID_ARGUMENT only, "key: got X, want Y": there is no general.architecture; a
//             value has the wrong type or is out of range; the file is a later part of a split
//             model; keys have no equivalent (yarn with factor tensors, sections with four axes).
#ifndef ROPE_KERNELS_CONFIG_GGUF_CONFIG_H_
#define ROPE_KERNELS_CONFIG_GGUF_CONFIG_H_

#include "absl/status/statusor.h"
#include "kernels/config/config_json.h"
#include "kernels/config/gguf_header.h"

namespace rope::kernels {

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufHeader& header);

// The number of files that the model is split into; 1 if it is in one file.
// INVALID_ARGUMENT if split.count is not a number from 1 to 65535.
absl::StatusOr<int64_t> GgufPartsOf(const GgufHeader& header);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_GGUF_CONFIG_H_
