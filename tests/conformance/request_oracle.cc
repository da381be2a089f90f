#include "tests/conformance/request_oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <string_view>

#include "tests/conformance/rotation.h"

namespace rope::testing {
namespace {

using kernels::DType;

// An index along each axis of the layout.
struct Index {
  std::array<int64_t, 5> along = {};  // of LBSTH
  int64_t& Of(char letter) { return along[std::string_view("LBSTH").find(letter)]; }
  int64_t Of(char letter) const { return along[std::string_view("LBSTH").find(letter)]; }
};

// --- Arrays ---

template <typename T>
std::vector<int64_t> FromRaw(const std::string& raw) {
  std::vector<T> values(raw.size() / sizeof(T));
  if (!raw.empty()) std::memcpy(values.data(), raw.data(), raw.size());
  return {values.begin(), values.end()};
}

std::vector<int64_t> Integers(const v1::Array& array) {
  if (array.raw().empty()) return {array.numbers().begin(), array.numbers().end()};
  return array.dtype() == v1::DTYPE_INT32 ? FromRaw<int32_t>(array.raw())
                                          : FromRaw<int64_t>(array.raw());
}

DType DTypeOf(const v1::Array& array) {
  if (array.dtype() == v1::DTYPE_FP16) return DType::kFloat16;
  return array.dtype() == v1::DTYPE_BF16 ? DType::kBFloat16 : DType::kFloat32;
}

std::vector<double> Elements(const v1::Array& array) {
  std::vector<double> values(array.numbers().begin(), array.numbers().end());
  const DType dtype = DTypeOf(array);
  const auto bytes = static_cast<size_t>(kernels::ElementBytes(dtype));
  const auto* const raw = reinterpret_cast<const uint8_t*>(array.raw().data());
  for (size_t i = 0; i < array.raw().size(); i += bytes) {
    values.push_back(ReadElement(raw + i, dtype));
  }
  return values;
}

// --- Axes ---

int64_t LengthOf(const v1::Tensor& tensor, char letter) {
  const size_t axis = tensor.layout().find(letter);
  return axis == std::string::npos ? 1 : tensor.array().shape(static_cast<int>(axis));
}

bool Has(const v1::Tensor& tensor, char letter) {
  return tensor.layout().find(letter) != std::string::npos;
}

// Visits every token: all axes except H and D, the last axis fastest.
std::vector<Index> TokensOf(const v1::Tensor& tensor) {
  std::vector<Index> tokens = {Index()};
  for (const char letter : tensor.layout()) {
    if (letter == 'H' || letter == 'D') continue;
    std::vector<Index> longer;
    for (const Index& token : tokens) {
      for (int64_t i = 0; i < LengthOf(tensor, letter); ++i) {
        longer.push_back(token);
        longer.back().Of(letter) = i;
      }
    }
    tokens = longer;
  }
  return tokens;
}

// Strides of a packed tensor along each axis.
std::vector<int64_t> PackedStrides(const v1::Tensor& tensor, const std::string& letters) {
  std::vector<int64_t> strides(letters.size(), 1);
  for (size_t axis = letters.size() - 1; axis-- > 0;) {
    strides[axis] = strides[axis + 1] * LengthOf(tensor, letters[axis + 1]);
  }
  return strides;
}

// The offset of channel 0.
int64_t Offset(const Index& at, const std::string& letters, const std::vector<int64_t>& strides) {
  int64_t offset = 0;
  for (size_t axis = 0; axis + 1 < letters.size(); ++axis) {
    offset += at.Of(letters[axis]) * strides[axis];
  }
  return offset;
}

// --- An embedding ---

int64_t RotaryDim(const v1::RopeConfig& config, int64_t channels) {
  if (config.has_rotary_dim()) return config.rotary_dim();
  const int64_t head_dim = config.has_head_dim() ? config.head_dim() : channels;
  const double fraction = config.has_partial_rotary_factor() ? config.partial_rotary_factor() : 1.0;
  return static_cast<int64_t>(static_cast<double>(head_dim) * fraction);
}

bool IsAxial(const v1::RopeConfig& config) {
  return config.mrope_layout() == v1::MROPE_LAYOUT_AXIAL;
}

// The axis (t, h or w) of each frequency.
std::vector<size_t> AxesOf(const v1::RopeConfig& config, int64_t pairs) {
  std::vector<size_t> axes;
  if (config.mrope_section_size() == 0) return std::vector<size_t>(static_cast<size_t>(pairs), 0);
  std::array<int64_t, 3> left = {config.mrope_section(0), config.mrope_section(1),
                                 config.mrope_section(2)};
  const bool in_turn =
      config.mrope_interleaved() || config.mrope_layout() == v1::MROPE_LAYOUT_INTERLEAVED;
  const bool ernie = config.mrope_layout() == v1::MROPE_LAYOUT_HW_INTERLEAVED;
  for (int64_t i = 0; i < pairs; ++i) {
    size_t axis = 0;
    if (in_turn) {
      axis = static_cast<size_t>(i % 3);
      if (axis > 0 && left[axis] == 0) axis = 0;
    } else if (ernie) {
      axis = left[1] == 0 && left[2] == 0 ? 0 : static_cast<size_t>(1 + i % 2);
    } else {
      while (left[axis] == 0) ++axis;
    }
    --left[axis];
    axes.push_back(axis);
  }
  return axes;
}

// llama3: frequencies that turn often over the original length are kept; slow ones are divided.
void ScaleLlama3(const v1::RopeConfig& config, std::vector<long double>& frequencies) {
  const auto length = static_cast<long double>(config.original_max_position_embeddings());
  const long double low = config.low_freq_factor();
  const long double high = config.high_freq_factor();
  for (long double& w : frequencies) {
    const long double turns = length * w / (2 * std::numbers::pi_v<long double>);
    const long double kept = std::clamp((turns - low) / (high - low), 0.0L, 1.0L);
    w = kept * w + (1 - kept) * w / config.factor();
  }
}

// Radians for each position.
std::vector<long double> InverseFrequencies(const v1::RopeConfig& config, int64_t rotary_dim,
                                            int64_t length) {
  std::vector<long double> result(config.inv_freq().numbers().begin(),
                                  config.inv_freq().numbers().end());
  if (config.inv_freq().dtype() == v1::DTYPE_FP32) {
    for (long double& number : result) number = static_cast<float>(number);
  }
  if (config.has_inv_freq()) return result;
  const auto dim = static_cast<long double>(rotary_dim);
  long double theta = config.has_rope_theta() ? config.rope_theta() : 10000;
  if (config.rope_type() == "dynamic" && length > config.max_position_embeddings()) {
    const long double factor = config.factor();
    const long double ratio = static_cast<long double>(length) /
                              static_cast<long double>(config.max_position_embeddings());
    theta *= std::pow(factor * ratio - (factor - 1), dim / (dim - 2));
  }
  const auto add = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const long double exponent = -static_cast<long double>(i) / static_cast<long double>(count);
      result.push_back(std::pow(theta, exponent) /
                       (config.rope_type() == "linear" ? config.factor() : 1));
    }
  };
  if (IsAxial(config)) {
    for (const int64_t count : config.mrope_section()) add(count);
  } else {
    add(rotary_dim / 2);
  }
  if (config.rope_type() == "llama3") ScaleLlama3(config, result);
  return result;
}

// --- Positions of tokens ---

struct Token {
  int64_t sequence = 0;
  std::array<int64_t, 3> position = {};  // t, h, w
};

struct Standing {
  std::vector<Token> tokens;
  std::vector<int64_t> lengths;  // of each sequence, as dynamic uses them
};

// Splits the local part of each sequence into tokens (the sequence's number, the index within it).
class Sequences {
 public:
  Sequences(const v1::Positions& positions, const v1::Tensor& tensor) : packed_(Has(tensor, 'T')) {
    if (packed_) {
      offsets_ = Integers(positions.cu_seqlens());
      if (offsets_.empty()) offsets_ = {0, LengthOf(tensor, 'T')};
      for (size_t i = 1; i < offsets_.size(); ++i) here.push_back(offsets_[i] - offsets_[i - 1]);
    } else {
      here.assign(static_cast<size_t>(LengthOf(tensor, 'B')), LengthOf(tensor, 'S'));
    }
  }
  int64_t Of(const Index& at) const {
    if (!packed_) return at.Of('B');
    int64_t sequence = 0;
    while (offsets_[static_cast<size_t>(sequence) + 1] <= at.Of('T')) ++sequence;
    return sequence;
  }
  int64_t Within(const Index& at) const {
    return packed_ ? at.Of('T') - offsets_[static_cast<size_t>(Of(at))] : at.Of('S');
  }

  std::vector<int64_t> here;  // local tokens of each sequence

 private:
  bool packed_;
  std::vector<int64_t> offsets_;
};

// Indices in the whole sequence: rank r of n holds the chunks r and 2n - 1 - r.
int64_t IndexInWhole(const v1::Positions& positions, int64_t within, int64_t here) {
  if (!positions.has_cp_size()) return within;
  const int64_t chunk = here / 2;
  const bool second = within >= chunk && positions.cp_size() > 1;
  if (positions.cp_size() == 1) return within;
  const int64_t number =
      second ? 2 * positions.cp_size() - 1 - positions.cp_rank() : positions.cp_rank();
  return number * chunk + within - (second ? chunk : 0);
}

// position_ids: [S], [B, S] or [T], with or without a leading axis of 3.
std::array<int64_t, 3> PositionFromIds(const v1::Array& array, const std::vector<int64_t>& ids,
                                       const v1::Tensor& tensor, const Index& at, bool three_axes) {
  const bool packed = Has(tensor, 'T');
  const int64_t axes = three_axes ? 3 : 1;
  const int64_t inner = packed ? LengthOf(tensor, 'T') : LengthOf(tensor, 'S');
  const bool by_batch = !packed && array.shape_size() == (three_axes ? 3 : 2);
  const int64_t rows = by_batch ? LengthOf(tensor, 'B') : 1;
  const int64_t within = (by_batch ? at.Of('B') * inner : 0) + (packed ? at.Of('T') : at.Of('S'));
  std::array<int64_t, 3> position = {};
  for (int64_t axis = 0; axis < 3; ++axis) {
    const int64_t taken = std::min(axis, axes - 1);
    position[static_cast<size_t>(axis)] = ids[static_cast<size_t>(taken * rows * inner + within)];
  }
  return position;
}

// Forms with a leading axis of 3 have 3 times as many numbers as the plain forms.
bool HasThreeAxes(const v1::RopeConfig& config, const v1::Positions& positions,
                  const v1::Tensor& tensor) {
  if (config.mrope_section_size() == 0 || !positions.has_position_ids()) return false;
  const v1::Array& ids = positions.position_ids();
  if (ids.shape_size() == 0 || ids.shape(0) != 3) return false;
  return Has(tensor, 'T')
             ? ids.shape_size() == 2
             : ids.shape_size() == 3 || (ids.shape_size() == 2 && LengthOf(tensor, 'B') != 3);
}

std::vector<int64_t> LengthsOf(const v1::RopeConfig& config, const v1::Positions& positions,
                               const std::vector<int64_t>& here, const std::vector<int64_t>& starts,
                               const std::vector<Token>& tokens) {
  std::vector<int64_t> lengths(here.size(), 1);
  if (positions.seq_lens_size() == 1) {
    lengths.assign(here.size(), positions.seq_lens(0));
  } else if (positions.seq_lens_size() > 1) {
    lengths.assign(positions.seq_lens().begin(), positions.seq_lens().end());
  } else {
    for (const Token& token : tokens) {
      for (const int64_t position : token.position) {
        int64_t& length = lengths[static_cast<size_t>(token.sequence)];
        length = std::max(length, position + 1);
      }
    }
    for (size_t i = 0; positions.cp_size() > 1 && i < here.size(); ++i) {
      lengths[i] = std::max<int64_t>(1, starts[i] + here[i] * positions.cp_size());
    }
  }
  if (config.seq_len_policy() == v1::SEQ_LEN_POLICY_BATCH && !lengths.empty()) {
    lengths.assign(lengths.size(), *std::max_element(lengths.begin(), lengths.end()));
  }
  return lengths;
}

Standing Stand(const v1::RopeConfig& config, const v1::Positions& positions,
               const v1::Tensor& tensor) {
  const Sequences sequences(positions, tensor);
  std::vector<int64_t> starts(sequences.here.size(), positions.start());
  if (positions.has_starts()) starts = Integers(positions.starts());
  const std::vector<int64_t> ids = Integers(positions.position_ids());
  const bool three_axes = HasThreeAxes(config, positions, tensor);
  Standing result;
  for (const Index& at : TokensOf(tensor)) {
    Token& token = result.tokens.emplace_back();
    token.sequence = sequences.Of(at);
    const auto sequence = static_cast<size_t>(token.sequence);
    if (positions.has_position_ids()) {
      token.position = PositionFromIds(positions.position_ids(), ids, tensor, at, three_axes);
    } else {
      token.position.fill(starts[sequence] +
                          IndexInWhole(positions, sequences.Within(at), sequences.here[sequence]));
    }
  }
  result.lengths = LengthsOf(config, positions, sequences.here, starts, result.tokens);
  return result;
}

// The angle of every pair of every token.
std::vector<std::vector<long double>> AnglesOf(const v1::RopeConfig& config,
                                               const v1::Positions& positions,
                                               const v1::Tensor& tensor) {
  const int64_t rotary_dim =
      RotaryDim(config, tensor.array().shape().Get(tensor.array().shape_size() - 1));
  const std::vector<size_t> axes = AxesOf(config, rotary_dim / 2);
  const Standing standing = Stand(config, positions, tensor);
  std::vector<std::vector<long double>> frequencies;
  for (const int64_t length : standing.lengths) {
    frequencies.push_back(InverseFrequencies(config, rotary_dim, length));
  }
  std::vector<std::vector<long double>> angles;
  for (const Token& token : standing.tokens) {
    const std::vector<long double>& w = frequencies[static_cast<size_t>(token.sequence)];
    std::vector<long double>& of_token = angles.emplace_back();
    for (size_t pair = 0; pair < w.size(); ++pair) {
      of_token.push_back(static_cast<long double>(token.position[axes[pair]]) * w[pair]);
    }
  }
  return angles;
}

// --- The rotation ---

struct Turn {
  std::vector<std::vector<std::array<double, 2>>> rows;  // cos and sin by token and pair
  double scale = 1;                                      // the factor that the rows contain
  std::array<int64_t, 2> window = {};                    // first channel, and one past the last
  bool interleaved = false;
};

double FactorOf(const v1::RopeConfig& config) {
  return config.has_attention_factor() ? config.attention_factor() : 1;
}

Turn TurnOf(const v1::RotateRequest& request) {
  const v1::RopeConfig& config = request.rope().config();
  const v1::Tensor& first = request.tensors(0);
  std::vector<std::vector<long double>> angles = AnglesOf(config, request.positions(), first);
  Turn turn;
  turn.scale = FactorOf(config);
  bool back = false;
  if (request.operation() == v1::OPERATION_INVERSE) {
    back = true;
    turn.scale = 1 / turn.scale;
  } else if (request.operation() == v1::OPERATION_BACKWARD) {
    back = true;
  } else if (request.operation() == v1::OPERATION_REPOSITION) {
    const v1::RopeConfig& from =
        request.reposition().has_from_rope() ? request.reposition().from_rope().config() : config;
    const auto before = AnglesOf(from, request.reposition().from(), first);
    for (size_t token = 0; token < angles.size(); ++token) {
      for (size_t pair = 0; pair < angles[token].size(); ++pair) {
        angles[token][pair] -= before[token][pair];
      }
    }
    turn.scale /= FactorOf(from);
  }
  if (request.skip_attention_factor()) turn.scale = 1;
  for (const std::vector<long double>& of_token : angles) {
    std::vector<std::array<double, 2>>& row = turn.rows.emplace_back();
    for (const long double angle : of_token) {
      row.push_back({static_cast<double>(turn.scale * std::cos(angle)),
                     static_cast<double>(turn.scale * std::sin(back ? -angle : angle))});
    }
  }
  const int64_t channels = LengthOf(first, 'D');
  turn.window[0] = config.rotary_offset();
  turn.window[1] = config.rotary_offset() + RotaryDim(config, channels);
  turn.interleaved = request.rope().pairing() == v1::PAIRING_INTERLEAVED;
  return turn;
}

bool Rotates(const v1::Tensor& tensor, int64_t head) {
  if (tensor.head_ranges_size() == 0) return true;
  for (const v1::HeadRange& range : tensor.head_ranges()) {
    if (range.begin() <= head && head < range.end()) return range.role() != v1::ROLE_UNSPECIFIED;
  }
  return false;
}

// Rotates the head whose channels are `in`; `begin` is the first rotated one.
void TurnHead(const Turn& turn, const std::vector<std::array<double, 2>>& row, size_t begin,
              DType dtype, const std::vector<double>& in, double* out, double* tolerances) {
  const size_t pairs = row.size();
  for (size_t pair = 0; pair < pairs; ++pair) {
    const size_t first = begin + (turn.interleaved ? 2 * pair : pair);
    const size_t second = turn.interleaved ? first + 1 : first + pairs;
    const double a = in[first];
    const double b = in[second];
    out[first] = a * row[pair][0] - b * row[pair][1];
    out[second] = b * row[pair][0] + a * row[pair][1];
    for (const size_t channel : {first, second}) {
      tolerances[channel] = Tolerance(out[channel], a, b, turn.scale, dtype);
    }
  }
}

ExactTensor TensorOf(const v1::Tensor& tensor, const std::string& output_letters,
                     const Turn& turn) {
  const std::vector<double> elements = Elements(tensor.array());
  const auto begin =
      static_cast<size_t>(tensor.has_rotary_offset() ? tensor.rotary_offset() : turn.window[0]);
  const std::string& letters = tensor.layout();
  const std::string& answer_letters = output_letters.empty() ? letters : output_letters;
  std::vector<int64_t> strides = PackedStrides(tensor, letters);
  if (tensor.array().strides_size() > 0) {
    strides.assign(tensor.array().strides().begin(), tensor.array().strides().end());
  }
  const std::vector<int64_t> answer_strides = PackedStrides(tensor, answer_letters);
  int64_t count = 1;
  for (const int64_t length : tensor.array().shape()) count *= length;
  ExactTensor exact;
  exact.dtype = DTypeOf(tensor.array());
  exact.values.resize(static_cast<size_t>(count));
  exact.tolerances.resize(static_cast<size_t>(count));
  std::vector<double> head(static_cast<size_t>(LengthOf(tensor, 'D')));
  const std::vector<Index> tokens = TokensOf(tensor);
  for (size_t token = 0; token < tokens.size(); ++token) {
    Index at = tokens[token];
    for (at.Of('H') = 0; at.Of('H') < LengthOf(tensor, 'H'); ++at.Of('H')) {
      const int64_t from = Offset(at, letters, strides);
      for (size_t d = 0; d < head.size(); ++d) {
        head[d] = elements[static_cast<size_t>(from + static_cast<int64_t>(d) * strides.back())];
      }
      const int64_t to = Offset(at, answer_letters, answer_strides);
      double* const out = exact.values.data() + to;
      std::copy(head.begin(), head.end(), out);
      if (Rotates(tensor, at.Of('H'))) {
        TurnHead(turn, turn.rows[token], begin, exact.dtype, head, out,
                 exact.tolerances.data() + to);
      }
    }
  }
  return exact;
}

}  // namespace

std::vector<ExactTensor> ExactAnswer(const v1::RotateRequest& request) {
  const Turn turn = TurnOf(request);
  std::vector<ExactTensor> result;
  for (int i = 0; i < request.tensors_size(); ++i) {
    const std::string letters =
        request.output().layouts_size() > 0 ? request.output().layouts(i) : "";
    result.push_back(TensorOf(request.tensors(i), letters, turn));
  }
  return result;
}

}  // namespace rope::testing
