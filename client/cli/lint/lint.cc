#include "client/cli/lint/lint.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "client/cli/lint/engine_readings.h"
#include "client/cli/lint/key_lines.h"
#include "kernels/config/config_json.h"
#include "kernels/config/rope_config.h"
#include "kernels/config/sub_configs.h"
#include "kernels/config/validate_config.h"
#include "kernels/describe.h"
#include "proto/error.h"

namespace rope::client {
namespace {

// Lints one file: adds findings, each with its field and line.
class Linter {
 public:
  Linter(absl::string_view text, const EngineFilter& filter, FileReport& report)
      : keys_(KeyLines::Of(text)), filter_(filter), report_(report) {
    report_.model_type = keys_.model_type();
  }

  // Lints the config that the report's columns describe: the file's, or the chosen sub-config.
  void Lint(const absl::StatusOr<kernels::ModelConfig>& config, absl::string_view sub_config) {
    LintOne(config, sub_config, /*tower=*/false);
    described_ = true;
  }

  // Lints another one. What this program does not support is no error of the file.
  void LintSub(const absl::StatusOr<kernels::ModelConfig>& config, const kernels::SubConfig& sub) {
    LintOne(config, sub.name, !sub.unsupported.empty());
  }

  void Finish() {
    if (auto finding = VersionFinding(filter_)) report_.findings.push_back(*std::move(finding));
    report_.rope_type = absl::StrJoin(rope_types_, ", ");
    std::ranges::stable_sort(report_.findings, std::greater<>(),
                             [](const Finding& finding) { return finding.rule->weight; });
  }

 private:
  void LintOne(const absl::StatusOr<kernels::ModelConfig>& config, absl::string_view sub_config,
               bool tower) {
    sub_config_ = std::string(sub_config);
    if (!config.ok() && tower) {
      return Add("", {.rule = &RuleOf(kTowerNotSupported),
                      .field = proto::PartsOf(config.status()).field,
                      .message = std::string(config.status().message())});
    }
    if (!config.ok()) return AddRefusal("", config.status());
    std::vector<std::string> types = config->layer_types();
    if (types.empty()) types.emplace_back();  // all layers are equal
    for (const std::string& type : types) {
      kernels::LayerChoice choice;
      choice.layer_type = type;
      auto layer = config->Layer(choice);
      if (layer.ok()) {
        LintLayer(type, *std::move(layer));
      } else {
        AddRefusal(type, layer.status());
      }
    }
  }

  // Fills the report's columns. REQUIRES: described_ is false.
  void Describe(const kernels::LayerConfig& layer) {
    if (layer.pairing.has_value()) report_.pairing = std::string(Name(*layer.pairing));
    if (!sub_config_.empty() && !layer.model_type.empty()) report_.model_type = layer.model_type;
    if (!layer.rotates) return;
    const std::string rope_type(Name(layer.config.rope_type));
    if (!absl::c_linear_search(rope_types_, rope_type)) rope_types_.push_back(rope_type);
  }

  void LintLayer(const std::string& type, kernels::LayerConfig layer) {
    if (!described_) Describe(layer);
    if (layer.rotates) {
      if (const absl::Status valid = kernels::Validate(layer.config); !valid.ok()) {
        return AddRefusal(type, valid);
      }
    }
    const auto rope = kernels::ReadLayer(std::move(layer), std::nullopt, kernels::Compat::kDefault);
    if (!rope.ok()) return AddRefusal(type, rope.status());
    for (const kernels::Remark& remark : kernels::RemarksOf(*rope)) {
      // Published files have many towers that are not known here.
      const bool tower = described_ && remark.kind == kernels::RemarkKind::kUnknownModelType;
      Add(type, {.rule = tower ? &RuleOf(kTowerNotSupported) : &RuleOf(remark.kind),
                 .field = remark.field,
                 .message = remark.text});
    }
    if (!rope->layer.rotates) return;
    if (!rope->layer.config.head_dim.has_value()) {
      return Add(type, {.rule = &RuleOf(kernels::RemarkKind::kNoHeadDim),
                        .field = "head_dim",
                        .message = "head_dim: got nothing, want the channels of a head; the "
                                   "readings of engines are not compared"});
    }
    const auto resolved = kernels::Resolve(rope->layer.config);
    if (!resolved.ok()) return AddRefusal(type, resolved.status());
    for (Finding& finding : EngineReadings(*rope, **resolved, filter_)) {
      Add(type, std::move(finding));
    }
  }

  void AddRefusal(const std::string& type, const absl::Status& status) {
    const proto::ErrorParts parts = proto::PartsOf(status);
    absl::string_view rule = parts.got == "nothing" ? kMissingValue : kInvalidValue;
    if (parts.field == "config_json") rule = kSyntax;
    if (absl::EndsWith(parts.field, "model_type")) rule = kNotSupported;
    Add(type,
        {.rule = &RuleOf(rule), .field = parts.field, .message = std::string(status.message())});
  }

  // A finding of several layer types is one finding.
  void Add(const std::string& type, Finding finding) {
    finding.sub_config = sub_config_;
    for (Finding& other : report_.findings) {
      if (other.rule != finding.rule || other.message != finding.message) continue;
      if (other.sub_config != finding.sub_config) continue;
      other.layer_types.push_back(type);
      return;
    }
    if (!type.empty()) finding.layer_types.push_back(type);
    Locate(type, finding);
    report_.findings.push_back(std::move(finding));
  }

  // Sets the field and its line. The line of a field that the file lacks is that of its object.
  void Locate(const std::string& type, Finding& finding) const {
    if (finding.field == "config_json") {
      finding.field.clear();
      finding.line = keys_.error_line().value_or(1);
      return;
    }
    if (finding.field.empty()) finding.field = std::string(FirstKeyIn(finding.message));
    absl::string_view field = finding.field;
    while (!field.empty()) {
      if (const auto line = LineOf(field, type); line.has_value()) {
        finding.line = *line;
        return;
      }
      const size_t dot = field.rfind('.');
      field = field.substr(0, dot == absl::string_view::npos ? 0 : dot);
    }
    for (const absl::string_view around :
         {"rope_type", "type", "rope_parameters", "rope_scaling", "rope_theta", "model_type"}) {
      if (const auto line = LineOf(around, type); line.has_value()) {
        finding.line = *line;
        return;
      }
    }
    finding.line = keys_.Find(sub_config_, "").value_or(1);
  }

  // "inv_freq[3]" is in the line of inv_freq.
  std::optional<int64_t> LineOf(absl::string_view field, const std::string& type) const {
    return keys_.Find(field.substr(0, field.find('[')), type, sub_config_);
  }

  // The first word of `message` that is a key of the file.
  absl::string_view FirstKeyIn(absl::string_view message) const {
    const auto is_key_char = [](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
    };
    for (size_t begin = 0; begin < message.size();) {
      size_t end = begin;
      while (end < message.size() && is_key_char(message[end])) ++end;
      absl::string_view word = message.substr(begin, end - begin);
      while (absl::EndsWith(word, ".")) word.remove_suffix(1);
      if (word != "type" && LineOf(word, "").has_value()) return word;
      begin = end + 1;
    }
    return {};
  }

  const KeyLines keys_;
  const EngineFilter& filter_;
  FileReport& report_;
  std::vector<std::string> rope_types_;  // each once
  std::string sub_config_;               // the one that is being linted
  bool described_ = false;               // the report's columns are those of a config before
};

}  // namespace

FileReport LintText(absl::string_view file, absl::string_view text, const EngineFilter& filter,
                    absl::string_view sub_config) {
  FileReport report;
  report.file = std::string(file);
  const std::string_view json(text.data(), text.size());
  const auto parse = [&](absl::string_view name) {
    return kernels::ModelConfig::Parse(json, {name.data(), name.size()});
  };
  const auto found = kernels::FindSubConfigs(json);
  Linter linter(text, filter, report);
  if (!sub_config.empty() || !found.ok() || found->readable_without_choice) {
    linter.Lint(parse(sub_config), sub_config);
  }
  if (sub_config.empty() && found.ok()) {
    for (const kernels::SubConfig& sub : found->configs) {
      // The file's text_config is what the file is read by.
      if (sub.states_rope && sub.name != "text_config") linter.LintSub(parse(sub.name), sub);
    }
  }
  linter.Finish();
  return report;
}

FileReport LintModel(absl::string_view file, const absl::StatusOr<kernels::ModelConfig>& config,
                     const EngineFilter& filter) {
  FileReport report;
  report.file = std::string(file);
  Linter linter("", filter, report);
  linter.Lint(config, "");
  linter.Finish();
  return report;
}

}  // namespace rope::client
