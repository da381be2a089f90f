#include "tests/conformance/request_generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/dtype/element.h"
#include "tests/support/received_request.h"

namespace rope::testing {
namespace {

constexpr int64_t kPositionMax = int64_t{1} << 30;

bool Has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

bool IsContextParallel(Where where) {
  return where == Where::kContextParallel || where == Where::kContextParallelStarts;
}

bool HasThreeRows(Where where) {
  return where == Where::kSections || where == Where::kInterleaved || where == Where::kErnie ||
         where == Where::kAxial;
}

kernels::DType KernelDType(v1::DType dtype) {
  if (dtype == v1::DTYPE_FP16) return kernels::DType::kFloat16;
  return dtype == v1::DTYPE_BF16 ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

Heads HeadsOf(const std::string& layout) {
  const size_t at = layout.find('H');
  if (at == std::string::npos) return Heads::kNone;
  if (at + 2 == layout.size()) return Heads::kInside;
  return at == 0 ? Heads::kOutside : Heads::kBetween;
}

// Every order of every subset of the letters, the empty one included.
std::vector<std::string> Arrangements(const std::string& letters) {
  std::vector<std::string> result;
  for (unsigned subset = 0; subset < 1U << letters.size(); ++subset) {
    std::string chosen;
    for (size_t i = 0; i < letters.size(); ++i) {
      if ((subset >> i & 1) != 0) chosen.push_back(letters[i]);
    }
    std::sort(chosen.begin(), chosen.end());
    do {
      result.push_back(chosen);
    } while (std::next_permutation(chosen.begin(), chosen.end()));
  }
  return result;
}

}  // namespace

std::vector<std::string> LayoutsOf(bool packed, Heads heads) {
  std::vector<std::string> result;
  for (std::string letters : Arrangements(packed ? "LTH" : "LBSH")) {
    letters.push_back('D');
    if (packed == Has(letters, 'T') && HeadsOf(letters) == heads) result.push_back(letters);
  }
  return result;
}

// --- EveryChoice ---

std::vector<Width> EveryChoice::WidthsOf(Where where, bool cu_seqlens) {
  const bool scalar = where == Where::kStart || where == Where::kContextParallel;
  if (scalar && !cu_seqlens) return {Width::kInt32};  // no array, hence no width
  return {Width::kInt32, Width::kInt64, Width::kNumbers};
}

namespace {

// Context parallelism splits sequences, so the layout needs a sequence axis.
std::vector<std::string> LayoutsFor(bool packed, Heads heads, Where where) {
  std::vector<std::string> layouts = LayoutsOf(packed, heads);
  if (!packed && IsContextParallel(where)) {
    std::erase_if(layouts, [](const std::string& layout) { return !Has(layout, 'S'); });
  }
  return layouts;
}

}  // namespace

std::string EveryChoice::NextLayout(bool packed, Heads heads, const Choices& choices) {
  const std::vector<std::string> layouts = LayoutsFor(packed, heads, choices.where);
  return layouts[turns_[{packed, heads, choices.where, choices.act}]++ % layouts.size()];
}

int64_t EveryChoice::layouts_visited() const {
  int64_t visited = 0;
  for (const auto& [turns, taken] : turns_) {
    const auto& [packed, heads, where, act] = turns;
    visited += static_cast<int64_t>(std::min(taken, LayoutsFor(packed, heads, where).size()));
  }
  return visited;
}

int64_t EveryChoice::layouts() const {
  int64_t all = 0;
  for (const auto& [turns, taken] : turns_) {
    const auto& [packed, heads, where, act] = turns;
    all += static_cast<int64_t>(LayoutsFor(packed, heads, where).size());
  }
  return all;
}

// --- RequestGenerator ---

struct RequestGenerator::Shape {
  std::map<char, int64_t> length;       // of L B S T H
  std::vector<int64_t> sequences = {};  // each sequence's tokens in this tensor
  int64_t sequence_count() const { return static_cast<int64_t>(sequences.size()); }
};

struct RequestGenerator::Rotary {
  int64_t channels = 0;  // of the tensor
  int64_t head_dim = 0;  // of the config; 0: unset
  int64_t dim = 0;
  bool explicit_dim = false;
  int64_t offset = -1;  // -1: unset
};

int64_t RequestGenerator::Between(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
}

std::string RequestGenerator::Shuffled(std::string letters) {
  for (size_t i = letters.size(); i > 1; --i) {
    std::swap(letters[i - 1],
              letters[static_cast<size_t>(Between(0, static_cast<int64_t>(i) - 1))]);
  }
  return letters;
}

RequestGenerator::Shape RequestGenerator::DrawShape(const Choices& choices) {
  const int64_t step = IsContextParallel(choices.where) ? 2 : 1;  // two chunks in this tensor
  const auto tokens = [&] { return step * OneOf<int64_t>({0, 1, 1, 2, 3, 5}); };
  Shape shape;
  shape.length['L'] = OneIn(16) ? 0 : Between(1, 2);
  if (Has(choices.layout, 'T')) {
    const int64_t sequences = choices.cu_seqlens ? Between(1, 4) : 1;
    for (int64_t i = 0; i < sequences; ++i) shape.sequences.push_back(tokens());
    shape.length['T'] = std::accumulate(shape.sequences.begin(), shape.sequences.end(), int64_t{0});
    return shape;
  }
  shape.length['B'] = Has(choices.layout, 'B') ? (OneIn(16) ? 0 : Between(1, 3)) : 1;
  shape.length['S'] = Has(choices.layout, 'S') ? tokens() : 1;
  shape.sequences.assign(static_cast<size_t>(shape.length['B']), shape.length['S']);
  return shape;
}

RequestGenerator::Rotary RequestGenerator::DrawRotary(Window window) {
  Rotary rotary;
  // Lengths are mostly small. Large lengths are frequent enough to meet every choice.
  rotary.channels =
      OneIn(16) ? OneOf<int64_t>({80, 96, 112, 250, 256, 512}) : OneOf<int64_t>({6, 8, 16, 32});
  if (window == Window::kWhole && OneIn(3)) rotary.channels = 2;
  if (window != Window::kWhole && OneIn(4)) ++rotary.channels;
  rotary.dim = rotary.channels;
  if (!OneIn(4)) rotary.head_dim = rotary.channels;
  if (window == Window::kWhole) return rotary;
  rotary.dim = 2 * Between(2, rotary.channels / 2 - 1);
  rotary.explicit_dim = true;
  const int64_t rest = rotary.channels - rotary.dim;
  switch (window) {
    case Window::kWhole:
      break;
    case Window::kLeading:
      if (OneIn(4)) rotary.offset = 0;
      break;
    case Window::kTrailing:
      rotary.offset = rest;
      break;
    case Window::kMiddle:
      rotary.offset = Between(1, rest - 1);
      break;
    case Window::kWiderHead:
      rotary.offset = Between(0, rest);
      rotary.head_dim = Between(rotary.dim, rotary.channels - 1);
      if (rotary.head_dim == rotary.dim && OneIn(2)) rotary.explicit_dim = false;
      break;
  }
  return rotary;
}

void RequestGenerator::DrawFrequencies(Where where, int64_t rotary_dim, v1::RopeConfig& config) {
  config.set_rope_theta(OneOf<double>({10000, 500000, 1000000, 150.5}));
  switch (Between(0, where == Where::kAxial ? 1 : 3)) {
    case 0:
      if (OneIn(2)) config.set_rope_type("default");
      break;
    case 1:
      config.set_rope_type("linear");
      config.set_factor(OneOf<double>({4, 8, 0.75}));
      break;
    case 2:
      if (rotary_dim < 4) break;
      config.set_rope_type("dynamic");
      config.set_factor(OneOf<double>({2, 4.5}));
      config.set_max_position_embeddings(OneOf<int64_t>({4, 4096}));
      if (OneIn(4)) config.set_seq_len_policy(v1::SEQ_LEN_POLICY_BATCH);
      break;
    default:
      config.set_attention_factor(OneOf<double>({1, 0.25, 1.1386, 3}));
      if (OneIn(2)) config.mutable_inv_freq()->set_dtype(v1::DTYPE_FP32);
      for (int64_t i = 0; i < rotary_dim / 2; ++i) {
        config.mutable_inv_freq()->add_numbers(
            i > 0 && 4 * i > 3 * rotary_dim / 2
                ? 0
                : std::ldexp(static_cast<double>(Between(1, 1 << 30)),
                             -static_cast<int>(Between(30, 50))));
      }
      break;
  }
}

void RequestGenerator::DrawSections(Where where, int64_t pairs, v1::RopeConfig& config) {
  const int64_t h = Between(0, where == Where::kErnie ? pairs / 2 : pairs);
  const int64_t w = where == Where::kErnie ? h : Between(0, pairs - h);
  for (const int64_t count : {pairs - h - w, h, w}) config.add_mrope_section(count);
  switch (where) {
    case Where::kInterleaved:
      if (OneIn(2)) {
        config.set_mrope_interleaved(true);
      } else {
        config.set_mrope_layout(v1::MROPE_LAYOUT_INTERLEAVED);
      }
      break;
    case Where::kErnie:
      config.set_mrope_layout(v1::MROPE_LAYOUT_HW_INTERLEAVED);
      break;
    case Where::kAxial:
      config.set_mrope_layout(v1::MROPE_LAYOUT_AXIAL);
      break;
    default:
      if (OneIn(2)) config.set_mrope_layout(v1::MROPE_LAYOUT_SECTIONS);
      break;
  }
}

v1::RopeConfig RequestGenerator::DrawConfig(Where where, const Rotary& rotary) {
  v1::RopeConfig config;
  if (rotary.head_dim > 0) config.set_head_dim(rotary.head_dim);
  if (rotary.offset >= 0) config.set_rotary_offset(rotary.offset);
  if (rotary.explicit_dim) config.set_rotary_dim(rotary.dim);
  DrawFrequencies(where, rotary.dim, config);
  // One position may also serve all three axes.
  const bool plain_on_sections = where != Where::kIds && OneIn(8);
  if (HasThreeRows(where) || plain_on_sections) DrawSections(where, rotary.dim / 2, config);
  return config;
}

void RequestGenerator::SetIntegers(const std::vector<int64_t>& values,
                                   const std::vector<int64_t>& shape, Width width,
                                   v1::Array& array) {
  SetShape(array, shape);
  if (width == Width::kNumbers) {
    array.mutable_numbers()->Assign(values.begin(), values.end());
    if (OneIn(2)) array.set_dtype(OneIn(2) ? v1::DTYPE_INT32 : v1::DTYPE_INT64);
  } else if (width == Width::kInt64) {
    array.set_dtype(v1::DTYPE_INT64);
    if (!values.empty()) array.set_raw(RawBytes(values));
  } else {
    array.set_dtype(v1::DTYPE_INT32);
    if (!values.empty())
      array.set_raw(RawBytes(std::vector<int32_t>(values.begin(), values.end())));
  }
}

void RequestGenerator::DrawIds(const Choices& choices, const Shape& shape, int64_t most,
                               v1::Array& array) {
  const bool three = HasThreeRows(choices.where);
  std::vector<int64_t> lengths;
  if (three) lengths.push_back(3);
  if (Has(choices.layout, 'T')) {
    lengths.push_back(shape.length.at('T'));
  } else {
    const int64_t batch = shape.length.at('B');
    // [3, S] could be three axes or three sequences; the server rejects it.
    if ((three && batch == 3) || OneIn(2)) lengths.push_back(batch);
    lengths.push_back(shape.length.at('S'));
  }
  int64_t count = 1;
  for (const int64_t length : lengths) count *= length;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(Between(0, most));
  SetIntegers(ids, lengths, choices.width, array);
}

v1::Positions RequestGenerator::DrawPositions(const Choices& choices, const Shape& shape) {
  v1::Positions positions;
  const bool parallel = IsContextParallel(choices.where);
  const int64_t ranks = parallel ? Between(1, 4) : 1;
  const int64_t longest = shape.sequences.empty()
                              ? 0
                              : *std::max_element(shape.sequences.begin(), shape.sequences.end());
  const int64_t most = OneOf<int64_t>({8, 300, 100000, kPositionMax - 2 * ranks * longest});
  if (parallel) {
    positions.set_cp_size(static_cast<int32_t>(ranks));
    positions.set_cp_rank(static_cast<int32_t>(Between(0, ranks - 1)));
  }
  if (choices.cu_seqlens) {
    std::vector<int64_t> offsets = {0};
    for (const int64_t length : shape.sequences) offsets.push_back(offsets.back() + length);
    SetIntegers(offsets, {static_cast<int64_t>(offsets.size())}, choices.width,
                *positions.mutable_cu_seqlens());
  }
  if (choices.where == Where::kStart || choices.where == Where::kContextParallel) {
    positions.set_start(Between(0, most));
  } else if (choices.where == Where::kStarts || choices.where == Where::kContextParallelStarts) {
    std::vector<int64_t> starts;
    for (size_t i = 0; i < shape.sequences.size(); ++i) starts.push_back(Between(0, most));
    SetIntegers(starts, {shape.sequence_count()}, choices.width, *positions.mutable_starts());
  } else {
    DrawIds(choices, shape, most, *positions.mutable_position_ids());
  }
  if (OneIn(4)) {
    const int64_t lengths = OneIn(2) ? 1 : shape.sequence_count();
    for (int64_t i = 0; i < lengths; ++i) positions.add_seq_lens(Between(1, 100000));
  }
  return positions;
}

// The tensors' current positions may have another form than their target positions.
void RequestGenerator::DrawReposition(const Choices& choices, const Shape& shape,
                                      const Rotary& rotary, v1::RotateRequest& request) {
  request.set_operation(v1::OPERATION_REPOSITION);
  Choices from = choices;
  std::vector<Where> ways = {choices.where, Where::kStart, Where::kStarts};
  if (!HasThreeRows(choices.where) && request.rope().config().mrope_section_size() == 0) {
    ways.push_back(Where::kIds);
  }
  from.where = OneOf(ways);
  *request.mutable_reposition()->mutable_from() = DrawPositions(from, shape);
  if (choices.act == Act::kReposition && OneIn(2)) return;
  v1::RopeSpec& rope = *request.mutable_reposition()->mutable_from_rope();
  rope = request.rope();
  if (choices.act == Act::kRepositionAcross)
    *rope.mutable_config() = DrawConfig(from.where, rotary);
}

void RequestGenerator::DrawHeads(int64_t heads, v1::Tensor& tensor) {
  tensor.set_role(OneIn(2) ? v1::ROLE_Q : v1::ROLE_K);
  if (!OneIn(4)) return;
  tensor.clear_role();
  int64_t next = 0;
  for (const v1::Role role : {v1::ROLE_Q, v1::ROLE_K, v1::ROLE_UNSPECIFIED}) {
    if (OneIn(4)) continue;
    v1::HeadRange& range = *tensor.add_head_ranges();
    range.set_role(role);
    range.set_begin(Between(next, heads));
    range.set_end(Between(range.begin(), heads));
    next = range.end();
  }
  if (tensor.head_ranges_size() == 0) tensor.set_role(v1::ROLE_Q);
}

// Axes in any order, with gaps. A layer axis may repeat one layer (stride 0).
std::vector<int64_t> RequestGenerator::DrawStrides(const v1::Tensor& tensor) {
  const std::string& layout = tensor.layout();
  std::string order = Shuffled(layout.substr(0, layout.size() - 1));
  order.insert(OneIn(8) ? order.begin() : order.end(), 'D');
  std::vector<int64_t> strides(layout.size());
  int64_t next = 1;
  for (size_t i = order.size(); i-- > 0;) {
    const size_t axis = layout.find(order[i]);
    strides[axis] = next;
    next = next * std::max<int64_t>(tensor.array().shape(static_cast<int>(axis)), 1) +
           (OneIn(3) ? Between(1, 5) : 0);
  }
  const size_t layer = layout.find('L');
  if (layer != std::string::npos && OneIn(8)) strides[layer] = 0;
  return strides;
}

// Multiples of 1/32, which every dtype represents exactly.
void RequestGenerator::DrawElements(int64_t count, v1::Array& array) {
  if (count == 0) return;
  if (count < 1000 && OneIn(8)) {
    for (int64_t i = 0; i < count; ++i) {
      array.add_numbers(static_cast<double>(Between(-96, 96)) / 32);
    }
    return;
  }
  const kernels::DType dtype = KernelDType(array.dtype());
  const auto bytes = static_cast<size_t>(kernels::ElementBytes(dtype));
  std::string& raw = *array.mutable_raw();
  raw.resize(static_cast<size_t>(count) * bytes);
  for (size_t i = 0; i < raw.size(); i += bytes) {
    kernels::WriteElement(static_cast<double>(Between(-96, 96)) / 32, dtype,
                          reinterpret_cast<uint8_t*>(raw.data()) + i);
  }
}

void RequestGenerator::DrawTensor(const std::string& layout, v1::DType dtype, Shape shape,
                                  const Rotary& rotary, bool own_window, v1::Tensor& tensor) {
  int64_t channels = rotary.channels;
  if (own_window) {
    channels = Between(rotary.dim, rotary.channels + 5);
    tensor.set_rotary_offset(Between(0, channels - rotary.dim));
  }
  const int64_t heads = OneIn(64) ? 71 : OneOf<int64_t>({1, 1, 2, 3});
  shape.length['H'] = heads;
  shape.length['D'] = channels;
  tensor.set_layout(layout);
  v1::Array& array = *tensor.mutable_array();
  array.set_dtype(dtype);
  int64_t count = 1;
  for (const char letter : layout) {
    array.add_shape(shape.length.at(letter));
    count *= shape.length.at(letter);
  }
  DrawHeads(Has(layout, 'H') ? heads : 1, tensor);
  if (OneIn(3)) {
    const std::vector<int64_t> strides = DrawStrides(tensor);
    array.mutable_strides()->Assign(strides.begin(), strides.end());
    int64_t extent = 1;
    for (size_t i = 0; i < strides.size(); ++i) {
      extent += (array.shape(static_cast<int>(i)) - 1) * strides[i];
    }
    if (count > 0) count = extent;
  }
  DrawElements(count, array);
}

v1::RotateRequest RequestGenerator::Make(const Choices& choices) {
  const Shape shape = DrawShape(choices);
  const Rotary rotary = DrawRotary(choices.window);
  v1::RotateRequest request;
  request.mutable_rope()->set_pairing(choices.pairing);
  *request.mutable_rope()->mutable_config() = DrawConfig(choices.where, rotary);
  *request.mutable_positions() = DrawPositions(choices, shape);
  request.set_skip_attention_factor(OneIn(4));
  switch (choices.act) {
    case Act::kRotate:
      if (OneIn(2)) request.set_operation(v1::OPERATION_ROTATE);
      break;
    case Act::kInverse:
      request.set_operation(v1::OPERATION_INVERSE);
      break;
    case Act::kBackward:
      request.set_operation(v1::OPERATION_BACKWARD);
      break;
    case Act::kReposition:
    case Act::kRepositionAcross:
      DrawReposition(choices, shape, rotary, request);
      break;
  }
  // A config without head_dim takes that of tensors[0], which then has no window of its own.
  DrawTensor(choices.layout, choices.dtype, shape, rotary, rotary.head_dim > 0 && OneIn(8),
             *request.add_tensors());
  std::string token_axes = choices.layout;
  std::erase_if(token_axes, [](char letter) { return letter == 'H' || letter == 'D'; });
  for (int64_t more = OneIn(3) ? Between(1, 2) : 0; more > 0; --more) {
    std::string layout = token_axes + "D";
    if (!OneIn(4)) {
      layout.insert(layout.begin() + Between(0, static_cast<int64_t>(token_axes.size())), 'H');
    }
    DrawTensor(layout, OneOf<v1::DType>({v1::DTYPE_FP32, v1::DTYPE_FP16, v1::DTYPE_BF16}), shape,
               rotary, OneIn(4), *request.add_tensors());
  }
  if (!OneIn(3)) return request;
  for (const v1::Tensor& tensor : request.tensors()) {
    const std::string& layout = tensor.layout();
    request.mutable_output()->add_layouts(
        OneIn(4) ? "" : Shuffled(layout.substr(0, layout.size() - 1)) + "D");
  }
  return request;
}

}  // namespace rope::testing
