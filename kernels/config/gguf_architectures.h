// What a GGUF file does not say, because llama.cpp knows it by the architecture: the pairing, which
// layers slide, and which layers do not rotate.
//
// Source: ggml-org/llama.cpp at 0c1e57098: llama_model_rope_type in src/llama-model.cpp, the names
// in src/llama-arch.cpp, load_arch_hparams and the graphs in src/models/.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_CONFIG_GGUF_ARCHITECTURES_H_
#define ROPE_KERNELS_CONFIG_GGUF_ARCHITECTURES_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace rope::kernels {

// How the tensors of the GGUF file are paired. A conversion to GGUF permutes the weights of some
// models (Llama's, for one), so the checkpoint that the file comes from may be paired otherwise.
enum class GgufRope {
  kNone,         // llama.cpp does not rotate
  kNorm,         // interleaved
  kNeox,         // half
  kMrope,        // half, three axes in sections
  kImrope,       // half, three interleaved axes
  kNormOrMrope,  // kMrope if the file has rope.dimension_sections, else kNorm
  kNeoxOrMrope,  // kMrope if the file has rope.dimension_sections, else kNeox
};
// Unset for an unknown architecture.
std::optional<GgufRope> GgufRopeOf(std::string_view architecture);

// The layers that do not rotate, of a model with sliding layers or of SmolLM3.
enum class GgufStill {
  kNone,
  kFull,         // the layers with full attention
  kLastOfFour,   // every fourth layer, from layer 3 on
  kFirstOfFour,  // every fourth layer, from layer 0 on
};

// Layers that differ.
struct GgufLayers {
  // Sliding layers, one layer of each period has full attention. 0: only as
  // attention.sliding_window_pattern lists them.
  int64_t period = 0;
  bool full_first = false;    // the first layer of each period is full, not the last
  bool needs_window = false;  // no layer slides if attention.sliding_window is absent
  // The base of sliding layers if rope.freq_base_swa is absent. Unset: rope.freq_base.
  std::optional<double> sliding_base = {};
  bool sliding_scaled = false;   // scaling applies to sliding layers too
  bool factors_on_full = false;  // rope_freqs applies to full layers only
  bool half_on_full = false;     // full layers rotate half of rope.dimension_count
  GgufStill still = GgufStill::kNone;
  std::string_view sliding_type = "sliding_attention";
};
// nullptr if all layers are equal.
const GgufLayers* GgufLayersOf(std::string_view architecture);

// Linear attention: the default of full_attention_interval. One layer of each interval, the last,
// rotates. Unset if all layers have attention.
std::optional<int64_t> GgufFullAttentionInterval(std::string_view architecture);

// Which numbers rope.scaling.yarn_log_multiplier stands for. Other architectures ignore the key.
struct GgufLogMultiplier {
  double scale = 1;         // mscale_all_dim is the key's value times this
  bool mscale_too = false;  // mscale is mscale_all_dim; otherwise 1
};
const GgufLogMultiplier* GgufLogMultiplierOf(std::string_view architecture);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_GGUF_ARCHITECTURES_H_
