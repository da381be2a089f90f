#include "kernels/identity/key_identity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "kernels/compat/engine_table.h"
#include "kernels/compat/model_family.h"
#include "kernels/config/rope_config.h"
#include "kernels/error.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

// Raise the number when the text changes: fingerprints of before then match nothing.
constexpr std::string_view kFingerprintFormat = "rope.v1/k_fingerprint/2\n";

constexpr int64_t kColumnsMax = int64_t{1} << 16;

// The rows of some layers, and their text.
struct Rows {
  KeyRows rows;
  std::string text;
};

// Without a format: the shortest text that reads as the same number.
template <typename... Format>
std::string NumberText(double number, Format... format) {
  std::array<char, 32> digits;
  char* const begin = digits.data();
  return {begin, std::to_chars(begin, begin + digits.size(), number, format...).ptr};
}

std::string Hex(double number) {
  return NumberText(number + 0, std::chars_format::hex);  // adding 0 turns -0 into 0
}

// 64 bits each as the sum of two doubles: to_chars writes a long double differently by processor.
std::string Hex(const std::vector<InverseFrequency>& numbers) {
  return absl::StrJoin(numbers, ",", [](std::string* out, InverseFrequency number) {
    const auto high = static_cast<double>(number);
    out->append(StrCat(Hex(high), "+", Hex(static_cast<double>(number - high))));
  });
}

std::string_view NameOf(std::optional<Pairing> pairing, std::string_view unset = "not said") {
  return pairing.has_value() ? std::string_view(Name(*pairing)) : unset;
}

// Reads layers as one engine does, and collects the different rows.
class KeyReader {
 public:
  KeyReader(const KeyOptions& options, IdentifiedKey& key) : options_(options), key_(key) {}

  // Returns the index of the layer's rows among the different ones.
  absl::StatusOr<int32_t> Add(const LayerConfig& layer) {
    ROPE_ASSIGN_OR_RETURN(Rows rows, Read(layer));
    for (size_t i = 0; i < different_.size(); ++i) {
      if (different_[i].text == rows.text) return static_cast<int32_t>(i);
    }
    if (different_.size() == kLayerTypesMax) {
      return InvalidField("rope", "layers with more different rows",
                          StrCat("at most ", kLayerTypesMax));
    }
    different_.push_back(std::move(rows));
    return static_cast<int32_t>(different_.size() - 1);
  }

  // Completes the key, which has the layers or their types. REQUIRES: all layers are read.
  void Complete() {
    KeyIdentity& identity = key_.identity;
    identity.engine = options_.engine.engine;
    if (options_.dtype.has_value()) identity.dtype = std::string(Name(*options_.dtype));
    identity.table_dtype = exact() || KeepsFloat32Tables(identity.engine) ? "fp32" : identity.dtype;
    if (different_.size() == 1) {
      identity.layers.clear();
      identity.layer_types.clear();
    }
    key_.text =
        StrCat(kFingerprintFormat, "engine=", identity.engine, "\ndtype=", identity.dtype, "\n");
    for (size_t i = 0; i < different_.size(); ++i) {
      key_.text += StrCat("rows ", i, "\n", std::exchange(different_[i].text, {}));
      identity.rows.push_back(std::move(different_[i].rows));
    }
    key_.text += StrCat("layers=", absl::StrJoin(identity.layers, ","), "\n");
    for (const std::string& type : identity.layer_types) {  // may hold any byte
      key_.text += StrCat("type=", type.size(), ":", type, "\n");
    }
  }

 private:
  bool exact() const { return options_.engine.engine.empty(); }

  absl::StatusOr<Rows> Read(const LayerConfig& layer) {
    Rows read;
    if (!layer.rotates) {
      read.text = "still\n";
      return read;
    }
    ROPE_RETURN_IF_ERROR(Validate(layer.config, options_.head_dim));
    ROPE_ASSIGN_OR_RETURN(const RopeConfig config, ConfigOf(layer));
    ROPE_ASSIGN_OR_RETURN(const auto rope, Resolve(config, options_.head_dim));
    const bool two_lists =
        rope->config().rope_type == RopeType::kLongrope && rope->DependsOnSeqLen();
    columns_ += rope->rotary_dim() / (two_lists ? 1 : 2);
    if (columns_ > kColumnsMax) {
      return InvalidField("rope", StrCat("layers with ", columns_, " different columns"),
                          StrCat("at most ", kColumnsMax));
    }
    AddShape(layer, *rope, read);
    AddFrequencies(*rope, read);
    return read;
  }

  // The config as the engine reads it.
  absl::StatusOr<RopeConfig> ConfigOf(const LayerConfig& layer) {
    if (exact()) return layer.config;
    ROPE_ASSIGN_OR_RETURN(EngineConfig engine, ReadAs(layer.config, options_.engine, layer.names,
                                                      options_.max_model_len));
    RopeConfig& config = engine.read.config;
    const bool by_context =
        config.longrope_branch.has_value() && !layer.config.longrope_branch.has_value();
    if (by_context && !options_.max_model_len.has_value()) {
      return InvalidField("max_model_len", "nothing",
                          StrCat("the length that ", engine.who,
                                 " is started with: it chooses longrope's list by it"));
    }
    key_.identity.version = engine.versions;
    std::vector<std::string>& notes = key_.identity.notes;
    for (std::string& change : engine.read.changes) {
      if (!absl::c_linear_search(notes, change)) notes.push_back(std::move(change));
    }
    // Engines compute frequencies in the float32 steps of precision hf.
    if (!config.xpos.has_value()) config.precision = Precision::kHf;
    return config;
  }

  void AddShape(const LayerConfig& layer, const ResolvedRope& rope, Rows& read) const {
    KeyRows& rows = read.rows;
    rows.rotates = true;
    const EnginePairs pairs = PairsIn(options_.engine.engine, layer, options_.pairing);
    rows.pairing = pairs.pairing;
    rows.channel_order = pairs.channel_order;
    rows.head_dim = rope.head_dim();
    rows.rotary_offset = rope.rotary_offset();
    rows.rotary_dim = rope.rotary_dim();
    read.text = StrCat("pairing=", NameOf(rows.pairing, "unset"),
                       "\norder=", NameOf(pairs.order(), "unset"), "\nhead=", rows.head_dim,
                       "\nwindow=", rows.rotary_offset, ",", rows.rotary_dim, "\n");
    const std::optional<Mrope>& mrope = rope.config().mrope;
    if (!mrope.has_value()) return;
    for (int64_t j = 0; j < rows.rotary_dim / 2; ++j) rows.axes.push_back(AxisOf(*mrope, j));
    // One axis for all is no map.
    if (absl::c_all_of(rows.axes, [](int32_t axis) { return axis == 0; })) {
      rows.axes.clear();
      return;
    }
    read.text += StrCat("axes=", absl::StrJoin(rows.axes, ","), "\n");
  }

  void AddFrequencies(const ResolvedRope& rope, Rows& read) const {
    const RopeConfig& config = rope.config();
    KeyRows& rows = read.rows;
    rows.factor = exact() ? rope.attention_factor() : static_cast<float>(rope.attention_factor());
    const std::vector<InverseFrequency> numbers = rope.Evaluate(1).inv_freq;
    rows.inv_freq.assign(numbers.begin(), numbers.end());
    read.text += StrCat("factor=", Hex(rows.factor), "\ninv_freq=", Hex(numbers), "\n");
    if (config.xpos.has_value()) {
      rows.xpos = StrCat("scale_base ", config.xpos->scale_base, ", centre ", config.xpos->centre);
      read.text += StrCat("xpos=", Hex(config.xpos->scale_base), ",", config.xpos->centre, "\n");
    }
    if (rope.DependsOnSeqLen()) AddLengths(rope, read);
  }

  // dynamic and longrope with both lists.
  static void AddLengths(const ResolvedRope& rope, Rows& read) {
    const RopeConfig& config = rope.config();
    KeyRows& rows = read.rows;
    const bool of_call = config.seq_len_policy == SeqLenPolicy::kBatch;
    const std::string_view who = of_call ? "calls" : "sequences";
    if (config.rope_type == RopeType::kLongrope) {
      const int64_t original = *OriginalLength(config);
      const std::vector<InverseFrequency> numbers = rope.Evaluate(original + 1).inv_freq;
      rows.long_inv_freq.assign(numbers.begin(), numbers.end());
      rows.by_length = StrCat("long_inv_freq for ", who, " above ", original);
      read.text += StrCat("long=", Hex(numbers), "\n");
    } else {
      const int64_t length = *config.max_position_embeddings;
      rows.by_length = StrCat("dynamic NTK by factor ", *config.factor, " of base ",
                              config.rope_theta, " for ", who, " above ", length);
      read.text += StrCat("dynamic=", Hex(*config.factor), ",", Hex(config.rope_theta), "\n");
    }
    read.text += StrCat("by_length=", rows.by_length, "\n");
  }

  const KeyOptions& options_;
  IdentifiedKey& key_;
  std::vector<Rows> different_;
  int64_t columns_ = 0;
};

// Fills the layers of a model that numbers them.
absl::Status ReadNumbered(const ModelConfig& model, int64_t count, KeyReader& reader,
                          std::vector<int32_t>& by_layer) {
  std::vector<int64_t> read;  // layers that differ from each other
  for (int64_t layer = 0; layer < count; ++layer) {
    const auto same =
        absl::c_find_if(read, [&](int64_t other) { return model.SameLayers(other, layer); });
    if (same != read.end()) {
      by_layer.push_back(by_layer[static_cast<size_t>(*same)]);
      continue;
    }
    if (read.size() == kLayerTypesMax) {
      return InvalidField("rope", "layers that differ in more ways",
                          StrCat("at most ", kLayerTypesMax));
    }
    ROPE_ASSIGN_OR_RETURN(const LayerConfig config, model.Layer({.layer = layer}));
    ROPE_ASSIGN_OR_RETURN(const int32_t index, reader.Add(config));
    by_layer.push_back(index);
    read.push_back(layer);
  }
  return absl::OkStatus();
}

// Fills the layer types of a model that numbers no layers; each type has rows of its own.
absl::Status ReadTypes(const ModelConfig& model, KeyReader& reader,
                       std::vector<std::string>& by_rows) {
  std::vector<std::string> types = model.layer_types();
  std::sort(types.begin(), types.end());
  for (const std::string& type : types) {
    ROPE_ASSIGN_OR_RETURN(const LayerConfig config, model.Layer({.layer_type = type}));
    ROPE_ASSIGN_OR_RETURN(const int32_t index, reader.Add(config));
    const auto row = static_cast<size_t>(index);
    by_rows.resize(std::max(by_rows.size(), row + 1));
    std::string& names = by_rows[row];
    names += StrCat(names.empty() ? "" : ", ", type);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<IdentifiedKey> IdentifyKey(const LayerConfig& layer, const KeyOptions& options) {
  IdentifiedKey key;
  KeyReader reader(options, key);
  ROPE_RETURN_IF_ERROR(reader.Add(layer).status());
  reader.Complete();
  return key;
}

absl::StatusOr<IdentifiedKey> IdentifyKey(const ModelConfig& model, const KeyOptions& options) {
  const std::optional<int64_t> count = model.numbered_layers();
  if (!count.has_value() && model.layer_types().empty()) {
    ROPE_ASSIGN_OR_RETURN(const LayerConfig layer, model.Layer({}));
    return IdentifyKey(layer, options);
  }
  IdentifiedKey key;
  KeyReader reader(options, key);
  if (count.has_value()) {
    ROPE_RETURN_IF_ERROR(ReadNumbered(model, *count, reader, key.identity.layers));
  } else {
    ROPE_RETURN_IF_ERROR(ReadTypes(model, reader, key.identity.layer_types));
  }
  reader.Complete();
  return key;
}

namespace {

std::string WindowOf(const KeyRows& rows) {
  return StrCat("channels ", rows.rotary_offset, " to ", rows.rotary_offset + rows.rotary_dim - 1,
                " of ", rows.head_dim);
}

std::optional<Pairing> OrderOf(const KeyRows& rows) {
  return rows.channel_order.has_value() ? rows.channel_order : rows.pairing;
}

// Whether both turn the same pairs of channels, or a pair of one stands still in the other.
bool TurnsSamePairs(const KeyRows& a, const KeyRows& b) {
  if (!a.rotates || !b.rotates) return true;
  if (a.pairing != b.pairing || OrderOf(a) != OrderOf(b) || a.head_dim != b.head_dim) return false;
  if (a.rotary_offset == b.rotary_offset && a.rotary_dim == b.rotary_dim) return true;
  return a.pairing == Pairing::kInterleaved && OrderOf(a) == a.pairing &&
         (a.rotary_offset - b.rotary_offset) % 2 == 0;
}

constexpr size_t kDifferencesMax = 64;

// Collects what differs, each difference once, and at most kDifferencesMax.
class Differences {
 public:
  // What the differences that follow belong to: "layer 5: ".
  void SetPlace(std::string place) { place_ = std::move(place); }

  void Add(KeyMatch match, std::string_view what, std::string_view a, std::string_view b) {
    comparison_.match = std::max(comparison_.match, match);
    if (comparison_.differences.size() == kDifferencesMax) return;
    std::string text = StrCat(what, ": ", a, " | ", b);
    if (!seen_.insert(text).second) return;
    comparison_.differences.push_back(StrCat(place_, text));
  }
  void Compare(KeyMatch match, std::string_view what, std::string_view a, std::string_view b) {
    if (a != b) Add(match, what, a, b);
  }

  KeyComparison Take() { return std::move(comparison_); }

 private:
  KeyComparison comparison_ = {.match = KeyMatch::kSame};
  std::string place_;
  std::set<std::string> seen_;
};

void CompareNumbers(std::string_view name, KeyMatch match, const std::vector<double>& a,
                    const std::vector<double>& b, Differences& differences) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    return differences.Add(match, StrCat(name, "[", i, "]"), NumberText(a[i]), NumberText(b[i]));
  }
}

// The first frequency that takes another axis.
void CompareAxes(const KeyRows& a, const KeyRows& b, KeyMatch match, Differences& differences) {
  const auto axis = [](const KeyRows& rows, size_t i) {
    return rows.axes.empty() ? "one for all" : StrCat(rows.axes[i]);
  };
  const size_t count = a.axes.empty()   ? b.axes.size()
                       : b.axes.empty() ? a.axes.size()
                                        : std::min(a.axes.size(), b.axes.size());
  for (size_t i = 0; i < count; ++i) {
    if (axis(a, i) == axis(b, i)) continue;
    return differences.Add(match, StrCat("axis of frequency ", i), axis(a, i), axis(b, i));
  }
}

void CompareRows(const KeyRows& a, const KeyRows& b, Differences& differences) {
  using enum KeyMatch;
  if (a.rotates != b.rotates) {
    const auto text = [](const KeyRows& rows) { return rows.rotates ? "yes" : "no"; };
    const KeyRows& turned = a.rotates ? a : b;
    const bool converts = turned.factor != 0 && turned.xpos.empty();
    return differences.Add(converts ? kConvertible : kDifferent, "rotates", text(a), text(b));
  }
  if (!a.rotates) return;
  // A factor of 0 loses K.
  const KeyMatch match = TurnsSamePairs(a, b) && a.factor != 0 ? kConvertible : kDifferent;
  differences.Compare(match, "pairing", NameOf(a.pairing), NameOf(b.pairing));
  differences.Compare(a.pairing == b.pairing ? kReordered : kDifferent, "channel order",
                      NameOf(OrderOf(a)), NameOf(OrderOf(b)));
  differences.Compare(match, "window", WindowOf(a), WindowOf(b));
  CompareAxes(a, b, match, differences);
  differences.Compare(kDifferent, "xpos", a.xpos, b.xpos);
  differences.Compare(match, "factor on K", NumberText(a.factor), NumberText(b.factor));
  const auto by_length = [](const KeyRows& rows) {
    return rows.by_length.empty() ? "every length alike" : rows.by_length;
  };
  differences.Compare(match, "by length", by_length(a), by_length(b));
  CompareNumbers("inv_freq", match, a.inv_freq, b.inv_freq, differences);
  CompareNumbers("long_inv_freq", match, a.long_inv_freq, b.long_inv_freq, differences);
}

// The index of the rows of a layer. All layers have the same if there is no list.
size_t RowsOf(const KeyIdentity& key, size_t layer) {
  return layer < key.layers.size() ? static_cast<size_t>(key.layers[layer]) : 0;
}

void CompareLayers(const KeyIdentity& a, const KeyIdentity& b, Differences& differences) {
  const size_t count = std::max(a.layers.size(), b.layers.size());
  if (!a.layers.empty() && !b.layers.empty() && a.layers.size() != b.layers.size()) {
    differences.Add(KeyMatch::kDifferent, "layers", StrCat(a.layers.size()),
                    StrCat(b.layers.size()));
    return;
  }
  std::set<std::pair<size_t, size_t>> compared;
  for (size_t layer = 0; layer < std::max<size_t>(count, 1); ++layer) {
    const std::pair<size_t, size_t> rows = {RowsOf(a, layer), RowsOf(b, layer)};
    if (!compared.insert(rows).second) continue;
    if (count > 0) differences.SetPlace(StrCat("layer ", layer, ": "));
    CompareRows(a.rows[rows.first], b.rows[rows.second], differences);
  }
}

// Without numbers of layers, by their types.
void CompareTypes(const KeyIdentity& a, const KeyIdentity& b, Differences& differences) {
  const auto text = [](const KeyIdentity& key) {
    if (!key.layer_types.empty()) return absl::StrJoin(key.layer_types, "; ");
    return std::string(key.layers.empty() ? "all alike" : "by number");
  };
  if (a.layer_types != b.layer_types || a.rows.size() != b.rows.size()) {
    return differences.Add(KeyMatch::kDifferent, "layer types", text(a), text(b));
  }
  for (size_t i = 0; i < a.rows.size(); ++i) {
    differences.SetPlace(StrCat(a.layer_types[i], ": "));
    CompareRows(a.rows[i], b.rows[i], differences);
  }
}

}  // namespace

KeyComparison CompareKeys(const KeyIdentity& a, const KeyIdentity& b) {
  using enum KeyMatch;
  Differences differences;
  const auto compare = [&](std::string_view what, std::string_view one, std::string_view other,
                           std::string_view unset) {
    differences.Compare(kRounding, what, one.empty() ? unset : one, other.empty() ? unset : other);
  };
  compare("engine", a.engine, b.engine, "none");
  compare("dtype", a.dtype, b.dtype, "not given");
  compare("dtype of cos and sin", a.table_dtype, b.table_dtype, "that of K");
  if (a.layer_types.empty() && b.layer_types.empty()) {
    CompareLayers(a, b, differences);
  } else {
    CompareTypes(a, b, differences);
  }
  KeyComparison found = differences.Take();
  if (found.match != kSame || a.fingerprint == b.fingerprint) return found;
  // Without an engine the numbers have more bits than the identities show.
  return {.match = kDifferent, .differences = {"a number differs by less than is shown"}};
}

}  // namespace rope::kernels
