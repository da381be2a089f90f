#include "client/cli/lint/diff.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/lint/lint.h"
#include "client/error.h"
#include "kernels/compat/attention_scale.h"
#include "kernels/compat/model_family.h"
#include "kernels/describe.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/status_macros.h"
#include "proto/error.h"

namespace rope::client {
namespace {

constexpr int64_t kPositionsMax = int64_t{1} << 30;

// One layer type of one config.
struct Layer {
  kernels::LayerConfig config;
  std::shared_ptr<const kernels::ResolvedRope> rope;  // null: it does not rotate
  std::optional<AttentionScale> scale = {};           // unset: not known
  std::string who = {};                               // the side's engine: "vLLM"
};

// The rotation of a layer for one length.
struct Rotation {
  Json settings = {{"rotates", false}};  // as the answer has them
  Turns turns = {};
  // What multiplies logits and q beside it; empty: not known.
  std::string softmax_scale = {};
  std::string temperature = {};
  kernels::EnginePairs pairs = {};  // of the side's engine
  std::string permuter = {};  // the engine, if it puts q's and k's channels into another order
};

absl::Status Refused(absl::string_view name, const absl::Status& status) {
  return proto::Prefixed(absl::StrCat(name, ": "), status);
}

// The rotation of `layer`, by the side's engine if it has one, which is called `who`.
absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> ResolveAs(
    const kernels::EngineVersion& engine, const kernels::LayerConfig& layer, std::string& who) {
  if (engine.engine.empty()) return kernels::Resolve(layer.config);
  ROPE_RETURN_IF_ERROR(kernels::Validate(layer.config));
  ROPE_ASSIGN_OR_RETURN(const kernels::EngineConfig read,
                        kernels::ReadAs(layer.config, engine, layer.names, std::nullopt));
  who = read.who;
  return kernels::Resolve(read.read.config);
}

absl::StatusOr<Layer> ReadLayer(absl::string_view name, const DiffSide& side,
                                const std::string& type) {
  auto layer = side.config->Layer({.layer_type = side.config->layer_types().empty() ? "" : type});
  if (!layer.ok()) return Refused(name, layer.status());
  Layer read = {*std::move(layer), nullptr};
  const kernels::EngineVersion& engine = side.engine;
  if (read.config.rotates) {
    auto rope = ResolveAs(engine, read.config, read.who);
    if (!rope.ok()) return Refused(name, rope.status());
    read.rope = *std::move(rope);
  }
  const double factor = read.rope == nullptr ? 1 : read.rope->attention_factor();
  if (!engine.engine.empty()) {
    read.scale = kernels::ScaleAs(read.config, engine, factor);
  } else if (!read.config.names.model_type.empty()) {
    read.scale = kernels::ScaleOf(read.config, read.config.config, factor);
  }
  return read;
}

std::string MropeText(const kernels::Mrope& mrope) {
  using Layout = kernels::Mrope::Layout;
  const char* layout = mrope.layout == Layout::kSections        ? "sections"
                       : mrope.layout == Layout::kInterleaved   ? "interleaved"
                       : mrope.layout == Layout::kHwInterleaved ? "hw interleaved"
                                                                : "axial";
  return absl::StrCat(layout, " ", absl::StrJoin(mrope.section, ", "));
}

std::string XposText(const XPos& xpos) {
  return absl::StrCat("scale_base ", xpos.scale_base, ", centre ", xpos.centre);
}

Rotation RotationOf(const DiffSide& side, const Layer& layer, int64_t seq_len) {
  Rotation rotation;
  if (layer.scale.has_value()) {
    rotation.softmax_scale = absl::StrCat("times ", layer.scale->softmax);
    rotation.temperature = kernels::TemperatureText(*layer.scale);
  }
  if (layer.rope == nullptr) return rotation;
  const kernels::ResolvedRope& rope = *layer.rope;
  const RopeConfig& config = rope.config();
  const kernels::EnginePairs pairs = kernels::PairsIn(side.engine.engine, layer.config);
  // Of an engine that misreads it, else of the file.
  const std::optional<kernels::Pairing>& pairing =
      pairs.misread ? pairs.pairing : layer.config.pairing;
  if (pairs.order() != pairs.pairing || pairs.order() != pairing) rotation.permuter = layer.who;
  rotation.pairs = pairs;
  rotation.turns = {rope.Evaluate(seq_len).inv_freq, rope.attention_factor()};
  rotation.settings = {
      {"rotates", true},
      {"pairing", pairing.has_value() ? std::string(Name(*pairing)) : "unspecified"},
      {"head_dim", rope.head_dim()},
      {"rotary_dim", rope.rotary_dim()},
      {"rotary_offset", rope.rotary_offset()},
      {"mrope", config.mrope.has_value() ? MropeText(*config.mrope) : ""},
      {"xpos", config.xpos.has_value() ? XposText(*config.xpos) : ""},
      {"attention_factor", rotation.turns.factor},
      {"softmax_scale", rotation.softmax_scale},
      {"temperature", rotation.temperature}};
  return rotation;
}

// A difference of one unit in the last place is rounding.
bool Equal(long double a, long double b) {
  return std::abs(a - b) <= 1e-15L * std::max(std::abs(a), std::abs(b));
}

// Null: there is none.
Json FirstFrequency(const Turns& a, const Turns& b) {
  const size_t columns = std::min(a.inv_freq.size(), b.inv_freq.size());
  for (size_t i = 0; i < columns; ++i) {
    if (Equal(a.inv_freq[i], b.inv_freq[i])) continue;
    return {{"index", i},
            {"a", static_cast<double>(a.inv_freq[i])},
            {"b", static_cast<double>(b.inv_freq[i])}};
  }
  return nullptr;
}

// A text that is not known is no difference.
bool EqualIfKnown(const std::string& a, const std::string& b) {
  return a == b || a.empty() || b.empty();
}

bool EqualSetting(const char* key, const Rotation& a, const Rotation& b) {
  return a.settings.value(key, Json()) == b.settings.value(key, Json());
}

// An engine turns the pairs of the file in other channels if it permutes q and k.
bool EqualPairs(const Rotation& a, const Rotation& b) {
  return EqualSetting("pairing", a, b) || a.pairs.pairing == b.pairs.pairing ||
         a.pairs.order() == b.pairs.order();
}

bool EqualSettings(const Rotation& a, const Rotation& b) {
  constexpr const char* kKeys[] = {"rotates",       "head_dim", "rotary_dim",
                                   "rotary_offset", "mrope",    "xpos"};
  return EqualPairs(a, b) && EqualIfKnown(a.softmax_scale, b.softmax_scale) &&
         EqualIfKnown(a.temperature, b.temperature) &&
         std::ranges::all_of(kKeys, [&](const char* key) { return EqualSetting(key, a, b); });
}

// Searches the positions 0 to `end` - 1. `by_error`: `error` decides; otherwise every bit does.
void Compare(const Rotation& a, const Rotation& b, double error, bool by_error, int64_t end,
             Json& json) {
  const std::string& who = a.permuter.empty() ? b.permuter : a.permuter;
  const bool alike = EqualSetting("pairing", a, b) && a.pairs.order() == b.pairs.order();
  if (!who.empty() && !alike && EqualPairs(a, b)) {
    json["note"] =
        absl::StrCat(who, " permutes q and k of this model: its channels stand in another order");
  }
  const bool equal = EqualSettings(a, b);
  json["inv_freq"] = FirstFrequency(a.turns, b.turns);
  json["equal"] = equal && Equal(a.turns.factor, b.turns.factor) && json["inv_freq"].is_null();
  const auto is_searched = [](const Rotation& rotation) {
    return !rotation.turns.inv_freq.empty() && rotation.settings.at("xpos") == "";
  };
  if (!is_searched(a) || !is_searched(b)) return;
  const FirstDifference first = FindFirstDifference(a.turns, b.turns, error, end);
  json["first_position"] = {{"position", nullptr},
                            {"index", nullptr},
                            {"exact", first.exact},
                            {"searched_up_to", end - 1}};
  if (first.position.has_value()) {
    json["first_position"]["position"] = *first.position;
    json["first_position"]["index"] = first.column;
  }
  if (by_error) json["equal"] = equal && !first.position.has_value();
}

// The positions that both models may have; all, where neither says.
int64_t EndOf(const Layer& a, const Layer& b) {
  const int64_t length = std::max(a.config.config.max_position_embeddings.value_or(0),
                                  b.config.config.max_position_embeddings.value_or(0));
  return length == 0 ? kPositionsMax : std::min(length, kPositionsMax);
}

bool FollowsLength(const Layer& layer) {
  return layer.rope != nullptr && layer.rope->DependsOnSeqLen();
}

absl::Status CompareType(const DiffSide& a, const DiffSide& b, const std::string& type,
                         double error, Json& differences) {
  const auto has = [&type](const DiffSide& side) {
    const std::vector<std::string>& types = side.config->layer_types();
    return types.empty() || std::ranges::find(types, type) != types.end();
  };
  Layer first;
  Layer second;
  if (has(a)) {
    ROPE_ASSIGN_OR_RETURN(first, ReadLayer("A", a, type));
  }
  if (has(b)) {
    ROPE_ASSIGN_OR_RETURN(second, ReadLayer("B", b, type));
  }
  const int64_t end = EndOf(first, second);
  std::vector<std::optional<int64_t>> lengths = {std::nullopt};
  if (FollowsLength(first) || FollowsLength(second)) lengths = {1, end};
  for (const std::optional<int64_t>& length : lengths) {
    const Rotation one = RotationOf(a, first, length.value_or(1));
    const Rotation other = RotationOf(b, second, length.value_or(1));
    Json json = {{"layer_type", type},
                 {"equal", false},
                 {"seq_len", length.has_value() ? Json(*length) : Json()},
                 {"a", has(a) ? one.settings : Json()},
                 {"b", has(b) ? other.settings : Json()},
                 {"inv_freq", nullptr},
                 {"first_position", nullptr},
                 {"note", ""}};
    if (has(a) && has(b)) {
      const bool by_error = !a.engine.engine.empty() || !b.engine.engine.empty();
      Compare(one, other, error, by_error, end, json);
    }
    differences.push_back(std::move(json));
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> Differences(const DiffSide& first, const DiffSide& second, double error) {
  std::vector<std::string> types = first.config->layer_types();
  for (const std::string& type : second.config->layer_types()) {
    if (std::ranges::find(types, type) == types.end()) types.push_back(type);
  }
  if (types.empty()) types.emplace_back();
  Json differences = Json::array();
  for (const std::string& type : types) {
    ROPE_RETURN_IF_ERROR(CompareType(first, second, type, error, differences));
  }
  return differences;
}

}  // namespace

Result<Json> Diff(const DiffSide& a, const DiffSide& b, double error) {
  if (!a.config.ok()) return ToStatus(Refused("A", a.config.status()));
  if (!b.config.ok()) return ToStatus(Refused("B", b.config.status()));
  auto differences = Differences(a, b, error);
  if (!differences.ok()) return ToStatus(differences.status());
  return *std::move(differences);
}

Result<DiffSide> SideOf(const std::string& text, const std::string& sub_config,
                        const std::string& engine) {
  DiffSide side = {.config = kernels::ModelConfig::Parse(text, sub_config)};
  if (engine.empty()) return side;
  auto parsed = kernels::ParseEngine(engine);
  if (!parsed.ok()) return ToStatus(parsed.status());
  side.engine = *std::move(parsed);
  return side;
}

}  // namespace rope::client
