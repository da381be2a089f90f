#include "server/models/model_registry.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/config/presets.h"
#include "kernels/describe.h"
#include "kernels/status_macros.h"
#include "proto/nearest_name.h"
#include "proto/wire/message_hash.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"

namespace rope::server {

absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> RopeEntry::Resolve(
    std::optional<int64_t> head_dim) const {
  if (resolved_ != nullptr) return resolved_;
  auto resolved = kernels::Resolve(rope_.layer.config, head_dim);
  if (!resolved.ok()) return InField(field_, resolved.status());
  return resolved;
}

absl::StatusOr<kernels::LayerConfig> Model::Layer(const kernels::LayerChoice& choice,
                                                  const std::string& field) const {
  if (const auto* layers = std::get_if<kernels::ModelConfig>(&config)) {
    auto layer = layers->Layer(choice);
    if (!layer.ok()) return InField(field, layer.status());
    if (pairing.has_value()) layer->pairing = pairing;
    return layer;
  }
  if (choice.layer.has_value() || !choice.layer_type.empty()) {
    return InvalidField(
        choice.layer.has_value() ? "rope.layer" : "rope.layer_type",
        field == "rope.config." ? "it together with config" : "it for a single layer",
        "it unset: there is one layer");
  }
  kernels::LayerConfig layer = std::get<kernels::LayerConfig>(config);
  if (pairing.has_value()) layer.pairing = pairing;
  return layer;
}

absl::Status InField(const std::string& config_field, const absl::Status& status) {
  const std::string field = proto::PartsOf(status).field;
  const bool is_of_rope =
      field == "layer" || field == "layer_type" || field == "sub_config" || field == "config_json";
  return Prefixed(is_of_rope ? "rope." : config_field, status);
}

namespace {

// The value with its key, which is kept twice, and its places in the tables.
int64_t CostOf(const std::string& key, const SpecCache::Value& value) {
  constexpr size_t kPlacesBytes = 256;
  return value.bytes + static_cast<int64_t>(2 * key.size() + kPlacesBytes);
}

constexpr size_t kModelNameBytesMax = 128;

absl::Status CheckModelName(absl::string_view field, absl::string_view name) {
  const bool legal = !name.empty() && name.size() <= kModelNameBytesMax &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                              absl::string_view("._-/").find(c) != absl::string_view::npos;
                     });
  if (legal) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("\"", ShortText(name, kModelNameBytesMax), "\""),
                      "1 to 128 of a-z A-Z 0-9 . _ - /");
}

absl::StatusOr<Model> ReadJson(const std::string& name, std::string_view json) {
  ROPE_RETURN_IF_ERROR(CheckModelName("model", name));
  auto config = kernels::ModelConfig::Parse(json);
  if (!config.ok()) return Prefixed(absl::StrCat("model ", name, ": "), config.status());
  Model model;
  if (config->has_sub_configs()) model.composite_json = json;
  model.config = *std::move(config);
  return model;
}

// INVALID_ARGUMENT: the spec names no embedding, has fields that exclude each other, or has a
// first_layer, which ModelRegistry::FindLayers reads.
absl::Status CheckSpec(const v1::RopeSpec& spec) {
  if (spec.source_case() == v1::RopeSpec::SOURCE_NOT_SET) {
    return InvalidField("rope", "nothing", "exactly one of model, config_id, config, config_json");
  }
  if (spec.has_first_layer()) {
    return InvalidField("rope.first_layer", "it here", "it only in the rope of a RotateRequest");
  }
  if (spec.has_layer() && !spec.layer_type().empty()) {
    return InvalidField("rope", "layer and layer_type", "at most one of them");
  }
  if (!spec.sub_config().empty() && spec.has_config()) {
    return InvalidField("rope.sub_config", "it together with config",
                        "it with config_json or a model");
  }
  if (spec.has_config_id() &&
      (spec.has_layer() || !spec.layer_type().empty() || !spec.sub_config().empty() ||
       spec.pairing() != v1::PAIRING_UNSPECIFIED || spec.compat() != v1::COMPAT_UNSPECIFIED ||
       spec.precision() != v1::PRECISION_UNSPECIFIED)) {
    return InvalidField(
        "rope.config_id",
        "it together with layer, layer_type, sub_config, pairing, compat or precision",
        "config_id only: it includes them");
  }
  return absl::OkStatus();
}

kernels::LayerChoice ChoiceOf(const v1::RopeSpec& spec) {
  kernels::LayerChoice choice;
  if (spec.has_layer()) choice.layer = spec.layer();
  choice.layer_type = spec.layer_type();
  return choice;
}

// Whether the spec takes milliseconds to read, even if it is cached: it has a whole file.
bool TakesLongToRead(const v1::RopeSpec& spec) {
  const auto json_bytes = static_cast<int64_t>(spec.config_json().size());
  return json_bytes > limits::kConfigJsonHereBytesMax || !spec.sub_config().empty() ||
         spec.has_first_layer();
}

// The channels that the config names, or the elements of its longest list if they are more. What a
// config costs grows with it; 0: the channels come with a tensor.
int64_t WidthOf(const v1::RopeConfig& message) {
  const int list = std::max({message.inv_freq().numbers_size(), message.short_factor_size(),
                             message.long_factor_size(), message.mrope_axes_size()});
  return std::max({int64_t{message.head_dim()}, int64_t{message.rotary_dim()}, int64_t{list}});
}

int64_t WidthOf(const kernels::RopeConfig& config) {
  const size_t axes = config.mrope.has_value() ? config.mrope->axes.size() : 0;
  const size_t list = std::max(
      {config.inv_freq.size(), config.short_factor.size(), config.long_factor.size(), axes});
  return std::max(
      {config.head_dim.value_or(0), config.rotary_dim.value_or(0), static_cast<int64_t>(list)});
}

// The layer types of a model with a name; a single empty one if all layers are equal.
std::vector<std::string> LayerTypesOf(const Model& model) {
  std::vector<std::string> types = std::get<kernels::ModelConfig>(model.config).layer_types();
  if (types.empty()) types.emplace_back();
  return types;
}

// The most of all layer types.
int64_t WidthOf(const Model& model) {
  int64_t width = 0;
  for (const std::string& type : LayerTypesOf(model)) {
    const auto layer = model.Layer({.layer_type = type}, "");
    if (layer.ok()) width = std::max(width, WidthOf(layer->config));
  }
  return width;
}

// As ListModels describes the model, by its first layer type. `origin`: "preset" or "flag".
v1::Model WriteModel(const std::string& name, const std::string& origin, const Model& model) {
  v1::Model item;
  item.set_name(name);
  item.set_origin(origin);
  const auto& config = std::get<kernels::ModelConfig>(model.config);
  for (const std::string& type : config.layer_types()) item.add_layer_types(type);
  if (config.num_heads()) item.set_num_heads(*config.num_heads());
  if (config.num_kv_heads()) item.set_num_kv_heads(*config.num_kv_heads());
  const auto layer = model.Layer({.layer_type = LayerTypesOf(model).front()}, "");
  if (!layer.ok()) return item;
  item.set_pairing(proto::WritePairing(layer->pairing));
  item.set_rope_type(std::string(Name(layer->config.rope_type)));
  item.set_rope_theta(layer->config.rope_theta);
  if (layer->config.max_position_embeddings) {
    item.set_max_position_embeddings(*layer->config.max_position_embeddings);
  }
  const auto resolved = kernels::Resolve(layer->config);
  if (!resolved.ok()) return item;
  item.set_head_dim((*resolved)->head_dim());
  item.set_rotary_dim((*resolved)->rotary_dim());
  return item;
}

}  // namespace

SpecCache::Value SpecCache::Find(const std::string& key) const {
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = values_.find(key);
  return found == values_.end() ? Value() : found->second;
}

std::shared_ptr<const RopeEntry> SpecCache::FindId(const std::string& config_id) const {
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = by_config_id_.find(config_id);
  return found == by_config_id_.end() ? nullptr : found->second.entry;
}

SpecCache::Value SpecCache::Add(const std::string& key, Value value) {
  if (CostOf(key, value) > bytes_max_) return value;  // it would evict all others
  proto::WriterMutexLock lock(&mutex_);
  const auto [kept, is_new] = values_.try_emplace(key, std::move(value));
  Value result = kept->second;
  if (!is_new) return result;
  if (result.entry != nullptr) {
    Named& named = by_config_id_[result.entry->config_id()];
    if (named.specs++ == 0) named.entry = result.entry;
  }
  oldest_first_.push_back(key);
  bytes_ += CostOf(key, result);
  while (static_cast<int64_t>(oldest_first_.size()) > limits::kSpecsMax || bytes_ > bytes_max_) {
    Drop(oldest_first_.front());
    oldest_first_.pop_front();
  }
  return result;
}

void SpecCache::Drop(const std::string& key) {
  const auto kept = values_.find(key);
  if (kept->second.entry != nullptr) {
    const auto named = by_config_id_.find(kept->second.entry->config_id());
    if (--named->second.specs == 0) by_config_id_.erase(named);
  }
  bytes_ -= CostOf(key, kept->second);
  values_.erase(kept);
}

absl::Status CheckLayersBytes(absl::string_view field, int64_t bytes) {
  return CheckAtMost(bytes, limits::kLayersBytesMax, field,
                     " bytes of frequencies of different layers");
}

std::vector<LogLine> ModelRegistry::FileReport::LogLines() const {
  std::vector<LogLine> lines;
  const auto add = [&]() -> LogLine& { return lines.emplace_back().Word("model", name); };
  if (replaces_preset) add().Words("replaces the preset of this name");
  const size_t shown = std::min(warnings.size(), kWarningsShown);
  for (size_t i = 0; i < shown; ++i) add().Text("warning", ShortText(warnings[i]));
  const size_t left_out = warnings.size() - shown;
  if (left_out > 0) add().Number("warnings_left_out", static_cast<int64_t>(left_out));
  return lines;
}

absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelRegistry::Create(
    absl::Span<const ModelFile> files, int64_t spec_bytes_max) {
  std::unique_ptr<ModelRegistry> registry(new ModelRegistry(spec_bytes_max));  // owned by registry
  for (const kernels::Preset& preset : kernels::Presets()) {
    const std::string name(preset.name);
    ROPE_ASSIGN_OR_RETURN(Model model, ReadJson(name, preset.config_json));
    model.pairing = preset.pairing;
    registry->Add(name, "preset", std::make_shared<const Model>(std::move(model)));
  }
  for (const ModelFile& file : files) ROPE_RETURN_IF_ERROR(registry->AddFile(file));
  return registry;
}

absl::Status ModelRegistry::AddFile(const ModelFile& file) {
  for (const FileReport& report : file_reports_) {
    if (report.name != file.name) continue;
    return InvalidField("model", absl::StrCat("\"", file.name, "\" twice"), "names once");
  }
  ROPE_ASSIGN_OR_RETURN(Model read, ReadJson(file.name, file.config_json));
  const auto model = std::make_shared<const Model>(std::move(read));
  FileReport report{.name = file.name};
  const absl::Status status = CheckLayers(model, report.warnings);
  if (!status.ok()) return Prefixed(absl::StrCat("model ", file.name, ": "), status);
  report.replaces_preset = Add(file.name, "flag", model);
  file_reports_.push_back(std::move(report));
  return absl::OkStatus();
}

bool ModelRegistry::Add(const std::string& name, const std::string& origin, const ModelPtr& model) {
  Named named = {model, WriteModel(name, origin, *model), WidthOf(*model)};
  return !models_.insert_or_assign(name, std::move(named)).second;
}

absl::StatusOr<std::shared_ptr<const RopeEntry>> ModelRegistry::Find(const v1::RopeSpec& spec,
                                                                     bool may_take_long) {
  ROPE_RETURN_IF_ERROR(CheckSpec(spec));
  if (spec.has_config_id()) {
    if (auto entry = cache_.FindId(spec.config_id()); entry != nullptr) return entry;
    return MakeError(Reason::kConfigIdNotFound, "rope.config_id",
                     absl::StrCat("\"", ShortText(spec.config_id(), /*bytes_max=*/32), "\""),
                     "that of a config that this server has seen");
  }
  if (!may_take_long && TakesLongToRead(spec)) return NeedsSideThread();
  const std::string key = proto::CanonicalBytes(spec);
  if (auto cached = cache_.Find(key).entry; cached != nullptr) return cached;
  if (!may_take_long && MayBeWide(spec)) return NeedsSideThread();
  ROPE_ASSIGN_OR_RETURN(const Source source, ReadSource(spec));
  ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer,
                        source.model->Layer(ChoiceOf(spec), source.field));
  ROPE_ASSIGN_OR_RETURN(const auto entry, ReadEntry(source, std::move(layer)));
  return cache_.Add(key, {.entry = entry, .bytes = entry->bytes()}).entry;
}

bool ModelRegistry::MayBeWide(const v1::RopeSpec& spec) const {
  if (spec.has_config()) return WidthOf(spec.config()) > kWidthHereMax;
  if (spec.has_config_json()) return true;
  const Named* const named = FindNamed(spec.model());
  return named != nullptr && named->width > kWidthHereMax;
}

// The layers are one value of the cache, so that the spec, which may hold a whole file, is read and
// kept once. Layers that are the same share an entry, and only the first of them is copied.
absl::StatusOr<RopeEntries> ModelRegistry::FindLayers(const v1::RopeSpec& spec, int64_t count) {
  // Not the key of a spec without first_layer: the digits follow fields that have one.
  const std::string key =
      absl::StrCat(proto::CanonicalBytes(spec), absl::Hex(count, absl::kZeroPad8));
  if (const auto cached = cache_.Find(key).layers; cached != nullptr) return *cached;
  v1::RopeSpec alone = spec;
  alone.clear_first_layer();
  ROPE_RETURN_IF_ERROR(CheckSpec(alone));
  ROPE_ASSIGN_OR_RETURN(const Source source, ReadSource(alone));
  const auto* const config = std::get_if<kernels::ModelConfig>(&source.model->config);
  auto layers = std::make_shared<RopeEntries>();
  std::vector<int64_t> read;  // the indices of layers that differ from each other
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t layer_number = spec.first_layer() + i;
    const auto same = std::ranges::find_if(read, [&](int64_t other) {
      return config != nullptr && config->SameLayers(spec.first_layer() + other, layer_number);
    });
    if (same != read.end()) {
      const std::shared_ptr<const RopeEntry> shared = (*layers)[static_cast<size_t>(*same)];
      layers->push_back(shared);
      continue;
    }
    ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer,
                          source.model->Layer({.layer = layer_number}, source.field));
    if (!layer.rotates) {
      return InvalidField("rope.first_layer",
                          absl::StrCat("index ", i, " of the L axis, which does not rotate"),
                          "layers that rotate");
    }
    ROPE_ASSIGN_OR_RETURN(const auto entry, ReadEntry(source, std::move(layer)));
    bytes += entry->bytes();
    ROPE_RETURN_IF_ERROR(CheckLayersBytes("rope.first_layer", bytes));
    read.push_back(i);
    layers->push_back(entry);
  }
  bytes += count * static_cast<int64_t>(sizeof(layers->front()));
  return *cache_.Add(key, {.layers = layers, .bytes = bytes}).layers;
}

absl::StatusOr<ModelRegistry::Source> ModelRegistry::ReadSource(const v1::RopeSpec& spec) {
  Source source;
  ROPE_ASSIGN_OR_RETURN(source.pairing, proto::ReadPairing(spec.pairing()));
  ROPE_ASSIGN_OR_RETURN(source.model, ReadModel(spec, source.field));
  ROPE_ASSIGN_OR_RETURN(source.compat, proto::ReadCompat(spec.compat()));
  ROPE_ASSIGN_OR_RETURN(source.precision, proto::ReadPrecision(spec.precision()));
  return source;
}

absl::StatusOr<std::shared_ptr<const RopeEntry>> ModelRegistry::ReadEntry(
    const Source& source, kernels::LayerConfig layer) {
  auto entry = std::make_shared<RopeEntry>();
  entry->field_ = source.field;
  if (const auto* config = std::get_if<kernels::ModelConfig>(&source.model->config)) {
    entry->heads_ = config->num_heads();
    entry->kv_heads_ = config->num_kv_heads();
  }
  layer.config.precision = source.precision;
  if (layer.rotates) {
    const absl::Status valid = kernels::Validate(layer.config);
    if (!valid.ok()) return InField(source.field, valid);
  }
  auto rope = kernels::ReadLayer(std::move(layer), source.pairing, source.compat);
  if (!rope.ok()) return Prefixed("rope.", rope.status());
  entry->rope_ = *std::move(rope);
  if (entry->rope_.layer.rotates && entry->rope_.layer.config.head_dim.has_value()) {
    ROPE_ASSIGN_OR_RETURN(entry->resolved_, entry->Resolve(std::nullopt));
  }
  entry->config_id_ = proto::HashId(kernels::CanonicalText(entry->rope_));
  using kernels::KeptBytes;
  entry->bytes_ = static_cast<int64_t>(sizeof(RopeEntry)) + KeptBytes(entry->config_id_) +
                  KeptBytes(entry->field_) + entry->rope_.layer.KeptBytes() +
                  KeptBytes(entry->rope_.stated) + KeptBytes(entry->rope_.warnings) +
                  (entry->resolved_ == nullptr ? 0 : entry->resolved_->KeptBytes());
  return entry;
}

absl::StatusOr<ModelPtr> ModelRegistry::ReadModel(const v1::RopeSpec& spec, std::string& field) {
  auto model = std::make_shared<Model>();
  if (spec.has_config()) {
    field = "rope.config.";
    kernels::LayerConfig layer;
    auto config = proto::ReadRopeConfig(spec.config());
    if (!config.ok()) return InField(field, config.status());
    layer.config = *std::move(config);
    model->config = std::move(layer);
    return model;
  }
  if (spec.has_config_json()) {
    field = "rope.config_json.";
    ROPE_RETURN_IF_ERROR(CheckAtMost(static_cast<int64_t>(spec.config_json().size()),
                                     limits::kConfigJsonBytesMax, "rope.config_json.size",
                                     " bytes"));
    auto config = kernels::ModelConfig::Parse(spec.config_json(), spec.sub_config());
    if (!config.ok()) return InField(field, config.status());
    model->config = *std::move(config);
    return model;
  }
  field = "rope.model: ";
  ROPE_ASSIGN_OR_RETURN(const ModelPtr named, FindModel(spec.model()));
  if (spec.sub_config().empty()) return named;
  // No spec begins so: 's' begins no field of one.
  const std::string key = absl::StrCat("sub_config ", spec.model(), " ", spec.sub_config());
  if (ModelPtr cached = cache_.Find(key).sub_config; cached != nullptr) return cached;
  auto config = kernels::ModelConfig::Parse(
      named->composite_json.empty() ? "{}" : named->composite_json, spec.sub_config());
  if (!config.ok()) return InField(field, config.status());
  const int64_t bytes = static_cast<int64_t>(sizeof(Model)) + config->KeptBytes();
  model->config = *std::move(config);
  return cache_.Add(key, {.sub_config = model, .bytes = bytes}).sub_config;
}

const ModelRegistry::Named* ModelRegistry::FindNamed(const std::string& name) const {
  auto found = models_.find(name);
  if (found == models_.end()) {
    const kernels::Preset* const preset = kernels::FindPreset(name);
    if (preset != nullptr) found = models_.find(preset->name);
  }
  return found == models_.end() ? nullptr : &found->second;
}

absl::StatusOr<ModelPtr> ModelRegistry::FindModel(const std::string& name) const {
  if (const Named* const named = FindNamed(name); named != nullptr) return named->model;
  const std::string got = ShortText(name, kModelNameBytesMax);
  std::vector<std::string> known;
  for (const auto& [model, named] : models_) known.push_back(model);
  const std::vector<std::string> nearest = proto::NearestModels(got, known);
  const std::string meant =
      nearest.empty() ? kernels::NearestPreset(got) : absl::StrJoin(nearest, " or ");
  return MakeError(Reason::kModelNotFound, "rope.model", absl::StrCat("\"", got, "\""),
                   absl::StrCat("a name that ListModels gives", proto::DidYouMean(meant)));
}

absl::StatusOr<Model> ModelRegistry::CopyOf(const v1::RopeSpec& spec, std::string& field) {
  ROPE_RETURN_IF_ERROR(CheckSpec(spec));
  Model model;
  bool has_precision = spec.precision() != v1::PRECISION_UNSPECIFIED;
  field = "rope.config_id: ";
  if (!spec.has_config_id()) {
    ROPE_ASSIGN_OR_RETURN(const ModelPtr source, ReadModel(spec, field));
    model = *source;
  } else {
    ROPE_ASSIGN_OR_RETURN(const auto entry, Find(spec));
    has_precision = entry->layer().config.precision != kernels::Precision::kExact;
    model.config = entry->layer();
    model.pairing = entry->pairing();
  }
  if (spec.compat() != v1::COMPAT_UNSPECIFIED) {
    return InvalidField("rope.compat", "it in a key", "engine in its place");
  }
  if (has_precision) {
    return InvalidField("rope.precision", "it in a key", "engine in its place");
  }
  const kernels::LayerChoice choice = ChoiceOf(spec);
  if (choice.layer.has_value() || !choice.layer_type.empty()) {
    ROPE_ASSIGN_OR_RETURN(model.config, model.Layer(choice, field));
  }
  return model;
}

absl::Status ModelRegistry::CheckLayers(const ModelPtr& model, std::vector<std::string>& warnings) {
  int64_t bytes = 0;
  for (const std::string& type : LayerTypesOf(*model)) {
    ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer, model->Layer({.layer_type = type}, ""));
    ROPE_ASSIGN_OR_RETURN(const auto entry, ReadEntry({.model = model}, std::move(layer)));
    if (entry->resolved_ != nullptr) bytes += entry->resolved_->KeptBytes();
    ROPE_RETURN_IF_ERROR(CheckLayersBytes("rope", bytes));
    if (entry->layer().rotates && !entry->pairing().has_value()) {
      return InvalidField("rope.pairing", "nothing",
                          "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
    }
    for (const std::string& warning : entry->warnings()) {
      warnings.push_back(type.empty() ? warning : absl::StrCat(type, ": ", warning));
    }
  }
  return absl::OkStatus();
}

}  // namespace rope::server
