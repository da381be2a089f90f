#include "server/models/model_registry.h"

#include <algorithm>
#include <set>

#include "kernels/config/presets.h"
#include "kernels/config/validate_config.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/models/config_id.h"
#include "server/models/message_hash.h"
#include "server/models/rope_spec.h"

namespace rope::server {
namespace {

// Prefixes a kernel's error, which names a field of the config or of the choice of a part of it,
// with the request's field.
absl::Status InField(const std::string& config_field, const absl::Status& status) {
  const std::string field = proto::PartsOf(status).field;
  const bool is_of_rope =
      field == "layer" || field == "layer_type" || field == "sub_config" || field == "config_json";
  return Prefixed(is_of_rope ? "rope." : config_field, status);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> RopeEntry::Resolve(
    std::optional<int64_t> head_dim) const {
  if (resolved_ != nullptr) return resolved_;
  auto resolved = kernels::Resolve(rope_.layer.config, head_dim);
  if (!resolved.ok()) return InField(field_, resolved.status());
  return resolved;
}

absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelRegistry::Create(
    absl::Span<const ModelFile> files) {
  std::unique_ptr<ModelRegistry> registry(new ModelRegistry());  // owned by registry
  for (const kernels::Preset& preset : kernels::Presets()) {
    ROPE_RETURN_IF_ERROR(
        registry->Add(std::string(preset.name), "preset", preset.config_json, preset.pairing));
  }
  std::set<std::string> names;
  for (const ModelFile& file : files) {
    if (!names.insert(file.name).second) {
      return InvalidField("model", absl::StrCat("\"", file.name, "\" twice"), "names once");
    }
    ROPE_RETURN_IF_ERROR(registry->Add(file.name, "flag", file.config_json, std::nullopt));
  }
  return registry;
}

absl::Status ModelRegistry::Add(const std::string& name, const std::string& origin,
                                std::string_view json, std::optional<kernels::Pairing> pairing) {
  ROPE_RETURN_IF_ERROR(CheckModelName("model", name));
  auto config = kernels::ModelConfig::Parse(json);
  if (!config.ok()) return Prefixed(absl::StrCat("model ", name, ": "), config.status());
  auto model = std::make_shared<Model>();
  model->origin = origin;
  model->config = *std::move(config);
  model->pairing = pairing;
  model->KeepComposite(json);
  proto::WriterMutexLock lock(&mutex_);
  models_.insert_or_assign(name, std::move(model));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RopeEntry>> ModelRegistry::Find(const v1::RopeSpec& spec) {
  ROPE_RETURN_IF_ERROR(CheckSpec(spec));
  if (spec.has_config_id()) {
    proto::ReaderMutexLock lock(&mutex_);
    const auto found = by_config_id_.find(spec.config_id());
    if (found != by_config_id_.end()) return found->second.entry;
    return MakeError(Reason::kConfigIdNotFound, "rope.config_id",
                     absl::StrCat("\"", spec.config_id().substr(0, 32), "\""),
                     "that of a config that this server has seen");
  }
  const std::string key = CanonicalBytes(spec);
  {
    proto::ReaderMutexLock lock(&mutex_);
    const auto found = by_spec_.find(key);
    if (found != by_spec_.end()) return found->second;
  }
  ROPE_ASSIGN_OR_RETURN(std::shared_ptr<RopeEntry> entry, Read(spec));
  return Keep(key, std::move(entry));
}

// Takes the reader lock only in ReadModel, to copy the pointer of a named model.
absl::StatusOr<std::shared_ptr<RopeEntry>> ModelRegistry::Read(const v1::RopeSpec& spec) {
  auto entry = std::make_shared<RopeEntry>();
  ROPE_ASSIGN_OR_RETURN(const std::optional<kernels::Pairing> explicit_pairing,
                        ReadPairing(spec.pairing()));
  ROPE_ASSIGN_OR_RETURN(const ModelPtr model, ReadModel(spec, entry->field_));
  ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer, LayerOf(*model, ChoiceOf(spec), entry->field_));
  entry->model_ = spec.model();
  entry->generation_ = model->generation;
  ROPE_ASSIGN_OR_RETURN(const kernels::Compat compat, ReadCompat(spec.compat()));
  ROPE_ASSIGN_OR_RETURN(layer.config.precision, ReadPrecision(spec.precision()));
  ROPE_RETURN_IF_ERROR(Complete(std::move(layer), explicit_pairing, compat, *entry));
  return entry;
}

absl::StatusOr<ModelRegistry::ModelPtr> ModelRegistry::ReadModel(const v1::RopeSpec& spec,
                                                                 std::string& field) {
  auto model = std::make_shared<Model>();
  if (spec.has_config()) {
    field = "rope.config.";
    kernels::LayerConfig layer;
    auto config = ReadRopeConfig(spec.config());
    if (!config.ok()) return InField(field, config.status());
    layer.config = *std::move(config);
    model->config = std::move(layer);
    model->bytes = static_cast<int64_t>(spec.config().ByteSizeLong());
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
  auto config = kernels::ModelConfig::Parse(
      named->composite_json.empty() ? "{}" : named->composite_json, spec.sub_config());
  if (!config.ok()) return InField(field, config.status());
  model->config = *std::move(config);
  model->generation = named->generation;
  model->bytes = named->bytes;
  return model;
}

absl::StatusOr<ModelRegistry::ModelPtr> ModelRegistry::FindModel(const std::string& name) const {
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = models_.find(name);
  if (found != models_.end()) return found->second;
  return MakeError(Reason::kModelNotFound, "rope.model",
                   absl::StrCat("\"", name.substr(0, kModelNameBytesMax), "\""),
                   "a name that ListModels gives");
}

void ModelRegistry::Model::KeepComposite(std::string_view json) {
  bytes = static_cast<int64_t>(json.size());
  if (!std::get<kernels::ModelConfig>(config).has_sub_configs()) return;
  composite_json = json;
  bytes *= 2;
}

absl::StatusOr<kernels::LayerConfig> ModelRegistry::LayerOf(const Model& model,
                                                            const kernels::LayerChoice& choice,
                                                            const std::string& field) {
  if (const auto* config = std::get_if<kernels::ModelConfig>(&model.config)) {
    auto layer = config->Layer(choice);
    if (!layer.ok()) return InField(field, layer.status());
    if (model.pairing.has_value()) layer->pairing = model.pairing;
    return layer;
  }
  if (choice.layer.has_value() || !choice.layer_type.empty()) {
    return InvalidField(
        choice.layer.has_value() ? "rope.layer" : "rope.layer_type",
        field == "rope.config." ? "it together with config" : "it for a single layer",
        "it unset: there is one layer");
  }
  kernels::LayerConfig layer = std::get<kernels::LayerConfig>(model.config);
  if (model.pairing.has_value()) layer.pairing = model.pairing;
  return layer;
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

std::shared_ptr<const RopeEntry> ModelRegistry::Keep(const std::string& key,
                                                     std::shared_ptr<RopeEntry> entry) {
  entry->config_id_ = ConfigIdOf(entry->rope());
  proto::WriterMutexLock lock(&mutex_);
  if (entry->generation_ > 0) {
    const auto model = models_.find(entry->model_);
    const bool current = model != models_.end() && model->second->generation == entry->generation_;
    if (!current) return entry;  // unregistered since Read: serves this request only
  }
  const auto [kept, is_new] = by_spec_.try_emplace(key, entry);
  if (!is_new) return kept->second;  // another thread inserted the same spec first
  std::shared_ptr<const RopeEntry> result = kept->second;
  Named& named = by_config_id_[result->config_id()];
  if (named.specs++ == 0) named.entry = result;
  oldest_first_.push_back(key);
  kept_bytes_ += CostOf(key, *result);
  // `result` is a copy of the pointer, because a spec larger than the bound evicts itself.
  while (static_cast<int64_t>(oldest_first_.size()) > limits::kSpecsMax ||
         kept_bytes_ > limits::kSpecBytesMax) {
    Forget(oldest_first_.front());
    oldest_first_.pop_front();
  }
  return result;
}

void ModelRegistry::Forget(const std::string& key) {
  const auto kept = by_spec_.find(key);
  const auto named = by_config_id_.find(kept->second->config_id());
  if (--named->second.specs == 0) by_config_id_.erase(named);
  kept_bytes_ -= CostOf(key, *kept->second);
  by_spec_.erase(kept);
}

// Approximate memory of a cached entry: its key, twice, and its frequencies.
int64_t ModelRegistry::CostOf(const std::string& key, const RopeEntry& entry) {
  return 2 * static_cast<int64_t>(key.size()) +
         (entry.resolved_ == nullptr ? 0 : entry.resolved_->KeptBytes());
}

// Builds and checks the model without a lock; Insert locks and decides whether the name is free.
absl::StatusOr<v1::RegisterModelResponse> ModelRegistry::Register(const std::string& name,
                                                                  const v1::RopeSpec& spec,
                                                                  const std::string& owner) {
  ROPE_RETURN_IF_ERROR(CheckModelName("name", name));
  ROPE_RETURN_IF_ERROR(CheckSpec(spec));
  ROPE_ASSIGN_OR_RETURN(const std::optional<kernels::Pairing> explicit_pairing,
                        ReadPairing(spec.pairing()));
  Model model;
  bool has_precision = spec.precision() != v1::PRECISION_UNSPECIFIED;
  std::string field = "rope.config_id: ";
  if (!spec.has_config_id()) {
    ROPE_ASSIGN_OR_RETURN(const ModelPtr source, ReadModel(spec, field));
    model = *source;
  } else {
    ROPE_ASSIGN_OR_RETURN(const auto entry, Find(spec));
    has_precision = entry->layer().config.precision != kernels::Precision::kExact;
    model.config = entry->layer();
    model.pairing = entry->pairing();
    model.bytes = CostOf("", *entry);
  }
  if (spec.compat() != v1::COMPAT_UNSPECIFIED) {
    return InvalidField("rope.compat", "it in a model", "it in requests that name the model");
  }
  if (has_precision) {
    return InvalidField("rope.precision", "it in a model", "it in requests that name the model");
  }
  const kernels::LayerChoice choice = ChoiceOf(spec);
  if (choice.layer.has_value() || !choice.layer_type.empty()) {
    ROPE_ASSIGN_OR_RETURN(model.config, LayerOf(model, choice, field));
    model.composite_json.clear();
  }
  v1::RegisterModelResponse response;
  std::vector<std::string> warnings;
  ROPE_RETURN_IF_ERROR(CheckLayers(model, explicit_pairing, field, warnings));
  for (const std::string& warning : warnings) response.add_warnings(warning);
  if (explicit_pairing.has_value()) model.pairing = explicit_pairing;
  model.origin = "registered";
  model.owner = owner;
  *response.mutable_model() = Write(name, model);
  ROPE_RETURN_IF_ERROR(Insert(name, std::move(model)));
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
  for (const std::string& type : types) {
    RopeEntry entry;
    entry.field_ = field;
    kernels::LayerChoice choice;
    choice.layer_type = type;
    ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer, LayerOf(model, choice, field));
    ROPE_RETURN_IF_ERROR(
        Complete(std::move(layer), explicit_pairing, kernels::Compat::kDefault, entry));
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

absl::Status ModelRegistry::Insert(const std::string& name, Model model) {
  proto::WriterMutexLock lock(&mutex_);
  const auto known = models_.find(name);
  if (known != models_.end()) {
    return MakeError(Reason::kModelExists, "name",
                     absl::StrCat("\"", name, "\", which is ", known->second->origin, " already"),
                     "a name that is free");
  }
  ROPE_RETURN_IF_ERROR(registered_.Add(model.owner, model.bytes));
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
  const auto is_of_model = [&](const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (by_spec_.find(key)->second->generation_ != model.generation) return false;
    Forget(key);
    return true;
  };
  std::erase_if(oldest_first_, is_of_model);
  registered_.Remove(model.owner, model.bytes);
  models_.erase(found);
  version_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
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
  for (const auto& [name, model] : models) list.push_back(Write(name, *model));
  return list;
}

v1::Model ModelRegistry::Write(const std::string& name, const Model& model) {
  v1::Model item;
  item.set_name(name);
  item.set_origin(model.origin);
  kernels::LayerChoice first;
  if (const auto* config = std::get_if<kernels::ModelConfig>(&model.config)) {
    const std::vector<std::string>& types = config->layer_types();
    for (const std::string& type : types) item.add_layer_types(type);
    if (config->num_heads()) item.set_num_heads(*config->num_heads());
    if (config->num_kv_heads()) item.set_num_kv_heads(*config->num_kv_heads());
    if (!types.empty()) first.layer_type = types.front();
  }
  const auto layer = LayerOf(model, first, "");
  if (!layer.ok()) return item;
  item.set_pairing(WritePairing(layer->pairing));
  item.set_rope_type(std::string(kernels::Name(layer->config.rope_type)));
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

}  // namespace rope::server
