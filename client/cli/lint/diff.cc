#include "client/cli/lint/diff.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/arguments.h"
#include "client/error.h"
#include "kernels/compat/attention_scale.h"
#include "kernels/compat/model_family.h"
#include "kernels/config/config_json.h"
#include "kernels/describe.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/status_macros.h"
#include "proto/error.h"

namespace rope::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPositionsMax = int64_t{1} << 30;

// One layer type of one config.
struct Layer {
  kernels::LayerConfig config;
  std::shared_ptr<const kernels::ResolvedRope> rope;  // null: it does not rotate
  std::optional<AttentionScale> scale = {};           // unset: not known
  std::string who = {};                               // the side's engine: "vLLM"
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
  kernels::LayerChoice choice;
  choice.layer_type = side.config->layer_types().empty() ? "" : type;
  auto layer = side.config->Layer(choice);
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

// Sets what the rotation says of pairs.
void SetPairs(const DiffSide& side, const Layer& layer, Rotation& rotation) {
  kernels::EnginePairs& pairs = rotation.pairs;
  pairs = kernels::PairsIn(side.engine.engine, layer.config);
  const std::optional<kernels::Pairing>& pairing =
      pairs.misread ? pairs.pairing : layer.config.pairing;
  rotation.pairing = pairing.has_value() ? std::string(Name(*pairing)) : "unspecified";
  if (pairs.order() != pairs.pairing || pairs.order() != pairing) rotation.permuter = layer.who;
}

Rotation RotationOf(const DiffSide& side, const Layer& layer, int64_t seq_len) {
  Rotation rotation;
  rotation.rotates = layer.rope != nullptr;
  if (layer.scale.has_value()) {
    rotation.softmax_scale = absl::StrCat("times ", layer.scale->softmax);
    rotation.temperature = kernels::TemperatureText(*layer.scale);
  }
  if (!rotation.rotates) return rotation;
  const kernels::ResolvedRope& rope = *layer.rope;
  SetPairs(side, layer, rotation);
  rotation.head_dim = rope.head_dim();
  rotation.rotary_dim = rope.rotary_dim();
  rotation.rotary_offset = rope.rotary_offset();
  if (rope.config().mrope.has_value()) rotation.mrope = MropeText(*rope.config().mrope);
  if (const auto& xpos = rope.config().xpos; xpos.has_value()) {
    rotation.xpos = absl::StrCat("scale_base ", xpos->scale_base, ", centre ", xpos->centre);
  }
  rotation.turns = {rope.Evaluate(seq_len).inv_freq, rope.attention_factor()};
  return rotation;
}

// A difference of one unit in the last place is rounding.
bool Equal(long double a, long double b) {
  return std::abs(a - b) <= 1e-15L * std::max(std::abs(a), std::abs(b));
}

std::optional<FrequencyPair> FirstFrequency(const Turns& a, const Turns& b) {
  const size_t columns = std::min(a.inv_freq.size(), b.inv_freq.size());
  for (size_t i = 0; i < columns; ++i) {
    if (Equal(a.inv_freq[i], b.inv_freq[i])) continue;
    return FrequencyPair{i, static_cast<double>(a.inv_freq[i]), static_cast<double>(b.inv_freq[i])};
  }
  return std::nullopt;
}

// A text that is not known is no difference.
bool EqualIfKnown(const std::string& a, const std::string& b) {
  return a == b || a.empty() || b.empty();
}

// An engine turns the pairs of the file in other channels if it permutes q and k.
bool EqualPairs(const Rotation& a, const Rotation& b) {
  return a.pairing == b.pairing || a.pairs.pairing == b.pairs.pairing ||
         a.pairs.order() == b.pairs.order();
}

bool EqualSettings(const Rotation& a, const Rotation& b) {
  return a.rotates == b.rotates && EqualPairs(a, b) && a.head_dim == b.head_dim &&
         a.rotary_dim == b.rotary_dim && a.rotary_offset == b.rotary_offset && a.mrope == b.mrope &&
         a.xpos == b.xpos && EqualIfKnown(a.softmax_scale, b.softmax_scale) &&
         EqualIfKnown(a.temperature, b.temperature);
}

// `by_error`: `error` decides; otherwise every bit does.
void Compare(double error, bool by_error, LayerDifference& difference) {
  const Rotation& a = *difference.a;
  const Rotation& b = *difference.b;
  const std::string& who = a.permuter.empty() ? b.permuter : a.permuter;
  const bool alike = a.pairing == b.pairing && a.pairs.order() == b.pairs.order();
  if (!who.empty() && !alike && EqualPairs(a, b)) {
    difference.note =
        absl::StrCat(who, " permutes q and k of this model: its channels stand in another order");
  }
  difference.frequency = FirstFrequency(a.turns, b.turns);
  difference.equal = EqualSettings(a, b) && Equal(a.turns.factor, b.turns.factor) &&
                     !difference.frequency.has_value();
  if (!a.rotates || !b.rotates || !a.xpos.empty() || !b.xpos.empty()) return;
  difference.first = FindFirstDifference(a.turns, b.turns, error, difference.end);
  if (!by_error) return;
  difference.equal = EqualSettings(a, b) && !difference.first->position.has_value();
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
                         double error, std::vector<LayerDifference>& differences) {
  const auto has = [&type](const DiffSide& side) {
    const std::vector<std::string>& types = side.config->layer_types();
    return types.empty() || std::ranges::find(types, type) != types.end();
  };
  LayerDifference difference;
  difference.layer_type = type;
  Layer first;
  Layer second;
  if (has(a)) {
    ROPE_ASSIGN_OR_RETURN(first, ReadLayer("A", a, type));
  }
  if (has(b)) {
    ROPE_ASSIGN_OR_RETURN(second, ReadLayer("B", b, type));
  }
  difference.end = EndOf(first, second);
  std::vector<std::optional<int64_t>> lengths = {std::nullopt};
  if (FollowsLength(first) || FollowsLength(second)) lengths = {1, difference.end};
  for (const std::optional<int64_t>& length : lengths) {
    difference.seq_len = length;
    if (has(a)) difference.a = RotationOf(a, first, length.value_or(1));
    if (has(b)) difference.b = RotationOf(b, second, length.value_or(1));
    if (difference.a.has_value() && difference.b.has_value()) {
      Compare(error, !a.engine.engine.empty() || !b.engine.engine.empty(), difference);
    }
    differences.push_back(difference);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerDifference>> Differences(const DiffSide& first,
                                                         const DiffSide& second, double error) {
  std::vector<std::string> types = first.config->layer_types();
  for (const std::string& type : second.config->layer_types()) {
    if (std::ranges::find(types, type) == types.end()) types.push_back(type);
  }
  if (types.empty()) types.emplace_back();
  std::vector<LayerDifference> differences;
  for (const std::string& type : types) {
    ROPE_RETURN_IF_ERROR(CompareType(first, second, type, error, differences));
  }
  return differences;
}

Json JsonOf(const std::optional<Rotation>& rotation) {
  if (!rotation.has_value()) return nullptr;
  if (!rotation->rotates) return {{"rotates", false}};
  return {{"rotates", true},
          {"pairing", rotation->pairing},
          {"head_dim", rotation->head_dim},
          {"rotary_dim", rotation->rotary_dim},
          {"rotary_offset", rotation->rotary_offset},
          {"mrope", rotation->mrope},
          {"xpos", rotation->xpos},
          {"attention_factor", rotation->turns.factor},
          {"softmax_scale", rotation->softmax_scale},
          {"temperature", rotation->temperature}};
}

Json JsonOf(const LayerDifference& difference) {
  Json json = {
      {"layer_type", difference.layer_type}, {"equal", difference.equal}, {"seq_len", nullptr},
      {"a", JsonOf(difference.a)},           {"b", JsonOf(difference.b)}, {"inv_freq", nullptr},
      {"first_position", nullptr},           {"note", difference.note}};
  if (difference.seq_len.has_value()) json["seq_len"] = *difference.seq_len;
  if (difference.frequency.has_value()) {
    json["inv_freq"] = {{"index", difference.frequency->index},
                        {"a", difference.frequency->a},
                        {"b", difference.frequency->b}};
  }
  if (!difference.first.has_value()) return json;
  const FirstDifference& first = *difference.first;
  Json position = {{"position", nullptr},
                   {"index", nullptr},
                   {"exact", first.exact},
                   {"searched_up_to", difference.end - 1}};
  if (first.position.has_value()) {
    position["position"] = *first.position;
    position["index"] = first.column;
  }
  json["first_position"] = std::move(position);
  return json;
}

}  // namespace

Result<std::vector<LayerDifference>> Diff(const DiffSide& a, const DiffSide& b, double error) {
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

std::string DiffJson(const std::vector<LayerDifference>& differences) {
  Json json = Json::array();
  for (const LayerDifference& difference : differences) json.push_back(JsonOf(difference));
  return JsonText(json);
}

}  // namespace rope::client
