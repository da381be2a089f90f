// LayerTypes: the type of each layer of a model, one byte a layer.
//
// Threading:  A value; const access from any thread.
// Limits:     64 different types, of at most 128 bytes each.
#ifndef ROPE_KERNELS_CONFIG_LAYER_TYPES_H_
#define ROPE_KERNELS_CONFIG_LAYER_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rope::kernels {

inline constexpr size_t kLayerTypesMax = 64;
inline constexpr size_t kLayerTypeBytesMax = 128;

class LayerTypes {
 public:
  // Adds a layer. False: nothing was added, because the type is too long or one type too many.
  bool Add(std::string_view type);

  bool empty() const { return numbers_.empty(); }
  size_t size() const { return numbers_.size(); }
  // REQUIRES: layer < size().
  const std::string& operator[](size_t layer) const { return names_[numbers_[layer]]; }

  // The different types, in the order of their first layers.
  const std::vector<std::string>& names() const { return names_; }
  // The index in names() of a layer's type. REQUIRES: layer < size().
  size_t NumberOf(size_t layer) const { return numbers_[layer]; }
  // The index in names() of a type; unset if no layer has it.
  std::optional<size_t> Find(std::string_view type) const;

  // Bytes in memory outside of the object.
  int64_t KeptBytes() const;

 private:
  std::vector<std::string> names_;
  std::vector<uint8_t> numbers_;  // by layer, indices into names_
};

static_assert(kLayerTypesMax <= UINT8_MAX);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_LAYER_TYPES_H_
