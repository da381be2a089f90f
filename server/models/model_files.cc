// The beginning of ModelRegistry: the presets, and the operator's files.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/config/presets.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/models/model.h"
#include "server/models/model_registry.h"

namespace rope::server {
namespace {

absl::StatusOr<Model> ReadJson(const std::string& name, std::string_view json) {
  ROPE_RETURN_IF_ERROR(CheckModelName("model", name));
  auto config = kernels::ModelConfig::Parse(json);
  if (!config.ok()) return Prefixed(absl::StrCat("model ", name, ": "), config.status());
  Model model;
  model.config = *std::move(config);
  model.KeepComposite(json);
  return model;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelRegistry::Create(
    absl::Span<const ModelFile> files, const Options& options) {
  std::unique_ptr<ModelRegistry> registry(new ModelRegistry(options));  // owned by registry
  for (const kernels::Preset& preset : kernels::Presets()) {
    const std::string name(preset.name);
    ROPE_ASSIGN_OR_RETURN(Model model, ReadJson(name, preset.config_json));
    model.origin = "preset";
    model.pairing = preset.pairing;
    registry->Add(name, std::move(model));
  }
  for (const ModelFile& file : files) ROPE_RETURN_IF_ERROR(registry->AddFile(file));
  return registry;
}

absl::Status ModelRegistry::AddFile(const ModelFile& file) {
  for (const FileReport& report : file_reports_) {
    if (report.name != file.name) continue;
    return InvalidField("model", absl::StrCat("\"", file.name, "\" twice"), "names once");
  }
  ROPE_ASSIGN_OR_RETURN(Model model, ReadJson(file.name, file.config_json));
  model.origin = "flag";
  FileReport report{.name = file.name};
  const absl::Status status = CheckLayers(model, std::nullopt, "", report.warnings);
  if (!status.ok()) return Prefixed(absl::StrCat("model ", file.name, ": "), status);
  report.replaces_preset = Add(file.name, std::move(model));
  file_reports_.push_back(std::move(report));
  return absl::OkStatus();
}

bool ModelRegistry::Add(const std::string& name, Model model) {
  model.Summarize();
  proto::WriterMutexLock lock(&mutex_);
  if (model.width > kWidthHereMax) had_wide_models_.store(true, std::memory_order_relaxed);
  return !models_.insert_or_assign(name, std::make_shared<const Model>(std::move(model))).second;
}

}  // namespace rope::server
