#include "tests/conformance/move_generator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "kernels/check.h"
#include "kernels/dtype/element.h"
#include "tests/support/received_request.h"

namespace rope::testing {
namespace {

constexpr size_t kTableRows = 64;
constexpr auto kRows = static_cast<int64_t>(kTableRows);
constexpr int64_t kNoToken = -1;

kernels::DType DTypeOf(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_FP16:
      return kernels::DType::kFloat16;
    case v1::DTYPE_BF16:
      return kernels::DType::kBFloat16;
    case v1::DTYPE_FP8_E4M3:
      return kernels::DType::kFloat8E4M3;
    case v1::DTYPE_FP8_E5M2:
      return kernels::DType::kFloat8E5M2;
    default:
      return kernels::DType::kFloat32;
  }
}

void SetIntegers(const std::vector<int64_t>& values, const std::vector<int64_t>& shape,
                 v1::Array& array) {
  array.set_dtype(v1::DTYPE_INT64);
  SetShape(array, shape);
  array.set_raw(RawBytes(values));
}

}  // namespace

struct MoveGenerator::Pool {
  int64_t pages = 0;
  int64_t block_size = 0;
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t layer_stride = 0;
  int64_t elements = 0;  // of all layers
};

struct MoveGenerator::Draft {
  v1::DType dtype = v1::DTYPE_FP32;
  int64_t element_bytes = 0;
  int64_t channels = 0;
  int64_t pairs = 0;
  int64_t layers = 0;  // 0: no L axis
  int64_t heads = 0;
  bool by_head = false;  // heads stand on B, with positions and slots of their own
  int64_t sequences = 0;
  int64_t tokens = 0;  // of a sequence
  std::string layout;
  std::vector<int64_t> shape;
  std::vector<int64_t> token_shape;  // of arrays with a number for each token
  Pool pool;
  bool has_pages = false;      // named by pages, not by slots
  int64_t pages_each = 0;      // of a sequence
  std::vector<int64_t> pages;  // of each sequence
  std::vector<int64_t> slots;
  std::vector<int64_t> targets;  // as slots
  bool other_pool = false;
};

std::string MoveCase::Moved(const std::vector<std::string>& results) const {
  std::string moved = memory;
  ROPE_CHECK(results.size() == places.size());
  for (size_t i = 0; i < results.size(); ++i) {
    ROPE_CHECK(results[i].size() == places[i].size() * static_cast<size_t>(place_bytes));
    for (size_t j = 0; j < places[i].size(); ++j) {
      if (places[i][j] < 0) continue;
      std::memcpy(moved.data() + places[i][j],
                  results[i].data() + j * static_cast<size_t>(place_bytes),
                  static_cast<size_t>(place_bytes));
    }
  }
  return moved;
}

void SetRegion(uint64_t id, v1::RotateRequest& request) {
  for (v1::Tensor& tensor : *request.mutable_tensors()) {
    if (tensor.array().raw().empty()) tensor.mutable_array()->mutable_region()->set_region_id(id);
  }
  for (v1::RegionSpan& span : *request.mutable_output()->mutable_regions()) span.set_region_id(id);
  v1::Rows& rows = *request.mutable_rows();
  if (rows.cos_sin().has_region()) rows.mutable_cos_sin()->mutable_region()->set_region_id(id);
  if (rows.cos().has_region()) rows.mutable_cos()->mutable_region()->set_region_id(id);
  if (rows.sin().has_region()) rows.mutable_sin()->mutable_region()->set_region_id(id);
}

int64_t MoveGenerator::Between(int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random_);
}

// More bytes of the region, at any element.
v1::RegionSpan MoveGenerator::Take(int64_t bytes, int64_t element_bytes, std::string& memory) {
  v1::RegionSpan span;
  const uint64_t lines = (memory.size() + 63) / 64;
  span.set_offset(lines * 64 + static_cast<uint64_t>(Between(0, 3) * element_bytes));
  const size_t before = memory.size();
  memory.resize(span.offset() + static_cast<uint64_t>(bytes));
  for (size_t i = before; i < memory.size(); ++i) memory[i] = static_cast<char>(random_());
  ROPE_CHECK(memory.size() <= kMoveRegionBytes);
  return span;
}

MoveGenerator::Draft MoveGenerator::DrawShape() {
  Draft draft;
  draft.dtype = OneOf<v1::DType>(
      {v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16, v1::DTYPE_FP8_E4M3, v1::DTYPE_FP8_E5M2});
  draft.element_bytes = kernels::ElementBytes(DTypeOf(draft.dtype));
  draft.channels = OneOf<int64_t>({2, 16, 24, 64, 128});
  draft.pairs = OneIn(2) ? draft.channels / 2 : Between(1, draft.channels / 2);
  draft.layers = OneIn(3) ? Between(1, 8) : 0;
  draft.heads = Between(1, 4);
  draft.by_head = OneIn(4);
  draft.tokens = Between(1, 20);
  draft.sequences = draft.by_head ? draft.heads : OneIn(3) ? Between(1, 3) : 1;
  const bool has_batch = draft.by_head || draft.sequences > 1 || OneIn(4);
  const bool is_flat = !has_batch && OneIn(2);
  draft.layout = std::string(draft.layers > 0 ? "L" : "") + (has_batch ? "B" : "") +
                 (is_flat ? "T" : "S") + (draft.by_head ? "" : "H") + "D";
  if (has_batch) draft.token_shape.push_back(draft.sequences);
  draft.token_shape.push_back(draft.tokens);
  if (draft.layers > 0) draft.shape.push_back(draft.layers);
  draft.shape.insert(draft.shape.end(), draft.token_shape.begin(), draft.token_shape.end());
  if (!draft.by_head) draft.shape.push_back(draft.heads);
  draft.shape.push_back(draft.channels);
  return draft;
}

// A pool, and where the tokens are in it.
void MoveGenerator::DrawSlots(Draft& draft) {
  Pool& pool = draft.pool;
  pool.block_size = OneOf<int64_t>({1, 3, 4, 16});
  draft.has_pages = !draft.by_head && OneIn(2);
  const int64_t sequences = draft.by_head ? 1 : draft.sequences;
  draft.pages_each = (draft.tokens + pool.block_size - 1) / pool.block_size;
  pool.pages = sequences * draft.pages_each * 2 + Between(0, 3);
  const int64_t width = draft.channels + OneOf<int64_t>({0, 0, draft.channels, 8});
  const bool heads_first = OneIn(2);  // [page, H, block, C]
  pool.head_stride = heads_first ? pool.block_size * width : width;
  pool.token_stride = heads_first ? width : draft.heads * width;
  const int64_t page = pool.block_size * draft.heads * width;
  const int64_t layers = std::max<int64_t>(draft.layers, 1);
  const bool layers_first = OneIn(2);
  pool.elements = layers * pool.pages * page;
  pool.page_stride = layers_first ? page : layers * page;
  pool.layer_stride = layers_first ? pool.pages * page : page;
  std::vector<int64_t> free(
      static_cast<size_t>(draft.has_pages ? pool.pages : pool.pages * pool.block_size));
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), random_);
  if (draft.has_pages) {
    draft.pages.assign(free.begin(), free.begin() + sequences * draft.pages_each);
    for (int64_t i = 0; i < sequences * draft.tokens; ++i) {
      const int64_t token = i % draft.tokens;
      const int64_t index = i / draft.tokens * draft.pages_each + token / pool.block_size;
      draft.slots.push_back(draft.pages[static_cast<size_t>(index)] * pool.block_size +
                            token % pool.block_size);
    }
  } else {
    draft.slots.assign(free.begin(), free.begin() + sequences * draft.tokens);
    for (int64_t& slot : draft.slots) slot = OneIn(8) ? kNoToken : slot;
  }
}

void MoveGenerator::DrawTargets(Draft& draft) {
  draft.other_pool = OneIn(4);
  draft.targets = draft.slots;
  if (!OneIn(3)) return;
  // Slots that no token reads; some tokens stay where they are.
  std::vector<int64_t> free;
  for (int64_t slot = 0; slot < draft.pool.pages * draft.pool.block_size; ++slot) {
    if (std::ranges::find(draft.slots, slot) == draft.slots.end()) free.push_back(slot);
  }
  std::shuffle(free.begin(), free.end(), random_);
  for (int64_t& target : draft.targets) {
    if (target == kNoToken || OneIn(4)) continue;
    target = free.back();
    free.pop_back();
  }
}

void MoveGenerator::DrawTable(Draft& draft, MoveCase& made) {
  const v1::DType name =
      OneOf<v1::DType>({v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16, v1::DTYPE_FP64});
  const bool is_double = name == v1::DTYPE_FP64;
  const kernels::DType dtype = DTypeOf(name);
  const auto bytes = is_double ? sizeof(double) : static_cast<size_t>(kernels::ElementBytes(dtype));
  const auto pairs = static_cast<size_t>(draft.pairs);
  const double factor = OneOf<double>({1, 1.25});
  const auto write = [&](double value, char* element) {
    if (is_double) {
      std::memcpy(element, &value, sizeof(value));
    } else {
      kernels::WriteElement(value, dtype, reinterpret_cast<uint8_t*>(element));
    }
  };
  std::string both(2 * kTableRows * pairs * bytes, '\0');
  std::string cos(kTableRows * pairs * bytes, '\0');
  std::string sin = cos;
  for (size_t i = 0; i < kTableRows * pairs; ++i) {
    const double angle = std::uniform_real_distribution<double>(-3, 3)(random_);
    write(factor * std::cos(angle), cos.data() + i * bytes);
    write(factor * std::sin(angle), sin.data() + i * bytes);
  }
  for (size_t row = 0; row < kTableRows; ++row) {
    const size_t half = pairs * bytes;
    std::memcpy(both.data() + 2 * row * half, cos.data() + row * half, half);
    std::memcpy(both.data() + (2 * row + 1) * half, sin.data() + row * half, half);
  }
  const bool in_region = OneIn(2);
  const auto add = [&](const std::string& elements, int64_t width, v1::Array& paged,
                       v1::Array& message) {
    message.set_dtype(name);
    SetShape(message, {kRows, width});
    paged = message;
    message.set_raw(elements);
    if (!in_region) return paged.set_raw(elements);
    *paged.mutable_region() = Take(std::ssize(elements), static_cast<int64_t>(bytes), made.memory);
    std::ranges::copy(elements,
                      made.memory.begin() + static_cast<int64_t>(paged.region().offset()));
  };
  v1::Rows& paged = *made.in_pages.mutable_rows();
  v1::Rows& message = *made.in_message.mutable_rows();
  if (OneIn(2))
    return add(both, 2 * draft.pairs, *paged.mutable_cos_sin(), *message.mutable_cos_sin());
  add(cos, draft.pairs, *paged.mutable_cos(), *message.mutable_cos());
  add(sin, draft.pairs, *paged.mutable_sin(), *message.mutable_sin());
}

void MoveGenerator::DrawDistance(const Draft& draft, MoveCase& made) {
  const auto count = static_cast<size_t>(std::accumulate(
      draft.token_shape.begin(), draft.token_shape.end(), int64_t{1}, std::multiplies<>()));
  std::vector<int64_t> numbers(count);
  const auto draw = [&](int64_t least) {
    for (int64_t& number : numbers) number = Between(least, kRows - 1);
  };
  if (OneIn(2)) {
    for (const bool from : {false, true}) {
      draw(0);
      for (v1::RotateRequest* const request : {&made.in_pages, &made.in_message}) {
        v1::Positions& positions =
            from ? *request->mutable_reposition()->mutable_from() : *request->mutable_positions();
        SetIntegers(numbers, draft.token_shape, *positions.mutable_position_ids());
      }
    }
    return;
  }
  v1::Array& by = *made.in_pages.mutable_reposition()->mutable_by();
  if (draft.has_pages && OneIn(2)) {  // of each page
    std::vector<int64_t> moves(draft.pages.size());
    for (int64_t& move : moves) move = Between(1 - kRows, kRows - 1);
    for (size_t i = 0; i < count; ++i) {
      const int64_t token = static_cast<int64_t>(i) % draft.tokens;
      const int64_t sequence = static_cast<int64_t>(i) / draft.tokens;
      numbers[i] =
          moves[static_cast<size_t>(sequence * draft.pages_each + token / draft.pool.block_size)];
    }
    std::vector<int64_t> shape = {draft.pages_each};
    if (draft.token_shape.size() == 2) shape.insert(shape.begin(), draft.sequences);
    SetIntegers(moves, shape, by);
  } else if (OneIn(2)) {  // of all tokens
    std::ranges::fill(numbers, Between(1 - kRows, kRows - 1));
    SetIntegers({numbers.front()}, {1}, by);
  } else {
    draw(1 - kRows);
    SetIntegers(numbers, draft.token_shape, by);
  }
  SetIntegers(numbers, draft.token_shape, *made.in_message.mutable_reposition()->mutable_by());
}

// A tensor and its own pool of pages. The message of the request has the same tokens.
void MoveGenerator::DrawTensor(Draft& draft, MoveCase& made) {
  const Pool& pool = draft.pool;
  const bool is_first = made.places.empty();
  const int64_t layers = std::max<int64_t>(draft.layers, 1);
  const int64_t bytes = pool.elements * draft.element_bytes;
  const v1::RegionSpan source = Take(bytes, draft.element_bytes, made.memory);
  const v1::RegionSpan target =
      draft.other_pool ? Take(bytes, draft.element_bytes, made.memory) : source;
  const auto place_bytes = static_cast<size_t>(made.place_bytes);
  std::string packed;
  std::vector<MoveCase::Place>& places = made.places.emplace_back();
  const auto offset_of = [&](int64_t layer, int64_t slot, int64_t head) {
    return (layer * pool.layer_stride + slot / pool.block_size * pool.page_stride +
            slot % pool.block_size * pool.token_stride + head * pool.head_stride) *
           draft.element_bytes;
  };
  const auto add = [&](int64_t layer, size_t token, int64_t head) {
    std::string one(place_bytes, '\0');
    for (int64_t i = 0; i < draft.channels; ++i) {
      const double value = std::uniform_real_distribution<double>(-3, 3)(random_);
      kernels::WriteElement(value, DTypeOf(draft.dtype),
                            reinterpret_cast<uint8_t*>(one.data()) + i * draft.element_bytes);
    }
    packed += one;
    const int64_t slot = draft.slots[token];
    if (slot == kNoToken) return places.push_back(-1);
    const auto at = static_cast<int64_t>(source.offset()) + offset_of(layer, slot, head);
    std::ranges::copy(one, made.memory.begin() + at);
    places.push_back(static_cast<int64_t>(target.offset()) +
                     offset_of(layer, draft.targets[token], head));
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (int64_t head = 0; draft.by_head && head < draft.heads; ++head) {
      for (size_t token = 0; token < draft.slots.size(); ++token) add(layer, token, head);
    }
    for (size_t token = 0; !draft.by_head && token < draft.slots.size(); ++token) {
      for (int64_t head = 0; head < draft.heads; ++head) add(layer, token, head);
    }
  }
  v1::Tensor tensor;
  tensor.set_role(v1::ROLE_K);
  tensor.set_layout(draft.layout);
  tensor.mutable_array()->set_dtype(draft.dtype);
  SetShape(*tensor.mutable_array(), draft.shape);
  const int64_t offset_max = draft.channels - 2 * draft.pairs;
  if (OneIn(2)) tensor.set_rotary_offset(Between(0, offset_max));
  v1::Tensor& in_message = *made.in_message.add_tensors() = tensor;
  in_message.mutable_array()->set_raw(packed);
  v1::Tensor& in_pages = *made.in_pages.add_tensors() = tensor;
  *in_pages.mutable_array()->mutable_region() = source;
  *made.in_pages.mutable_output()->add_regions() = target;
  v1::PagedTokens& paged = *in_pages.mutable_paged_tokens();
  // By head, a slot of the request is the head of a token.
  const bool heads_first = pool.head_stride > pool.token_stride;
  paged.set_block_size(draft.by_head ? pool.block_size * draft.heads : pool.block_size);
  paged.set_page_stride(pool.page_stride);
  paged.set_token_stride(draft.by_head ? std::min(pool.token_stride, pool.head_stride)
                                       : pool.token_stride);
  if (!draft.by_head) paged.set_head_stride(pool.head_stride);
  if (draft.layers > 0) paged.set_layer_stride(pool.layer_stride);
  if (OneIn(2)) paged.set_pool_elements(pool.elements);
  if (!is_first && OneIn(2)) return;  // those of the first tensor
  const auto named = [&](const std::vector<int64_t>& slots) {
    if (!draft.by_head) return slots;
    std::vector<int64_t> of_heads;
    for (int64_t head = 0; head < draft.heads; ++head) {
      for (const int64_t slot : slots) {
        const int64_t first = slot / pool.block_size * pool.block_size * draft.heads;
        const int64_t within = slot % pool.block_size;
        of_heads.push_back(slot == kNoToken ? kNoToken
                           : heads_first    ? first + head * pool.block_size + within
                                            : first + within * draft.heads + head);
      }
    }
    return of_heads;
  };
  if (draft.has_pages) {
    std::vector<int64_t> shape = {draft.pages_each};
    if (draft.token_shape.size() == 2) shape.insert(shape.begin(), draft.sequences);
    SetIntegers(draft.pages, shape, *paged.mutable_pages());
  } else {
    SetIntegers(named(draft.slots), draft.token_shape, *paged.mutable_slots());
  }
  if (draft.targets == draft.slots) return;
  SetIntegers(named(draft.targets), draft.token_shape, *paged.mutable_target_slots());
}

MoveCase MoveGenerator::Make() {
  MoveCase made;
  Draft draft = DrawShape();
  DrawSlots(draft);
  DrawTargets(draft);
  made.place_bytes = draft.channels * draft.element_bytes;
  const v1::Pairing pairing = OneIn(2) ? v1::PAIRING_HALF : v1::PAIRING_INTERLEAVED;
  for (v1::RotateRequest* const request : {&made.in_pages, &made.in_message}) {
    request->mutable_rope()->set_pairing(pairing);
    request->set_operation(v1::OPERATION_REPOSITION);
  }
  DrawTable(draft, made);
  DrawDistance(draft, made);
  for (int64_t i = Between(1, 2); i > 0; --i) DrawTensor(draft, made);
  if (!draft.other_pool && OneIn(2)) {
    made.in_pages.clear_output();
    made.in_pages.mutable_output()->set_in_place(true);
  }
  return made;
}

}  // namespace rope::testing
