#include "server/models/model_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/config/kept_bytes.h"
#include "kernels/config/presets.h"
#include "kernels/config/rope_config.h"
#include "kernels/status_macros.h"
#include "proto/nearest_name.h"
#include "proto/wire/message_hash.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/models/limits.h"
#include "server/models/model.h"

namespace rope::server {
namespace {

absl::Status TooManyModels(int64_t number, int64_t max, absl::string_view whose) {
  return MakeError(Reason::kLimitExceeded, "name",
                   absl::StrCat("registered model number ", number, whose),
                   absl::StrCat("at most ", max));
}

absl::Status TooManyBytes(int64_t bytes, int64_t beside, int64_t max, absl::string_view whose) {
  return MakeError(Reason::kLimitExceeded, "rope",
                   absl::StrCat(bytes, " bytes of memory in addition to ", beside,
                                " of registered models", whose),
                   absl::StrCat("at most ", max));
}

}  // namespace

absl::Status RegisteredCounts::Add(const std::string& owner, int64_t bytes,
                                   std::optional<int64_t> models_max) {
  const auto found = by_owner_.find(owner);
  const Count own = found == by_owner_.end() ? Count() : found->second;
  constexpr char kOwn[] = " of this client";
  if (all_.models >= limits::kRegisteredModelsMax) {
    return TooManyModels(all_.models + 1, limits::kRegisteredModelsMax, "");
  }
  const int64_t most =
      std::min(limits::kOwnersModelsMax, models_max.value_or(limits::kOwnersModelsMax));
  if (own.models >= most) return TooManyModels(own.models + 1, most, kOwn);
  if (bytes > bytes_max_ - all_.bytes) {
    return TooManyBytes(bytes, all_.bytes, bytes_max_, "");
  }
  if (bytes > bytes_max_ / 2 - own.bytes) {
    return TooManyBytes(bytes, own.bytes, bytes_max_ / 2, kOwn);
  }
  all_ = {all_.models + 1, all_.bytes + bytes};
  by_owner_[owner] = {own.models + 1, own.bytes + bytes};
  return absl::OkStatus();
}

void RegisteredCounts::Remove(const std::string& owner, int64_t bytes) {
  all_ = {all_.models - 1, all_.bytes - bytes};
  const auto found = by_owner_.find(owner);
  Count& own = found->second;
  own = {own.models - 1, own.bytes - bytes};
  if (own.models == 0) by_owner_.erase(found);
}

namespace {

// The value with its key, which is kept twice, and its places in the tables.
int64_t CostOf(const std::string& key, const SpecCache::Value& value) {
  constexpr size_t kPlacesBytes = 256;
  return value.bytes + static_cast<int64_t>(2 * key.size() + kPlacesBytes);
}

}  // namespace

const SpecCache::Value* SpecCache::Find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::shared_ptr<const RopeEntry> SpecCache::FindId(const std::string& config_id) const {
  const auto found = by_config_id_.find(config_id);
  return found == by_config_id_.end() ? nullptr : found->second.entry;
}

SpecCache::Value SpecCache::Add(const std::string& key, Value value) {
  if (CostOf(key, value) > bytes_max_) return value;  // it would evict all others
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

void SpecCache::Forget(int64_t generation) {
  std::erase_if(oldest_first_, [&](const std::string& key) {
    if (values_.find(key)->second.generation != generation) return false;
    Drop(key);
    return true;
  });
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
  if (bytes <= limits::kLayersBytesMax) return absl::OkStatus();
  return MakeError(Reason::kLimitExceeded, field,
                   absl::StrCat(bytes, " bytes of frequencies of different layers"),
                   absl::StrCat("at most ", limits::kLayersBytesMax));
}

absl::StatusOr<std::shared_ptr<const RopeEntry>> ModelRegistry::Find(const v1::RopeSpec& spec,
                                                                     bool may_take_long) {
  ROPE_RETURN_IF_ERROR(CheckSpec(spec));
  if (spec.has_config_id()) {
    proto::ReaderMutexLock lock(&mutex_);
    if (auto entry = cache_.FindId(spec.config_id()); entry != nullptr) return entry;
    return MakeError(Reason::kConfigIdNotFound, "rope.config_id",
                     absl::StrCat("\"", ShortText(spec.config_id(), /*bytes_max=*/32), "\""),
                     "that of a config that this server has seen");
  }
  if (!may_take_long && TakesLongToRead(spec)) return NeedsSideThread();
  const std::string key = proto::CanonicalBytes(spec);
  if (auto cached = FindCached(key); cached != nullptr) return cached;
  if (!may_take_long && MayBeWide(spec)) return NeedsSideThread();
  ROPE_ASSIGN_OR_RETURN(const Source source, ReadSource(spec));
  ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer,
                        source.model->Layer(ChoiceOf(spec), source.field));
  ROPE_ASSIGN_OR_RETURN(const auto entry, ReadEntry(source, std::move(layer)));
  return Keep(key, spec.model(),
              {.entry = entry, .generation = source.model->generation, .bytes = entry->bytes()})
      .entry;
}

std::shared_ptr<const RopeEntry> ModelRegistry::FindCached(const std::string& key) const {
  proto::ReaderMutexLock lock(&mutex_);
  const SpecCache::Value* const found = cache_.Find(key);
  return found == nullptr ? nullptr : found->entry;
}

bool ModelRegistry::MayBeWide(const v1::RopeSpec& spec) const {
  if (spec.has_config()) return WidthOf(spec.config()) > kWidthHereMax;
  if (spec.has_config_json()) return true;
  if (!spec.has_model() || !had_wide_models_.load(std::memory_order_relaxed)) return false;
  proto::ReaderMutexLock lock(&mutex_);
  const ModelPtr model = FindNamed(spec.model());
  return model != nullptr && model->width > kWidthHereMax;
}

// The layers are one value of the cache, so that the spec, which may hold a whole file, is read and
// kept once. Layers that are the same share an entry, and only the first of them is copied.
absl::StatusOr<RopeEntries> ModelRegistry::FindLayers(const v1::RopeSpec& spec, int64_t count) {
  // Not the key of a spec without first_layer: the digits follow fields that have one.
  const std::string key =
      absl::StrCat(proto::CanonicalBytes(spec), absl::Hex(count, absl::kZeroPad8));
  {
    proto::ReaderMutexLock lock(&mutex_);
    if (const SpecCache::Value* const found = cache_.Find(key); found != nullptr) {
      return *found->layers;
    }
  }
  v1::RopeSpec alone = spec;
  alone.clear_first_layer();
  ROPE_RETURN_IF_ERROR(CheckSpec(alone));
  ROPE_ASSIGN_OR_RETURN(const Source source, ReadSource(alone));
  auto layers = std::make_shared<RopeEntries>();
  std::vector<int64_t> read;  // the indices of layers that differ from each other
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t layer_number = spec.first_layer() + i;
    const auto same = std::ranges::find_if(read, [&](int64_t other) {
      return source.model->SameLayers(spec.first_layer() + other, layer_number);
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
  return *Keep(key, spec.model(),
               {.layers = layers, .generation = source.model->generation, .bytes = bytes})
              .layers;
}

// Takes the reader lock only in ReadModel, to copy the pointer of a named model.
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
  ROPE_RETURN_IF_ERROR(Complete(std::move(layer), source.pairing, source.compat, *entry));
  entry->Complete();
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
    const auto bytes = static_cast<int64_t>(spec.config_json().size());
    if (bytes > limits::kConfigJsonBytesMax) {
      return MakeError(Reason::kLimitExceeded, absl::StrCat(field, "size"),
                       absl::StrCat(bytes, " bytes"),
                       absl::StrCat("at most ", limits::kConfigJsonBytesMax));
    }
    auto config = kernels::ModelConfig::Parse(spec.config_json(), spec.sub_config());
    if (!config.ok()) return InField(field, config.status());
    model->config = *std::move(config);
    model->KeepComposite(spec.config_json());
    return model;
  }
  field = "rope.model: ";
  ROPE_ASSIGN_OR_RETURN(const ModelPtr named, FindModel(spec.model()));
  if (spec.sub_config().empty()) return named;
  // No spec begins so: 's' begins no field of one.
  const std::string key =
      absl::StrCat("sub_config ", named->generation, " ", spec.model(), " ", spec.sub_config());
  {
    proto::ReaderMutexLock lock(&mutex_);
    if (const SpecCache::Value* const found = cache_.Find(key); found != nullptr) {
      return found->sub_config;
    }
  }
  auto config = kernels::ModelConfig::Parse(
      named->composite_json.empty() ? "{}" : named->composite_json, spec.sub_config());
  if (!config.ok()) return InField(field, config.status());
  model->config = *std::move(config);
  model->generation = named->generation;
  return Keep(key, spec.model(),
              {.sub_config = model, .generation = model->generation, .bytes = model->KeptBytes()})
      .sub_config;
}

ModelPtr ModelRegistry::FindNamed(const std::string& name) const {
  auto found = models_.find(name);
  if (found == models_.end()) {
    const kernels::Preset* const preset = kernels::FindPreset(name);
    if (preset != nullptr) found = models_.find(preset->name);
  }
  return found == models_.end() ? nullptr : found->second;
}

absl::StatusOr<ModelPtr> ModelRegistry::FindModel(const std::string& name) const {
  {
    proto::ReaderMutexLock lock(&mutex_);
    if (ModelPtr found = FindNamed(name); found != nullptr) return found;
  }
  const std::string got = ShortText(name, kModelNameBytesMax);
  return MakeError(Reason::kModelNotFound, "rope.model", absl::StrCat("\"", got, "\""),
                   absl::StrCat("a name that ListModels gives", proto::DidYouMean(Nearest(got))));
}

std::string ModelRegistry::Nearest(const std::string& name) const {
  std::vector<std::string> lasting;  // a client may register any number
  {
    proto::ReaderMutexLock lock(&mutex_);
    for (const auto& [known, model] : models_) {
      if (model->generation == 0) lasting.push_back(known);
    }
  }
  const std::vector<std::string> nearest = proto::NearestModels(name, lasting);
  return nearest.empty() ? kernels::NearestPreset(name) : absl::StrJoin(nearest, " or ");
}

absl::Status ModelRegistry::Complete(kernels::LayerConfig layer,
                                     std::optional<kernels::Pairing> explicit_pairing,
                                     kernels::Compat compat, RopeEntry& entry) {
  if (layer.rotates) {
    const absl::Status valid = kernels::Validate(layer.config);
    if (!valid.ok()) return InField(entry.field_, valid);
  }
  auto rope = kernels::ReadLayer(std::move(layer), explicit_pairing, compat);
  if (!rope.ok()) return Prefixed("rope.", rope.status());
  entry.rope_ = *std::move(rope);
  if (entry.rope_.layer.rotates && entry.rope_.layer.config.head_dim.has_value()) {
    ROPE_ASSIGN_OR_RETURN(entry.resolved_, entry.Resolve(std::nullopt));
  }
  return absl::OkStatus();
}

SpecCache::Value ModelRegistry::Keep(const std::string& key, const std::string& name,
                                     SpecCache::Value value) {
  proto::WriterMutexLock lock(&mutex_);
  if (value.generation > 0) {
    const auto model = models_.find(name);
    const bool current = model != models_.end() && model->second->generation == value.generation;
    if (!current) return value;  // unregistered since it was read: serves this request only
  }
  return cache_.Add(key, std::move(value));
}

absl::StatusOr<Model> ModelRegistry::CopyOf(const v1::RopeSpec& spec, absl::string_view place,
                                            absl::string_view want, std::string& field) {
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
    return InvalidField("rope.compat", absl::StrCat("it in a ", place), want);
  }
  if (has_precision) {
    return InvalidField("rope.precision", absl::StrCat("it in a ", place), want);
  }
  const kernels::LayerChoice choice = ChoiceOf(spec);
  if (choice.layer.has_value() || !choice.layer_type.empty()) {
    ROPE_ASSIGN_OR_RETURN(model.config, model.Layer(choice, field));
    model.composite_json.clear();
  }
  return model;
}

// Builds and checks the model without a lock; Insert locks and decides whether the name is free.
absl::StatusOr<v1::RegisterModelResponse> ModelRegistry::Register(
    const std::string& name, const v1::RopeSpec& spec, const std::string& owner,
    std::optional<int64_t> models_max) {
  ROPE_RETURN_IF_ERROR(CheckModelName("name", name));
  std::string field;
  ROPE_ASSIGN_OR_RETURN(Model model,
                        CopyOf(spec, "model", "it in requests that name the model", field));
  v1::RegisterModelResponse response;
  std::vector<std::string> warnings;
  ROPE_ASSIGN_OR_RETURN(const std::optional<kernels::Pairing> explicit_pairing,
                        proto::ReadPairing(spec.pairing()));
  ROPE_RETURN_IF_ERROR(CheckLayers(model, explicit_pairing, field, warnings));
  for (const std::string& warning : warnings) response.add_warnings(warning);
  if (explicit_pairing.has_value()) model.pairing = explicit_pairing;
  model.origin = "registered";
  model.owner = owner;
  model.Summarize();
  model.bytes = model.KeptBytes() + kernels::KeptBytes(name);
  *response.mutable_model() = WriteModel(name, model);
  ROPE_RETURN_IF_ERROR(Insert(name, std::move(model), models_max));
  return response;
}

absl::Status ModelRegistry::CheckLayers(const Model& model,
                                        std::optional<kernels::Pairing> explicit_pairing,
                                        const std::string& field,
                                        std::vector<std::string>& warnings) {
  std::vector<std::string> types;  // empty for a single layer, which needs no choice
  if (const auto* config = std::get_if<kernels::ModelConfig>(&model.config)) {
    types = config->layer_types();
  }
  if (types.empty()) types.emplace_back();
  int64_t bytes = 0;
  for (const std::string& type : types) {
    RopeEntry entry;
    entry.field_ = field;
    kernels::LayerChoice choice;
    choice.layer_type = type;
    ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer, model.Layer(choice, field));
    ROPE_RETURN_IF_ERROR(
        Complete(std::move(layer), explicit_pairing, kernels::Compat::kDefault, entry));
    if (entry.resolved_ != nullptr) bytes += entry.resolved_->KeptBytes();
    ROPE_RETURN_IF_ERROR(CheckLayersBytes("rope", bytes));
    if (entry.layer().rotates && !entry.pairing().has_value()) {
      return InvalidField("rope.pairing", "nothing",
                          "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
    }
    for (const std::string& warning : entry.rope_.warnings) {
      warnings.push_back(type.empty() ? warning : absl::StrCat(type, ": ", warning));
    }
  }
  return absl::OkStatus();
}

absl::Status ModelRegistry::Insert(const std::string& name, Model model,
                                   std::optional<int64_t> models_max) {
  proto::WriterMutexLock lock(&mutex_);
  // A preset's other names included: what one client registers must not change what they mean.
  if (const ModelPtr known = FindNamed(name); known != nullptr) {
    return MakeError(Reason::kModelExists, "name",
                     absl::StrCat("\"", name, "\", which is ", known->origin, " already"),
                     "a name that is free");
  }
  ROPE_RETURN_IF_ERROR(registered_.Add(model.owner, model.bytes, models_max));
  if (model.width > kWidthHereMax) had_wide_models_.store(true, std::memory_order_relaxed);
  model.generation = ++last_generation_;
  models_.emplace(name, std::make_shared<const Model>(std::move(model)));
  return absl::OkStatus();
}

// Under one writer lock, so that a model and its cached entries (by generation) disappear together.
absl::Status ModelRegistry::Unregister(const std::string& name, const std::string& owner) {
  ROPE_RETURN_IF_ERROR(CheckModelName("name", name));
  proto::WriterMutexLock lock(&mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) {
    return MakeError(Reason::kModelNotFound, "name", absl::StrCat("\"", name, "\""),
                     "a name that ListModels gives");
  }
  const Model& model = *found->second;
  if (model.generation == 0) {
    return MakeError(Reason::kWrongState, "name",
                     absl::StrCat("\"", name, "\" of origin ", model.origin),
                     "one of origin registered");
  }
  if (model.owner != owner) {
    return MakeError(Reason::kPermission, "name",
                     absl::StrCat("\"", name, "\", which belongs to another client"),
                     "one of the caller's own");
  }
  cache_.Forget(model.generation);
  registered_.Remove(model.owner, model.bytes);
  models_.erase(found);
  version_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

bool ModelRegistry::MayGo(const std::string& name) const {
  proto::ReaderMutexLock lock(&mutex_);
  const ModelPtr found = FindNamed(name);
  return found == nullptr || found->generation != 0;
}

std::vector<v1::Model> ModelRegistry::List(const std::string& after, size_t count) const {
  std::vector<std::pair<std::string, ModelPtr>> models;
  {
    proto::ReaderMutexLock lock(&mutex_);
    for (auto it = models_.upper_bound(after); it != models_.end() && models.size() < count; ++it) {
      models.emplace_back(*it);
    }
  }
  std::vector<v1::Model> list;
  list.reserve(models.size());
  for (const auto& [name, model] : models) list.push_back(WriteModel(name, *model));
  return list;
}

}  // namespace rope::server
