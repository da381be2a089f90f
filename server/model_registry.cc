#include "server/model_registry.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/presets.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/rope_spec.h"

namespace rope::server {
namespace {

constexpr size_t kModelNameBytesMax = 128;

absl::Status CheckName(absl::string_view name) {
  const bool legal = !name.empty() && name.size() <= kModelNameBytesMax &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                              absl::string_view("._-/").find(c) != absl::string_view::npos;
                     });
  if (legal) return absl::OkStatus();
  return InvalidField("model", absl::StrCat("\"", name.substr(0, kModelNameBytesMax), "\""),
                      "1 to 128 of a-z A-Z 0-9 . _ - /");
}

// The same bytes for the same spec.
std::string KeyOf(const v1::RopeSpec& spec) {
  std::string key;
  google::protobuf::io::StringOutputStream stream(&key);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  spec.SerializeToCodedStream(&coded);
  coded.Trim();
  return key;
}

absl::Status CheckAlternatives(const v1::RopeSpec& spec) {
  std::vector<std::string> given;
  if (!spec.model().empty()) given.push_back("model");
  if (!spec.config_id().empty()) given.push_back("config_id");
  if (spec.has_config()) given.push_back("config");
  if (!spec.config_json().empty()) given.push_back("config_json");
  if (given.size() != 1) {
    return InvalidField("rope", given.empty() ? "nothing" : absl::StrJoin(given, " and "),
                        "exactly one of model, config_id, config and config_json");
  }
  if (spec.has_layer() && !spec.layer_type().empty()) {
    return InvalidField("rope", "layer and layer_type", "at most one of them");
  }
  if (!spec.config_id().empty() && (spec.has_layer() || !spec.layer_type().empty() ||
                                    spec.pairing() != v1::PAIRING_UNSPECIFIED)) {
    return InvalidField("rope.config_id", "it beside layer, layer_type or pairing",
                        "it alone: it names them too");
  }
  return absl::OkStatus();
}

kernels::LayerChoice ChoiceOf(const v1::RopeSpec& spec) {
  kernels::LayerChoice choice;
  if (spec.has_layer()) choice.layer = spec.layer();
  choice.layer_type = spec.layer_type();
  return choice;
}

// Adds the request's field to a kernel's error, which names the config's own.
absl::Status InField(const std::string& field, const absl::Status& status) {
  const bool names_a_field_of_rope = absl::StartsWith(status.message(), "layer") ||
                                     absl::StartsWith(status.message(), "config_json: ");
  return Prefixed(names_a_field_of_rope ? "rope." : field, status);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> RopeEntry::Resolve(
    std::optional<int64_t> head_dim) const {
  if (resolved_ != nullptr) return resolved_;
  auto resolved = kernels::Resolve(layer_.config, head_dim);
  if (!resolved.ok()) return InField(field_, resolved.status());
  return resolved;
}

absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelRegistry::Create(
    const std::string& instance_id, absl::Span<const ModelFile> files) {
  std::unique_ptr<ModelRegistry> registry(new ModelRegistry(instance_id));  // owned by registry
  for (const kernels::Preset& preset : kernels::Presets()) {
    ROPE_RETURN_IF_ERROR(
        registry->Add(std::string(preset.name), "preset", preset.config_json, preset.pairing));
  }
  for (const ModelFile& file : files) {
    const auto known = registry->models_.find(file.name);
    if (known != registry->models_.end() && known->second.origin == "flag") {
      return InvalidField("model", absl::StrCat("\"", file.name, "\" twice"), "names once");
    }
    ROPE_RETURN_IF_ERROR(registry->Add(file.name, "flag", file.config_json, std::nullopt));
  }
  return registry;
}

absl::Status ModelRegistry::Add(const std::string& name, const std::string& origin,
                                std::string_view json, std::optional<kernels::Pairing> pairing) {
  ROPE_RETURN_IF_ERROR(CheckName(name));
  auto config = kernels::ModelConfig::Parse(json);
  if (!config.ok()) return Prefixed(absl::StrCat("model ", name, ": "), config.status());
  models_.insert_or_assign(name, Model{origin, *std::move(config), pairing});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RopeEntry>> ModelRegistry::Find(const v1::RopeSpec& spec) {
  ROPE_RETURN_IF_ERROR(CheckAlternatives(spec));
  if (!spec.config_id().empty()) {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = by_config_id_.find(spec.config_id());
    if (found != by_config_id_.end()) return found->second;
    return absl::NotFoundError(
        absl::StrCat("rope.config_id: got \"", spec.config_id().substr(0, 32),
                     "\", want one that Describe of this server instance gave"));
  }
  const std::string key = KeyOf(spec);
  {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = by_spec_.find(key);
    if (found != by_spec_.end()) return found->second;
  }
  ROPE_ASSIGN_OR_RETURN(std::shared_ptr<RopeEntry> entry, Read(spec));
  return Keep(key, std::move(entry));
}

absl::StatusOr<std::shared_ptr<RopeEntry>> ModelRegistry::Read(const v1::RopeSpec& spec) const {
  auto entry = std::make_shared<RopeEntry>();
  ROPE_ASSIGN_OR_RETURN(const std::optional<kernels::Pairing> explicit_pairing,
                        ReadPairing(spec.pairing()));
  auto layer = ReadLayer(spec, *entry);
  if (!layer.ok()) return InField(entry->field_, layer.status());
  entry->layer_ = *std::move(layer);
  entry->warnings_ = entry->layer_.warnings;
  entry->pairing_ = explicit_pairing.has_value() ? explicit_pairing : entry->layer_.pairing;
  if (explicit_pairing.has_value() && entry->layer_.pairing.has_value() &&
      explicit_pairing != entry->layer_.pairing) {
    entry->warnings_.push_back(
        absl::StrCat("pairing: taken as ", std::string(kernels::Name(*explicit_pairing)),
                     " because the request says so; this model's checkpoints use ",
                     std::string(kernels::Name(*entry->layer_.pairing))));
  }
  if (!entry->layer_.rotates) return entry;
  const absl::Status valid = kernels::Validate(entry->layer_.config);
  if (!valid.ok()) return InField(entry->field_, valid);
  for (std::string& warning : kernels::Warnings(entry->layer_.config)) {
    entry->warnings_.push_back(std::move(warning));
  }
  if (entry->layer_.config.head_dim.has_value()) {
    ROPE_ASSIGN_OR_RETURN(entry->resolved_, entry->Resolve(std::nullopt));
  }
  return entry;
}

absl::StatusOr<kernels::LayerConfig> ModelRegistry::ReadLayer(const v1::RopeSpec& spec,
                                                              RopeEntry& entry) const {
  if (spec.has_config()) {
    entry.field_ = "rope.config.";
    if (spec.has_layer() || !spec.layer_type().empty()) {
      return InvalidField(spec.has_layer() ? "layer" : "layer_type", "it beside config",
                          "it unset: an inline config is one layer's");
    }
    kernels::LayerConfig layer;
    ROPE_ASSIGN_OR_RETURN(layer.config, ReadRopeConfig(spec.config()));
    return layer;
  }
  if (!spec.config_json().empty()) {
    entry.field_ = "rope.config_json.";
    const auto bytes = static_cast<int64_t>(spec.config_json().size());
    if (bytes > limits::kConfigJsonBytesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("size: got ", bytes, " bytes, want at most ", limits::kConfigJsonBytesMax));
    }
    ROPE_ASSIGN_OR_RETURN(const kernels::ModelConfig model,
                          kernels::ModelConfig::Parse(spec.config_json()));
    return model.Layer(ChoiceOf(spec));
  }
  entry.field_ = "rope.model: ";
  const auto found = models_.find(spec.model());
  if (found == models_.end()) {
    return absl::NotFoundError(absl::StrCat("got \"", spec.model().substr(0, kModelNameBytesMax),
                                            "\", want a name that ListModels gives"));
  }
  ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer, found->second.config.Layer(ChoiceOf(spec)));
  if (found->second.pairing.has_value()) layer.pairing = found->second.pairing;
  return layer;
}

std::shared_ptr<const RopeEntry> ModelRegistry::Keep(const std::string& key,
                                                     std::shared_ptr<RopeEntry> entry) {
  entry->config_id_ = MakeConfigId(key);
  absl::MutexLock lock(&mutex_);
  const auto [kept, is_new] = by_spec_.try_emplace(key, entry);
  if (!is_new) return kept->second;  // another thread was first
  std::shared_ptr<const RopeEntry> result = kept->second;
  by_config_id_[result->config_id()] = result;
  oldest_first_.push_back(key);
  kept_bytes_ += CostOf(key, *result);
  while (static_cast<int64_t>(oldest_first_.size()) > limits::kSpecsMax ||
         kept_bytes_ > limits::kSpecBytesMax) {
    const auto oldest = by_spec_.find(oldest_first_.front());
    by_config_id_.erase(oldest->second->config_id());
    kept_bytes_ -= CostOf(oldest->first, *oldest->second);
    by_spec_.erase(oldest);
    oldest_first_.pop_front();
  }
  return result;
}

// About what a kept entry holds: its spec, and its frequencies with their keys.
int64_t ModelRegistry::CostOf(const std::string& key, const RopeEntry& entry) {
  constexpr int64_t kBytesPerFrequency = 6 * 2 * sizeof(kernels::InverseFrequency);
  const int64_t frequencies =
      entry.resolved_ == nullptr ? 0 : entry.resolved_->rotary_dim() / 2 * kBytesPerFrequency;
  return 2 * static_cast<int64_t>(key.size()) + frequencies;
}

// Two hashes of instance and spec: the same spec has one id, another instance gives another.
std::string ModelRegistry::MakeConfigId(const std::string& key) const {
  const uint64_t high = absl::HashOf(instance_id_, key, 0);
  const uint64_t low = absl::HashOf(instance_id_, key, 1);
  return absl::StrFormat("%016x%016x", high, low);
}

std::vector<v1::Model> ModelRegistry::List() const {
  std::vector<v1::Model> list;
  for (const auto& [name, model] : models_) {
    v1::Model& item = list.emplace_back();
    item.set_name(name);
    item.set_origin(model.origin);
    const std::vector<std::string>& types = model.config.layer_types();
    for (const std::string& type : types) item.add_layer_types(type);
    if (model.config.num_heads()) item.set_num_heads(*model.config.num_heads());
    if (model.config.num_kv_heads()) item.set_num_kv_heads(*model.config.num_kv_heads());
    kernels::LayerChoice first;
    if (!types.empty()) first.layer_type = types.front();
    const auto layer = model.config.Layer(first);
    if (!layer.ok()) continue;
    item.set_pairing(WritePairing(model.pairing.has_value() ? model.pairing : layer->pairing));
    item.set_rope_type(std::string(kernels::Name(layer->config.rope_type)));
    item.set_rope_theta(layer->config.rope_theta);
    if (layer->config.max_position_embeddings) {
      item.set_max_position_embeddings(*layer->config.max_position_embeddings);
    }
    const auto resolved = kernels::Resolve(layer->config);
    if (!resolved.ok()) continue;
    item.set_head_dim((*resolved)->head_dim());
    item.set_rotary_dim((*resolved)->rotary_dim());
  }
  return list;
}

}  // namespace rope::server
