#include "server/models/kept_bytes.h"

#include <algorithm>

namespace rope::server {
namespace {

// Of the allocator, for each allocation.
constexpr size_t kAllocationBytes = 16;

template <typename T>
int64_t BytesOf(const std::vector<T>& list) {
  return list.capacity() == 0
             ? 0
             : static_cast<int64_t>(list.capacity() * sizeof(T) + kAllocationBytes);
}

}  // namespace

int64_t KeptBytes(const std::string& text) {
  static const size_t in_place = std::string().capacity();
  if (text.capacity() <= in_place) return 0;
  return static_cast<int64_t>(text.capacity() + 1 + kAllocationBytes);
}

int64_t KeptBytes(const std::vector<std::string>& texts) {
  int64_t bytes = BytesOf(texts);
  for (const std::string& text : texts) bytes += KeptBytes(text);
  return bytes;
}

int64_t KeptBytes(const kernels::RopeConfig& config) {
  return BytesOf(config.short_factor) + BytesOf(config.long_factor) + BytesOf(config.inv_freq) +
         (config.mrope.has_value() ? BytesOf(config.mrope->axes) : 0);
}

int64_t KeptBytes(const kernels::LayerConfig& layer) {
  return KeptBytes(layer.config) + KeptBytes(layer.layer_type) + KeptBytes(layer.model_type) +
         KeptBytes(layer.architectures) + KeptBytes(layer.warnings);
}

int64_t KeptBytes(const kernels::ModelConfig& config) {
  // A bit for each layer says whether it rotates.
  int64_t bytes = KeptBytes(config.layers()) + KeptBytes(config.layer_types()) +
                  static_cast<int64_t>(config.layers().size() / 8);
  std::vector<std::string> types = config.layer_types();
  if (types.empty()) types.emplace_back();
  for (const std::string& type : types) {
    const auto layer = config.Layer({.layer_type = type});
    bytes += static_cast<int64_t>(sizeof(kernels::LayerConfig));
    if (layer.ok()) bytes += KeptBytes(*layer);
  }
  return bytes;
}

int64_t KeptBytes(const kernels::ResolvedRope& rope) {
  const int64_t growth = rope.DependsOnSide() ? rope.rotary_dim() / 2 : 0;
  return static_cast<int64_t>(sizeof(kernels::ResolvedRope)) + KeptBytes(rope.config()) +
         rope.KeptBytes() + growth * static_cast<int64_t>(sizeof(long double));
}

}  // namespace rope::server
