#include "client/cli/lint/lint.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/local_describe.h"
#include "client/error.h"
#include "kernels/check.h"
#include "kernels/compat/attention_scale.h"
#include "kernels/compat/model_family.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/embedded_data.h"
#include "kernels/config/rope_config.h"
#include "kernels/describe.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/status_macros.h"
#include "proto/error.h"

namespace rope::client {
namespace {

// In the order of Weight.
constexpr absl::string_view kWeights[] = {"note", "reading", "warning", "error"};

Weight WeightNamed(const std::string& name) {
  const auto* const found = std::find(std::begin(kWeights), std::end(kWeights), name);
  ROPE_CHECK(found != std::end(kWeights));
  return static_cast<Weight>(found - std::begin(kWeights));
}

std::vector<Rule> ReadRules() {
  std::vector<Rule> rules;
  const nlohmann::json data = nlohmann::json::parse(kernels::kRulesJson);
  for (const char* const part : {"refusals", "remarks", "others"}) {
    for (const nlohmann::json& rule : data.at(part)) {
      rules.push_back({rule.at("id"), WeightNamed(rule.at("weight")), rule.at("summary")});
    }
  }
  std::ranges::stable_sort(rules, std::greater<>(), &Rule::weight);
  return rules;
}

}  // namespace

absl::string_view Name(Weight weight) {
  return kWeights[static_cast<size_t>(weight)];
}

absl::Span<const Rule> Rules() {
  static const std::vector<Rule> rules = ReadRules();
  return rules;
}

const Rule* FindRule(std::string_view id) {
  const absl::Span<const Rule> rules = Rules();
  const auto* const found = std::ranges::find(rules, id, &Rule::id);
  return found == rules.end() ? nullptr : found;
}

const Rule& RuleOf(std::string_view id) {
  const Rule* const rule = FindRule(id);
  ROPE_CHECK(rule != nullptr);
  return *rule;
}

std::string HelpLink(const Rule& rule) {
  return absl::StrCat("client/cli/lint/RULES.md#", rule.id);
}

int64_t FileReport::CountOf(Weight weight) const {
  return std::ranges::count_if(
      findings, [weight](const Finding& finding) { return finding.rule->weight == weight; });
}

namespace {

constexpr int64_t kStepsMax = int64_t{1} << 20;
constexpr long double kNever = std::numeric_limits<long double>::infinity();

// The search in one column, whose two rows are m e^(i w p) and n e^(i v p).
struct Column {
  long double w = 0;
  long double v = 0;
  double m = 1;
  double n = 1;

  // The larger difference, of cos or of sin.
  double At(int64_t position) const {
    const kernels::CosSin first = kernels::ExactCosSin(position, w, m);
    const kernels::CosSin second = kernels::ExactCosSin(position, v, n);
    return std::max(std::abs(first.cos - second.cos), std::abs(first.sin - second.sin));
  }

  // Where D(p) first reaches `distance`, which is at least |m - n|; infinity: nowhere.
  long double Reaches(long double distance) const {
    const long double apart = std::abs(w - v);
    const long double spread = static_cast<long double>(m) - n;
    const long double product = 4.0L * m * n;
    const long double square = distance * distance - spread * spread;
    if (apart == 0 || product == 0 || square > product) return kNever;
    return 2 * std::asin(std::sqrt(std::max(square, 0.0L) / product)) / apart;
  }

  // A bound of the derivatives of both differences where D is at most `distance`.
  long double Slope(long double distance) const { return w * distance + std::abs(w - v) * n; }
};

// A position of `real`, rounded up; `end` where it is larger.
int64_t Ceiling(long double real, int64_t end) {
  return real < static_cast<long double>(end) ? static_cast<int64_t>(std::ceil(real)) : end;
}

// Searches the positions before `end`; takes evaluations from `steps`.
FirstDifference Search(const Column& column, double error, int64_t end, int64_t& steps) {
  constexpr long double kRoot = std::numbers::sqrt2_v<long double>;
  const int64_t certain = Ceiling(column.Reaches(kRoot * error), end);
  // One position earlier, in case the number is rounded up.
  int64_t p = std::max(Ceiling(column.Reaches(error), end) - 1, int64_t{0});
  while (p < end) {
    if (--steps < 0) {
      FirstDifference bound = {.exact = false};
      if (certain < end) bound.position = std::max(certain, p);
      return bound;
    }
    const double difference = column.At(p);
    if (difference > error) return {.position = p};
    const bool before = p < certain;  // D is at most sqrt(2) * error here
    const long double slope =
        column.Slope(before ? kRoot * error : static_cast<long double>(column.m) + column.n);
    const int64_t next = p + Ceiling(std::floor((error - difference) / slope), end);
    p = std::max(p + 1, before ? std::min(next, certain) : next);
  }
  return {};
}

}  // namespace

FirstDifference FindFirstDifference(const Turns& a, const Turns& b, double error, int64_t end) {
  FirstDifference first;
  const size_t columns = std::min(a.inv_freq.size(), b.inv_freq.size());
  if (columns == 0 || end <= 0) return first;
  if (std::abs(a.factor - b.factor) > error) return {.position = 0};  // cos 0 differs
  int64_t steps = kStepsMax;
  for (size_t i = 0; i < columns; ++i) {
    const Column column = {a.inv_freq[i], b.inv_freq[i], a.factor, b.factor};
    if (column.Reaches(error) == kNever) continue;
    const FirstDifference found = Search(column, error, first.position.value_or(end), steps);
    first.exact = first.exact && found.exact;
    if (!found.position.has_value()) continue;
    first.position = found.position;
    first.column = i;
  }
  return first;
}

namespace {

constexpr size_t kKeysMax = 4096;
constexpr size_t kDepthMax = 8;
constexpr size_t kKeyBytesMax = 128;

// Counts the lines that the parser has read. Copies share the count.
class LineIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineIterator(const char* at, int64_t* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  LineIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
    return *this;
  }
  bool operator==(const LineIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  int64_t* line_;
};

}  // namespace

// The events of the parser, which reads no further than the end of a key before it reports it.
class KeyReader : public nlohmann::detail::json_sax_acceptor<nlohmann::json> {
 public:
  KeyReader(KeyLines& lines, const int64_t& line) : lines_(lines), line_(line) {}

  bool string(string_t& value) {
    if (value.size() > kKeyBytesMax || depth_ == 0 || depth_ > kDepthMax) return true;
    const std::string path = Path();
    if (path == ".text_config.model_type" ||
        (path == ".model_type" && lines_.model_type_.empty())) {
      lines_.model_type_ = value;
    }
    return true;
  }
  bool start_object(size_t /*elements*/) { return Open(); }
  bool end_object() { return Close(); }
  bool start_array(size_t /*elements*/) { return Open(); }
  bool end_array() { return Close(); }
  bool key(string_t& name) {
    if (depth_ == 0 || depth_ > kDepthMax) return true;
    levels_[depth_ - 1] = name.size() > kKeyBytesMax ? std::string() : name;
    if (lines_.keys_.size() < kKeysMax && name.size() <= kKeyBytesMax) {
      lines_.keys_.push_back({Path(), line_});
    }
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) {
    lines_.error_line_ = line_;
    return false;
  }

 private:
  bool Open() {
    if (++depth_ <= kDepthMax) levels_[depth_ - 1].clear();  // an array's elements have no key
    return true;
  }
  bool Close() {
    --depth_;
    return true;
  }
  // The path of the last key. REQUIRES: 1 <= depth_ <= kDepthMax.
  std::string Path() const {
    std::string path;
    for (size_t level = 0; level < depth_; ++level) {
      if (!levels_[level].empty()) absl::StrAppend(&path, ".", levels_[level]);
    }
    return path;
  }

  KeyLines& lines_;
  const int64_t& line_;
  size_t depth_ = 0;  // open objects and arrays
  std::string levels_[kDepthMax];
};

KeyLines KeyLines::Of(absl::string_view json) {
  KeyLines lines;
  int64_t line = 1;
  KeyReader reader(lines, line);
  nlohmann::json::sax_parse(LineIterator(json.data(), &line),
                            LineIterator(json.data() + json.size(), &line), &reader);
  return lines;
}

std::optional<int64_t> KeyLines::Find(absl::string_view path, absl::string_view layer_type,
                                      absl::string_view within) const {
  if (path.empty()) return std::nullopt;
  const std::string suffix = absl::StrCat(".", path);
  const std::string layer = absl::StrCat(".", layer_type, ".");
  const std::string around = within.empty() ? "." : absl::StrCat(".", within, ".");
  int best = 0;
  std::optional<int64_t> line;
  for (const Key& key : keys_) {
    if (!absl::EndsWith(key.path, suffix)) continue;
    if (!absl::StartsWith(absl::StrCat(key.path, "."), around)) continue;
    int score = 1;
    if (!layer_type.empty() && absl::StrContains(key.path, layer)) score += 4;
    if (absl::StrContains(key.path, ".rope_parameters.") ||
        absl::StrContains(key.path, ".rope_scaling.")) {
      score += 2;
    }
    if (score <= best) continue;
    best = score;
    line = key.line;
  }
  return line;
}

namespace {

Finding FindingOf(const Reading& reading) {
  const bool rotates = reading.attention_factor != 0;
  return {.rule = &RuleOf(rotates ? "read-differently" : "no-such-rotation"),
          .message = absl::StrCat(EngineText(reading), rotates ? ": " : " ",
                                  WithNumbers(reading.difference, reading.attention_factor,
                                              reading.inv_freq_max_relative)),
          .engine = reading.engine,
          .version = reading.version};
}

// Whether "0.12.0 to 0.21.0", or one version, has `version`.
bool HasVersion(absl::string_view versions, const std::string& version) {
  const std::vector<std::string> ends = absl::StrSplit(versions, " to ");
  return kernels::IsBetween(ends.front(), version, ends.back());
}

bool Passes(const Finding& finding, const kernels::EngineVersion& filter) {
  if (!filter.engine.empty() && finding.engine != filter.engine) return false;
  return filter.version.empty() || HasVersion(finding.version, filter.version);
}

// What to say of a version that was never compared; unset: it was, or none is asked for.
std::optional<Finding> VersionFinding(const kernels::EngineVersion& filter) {
  if (filter.version.empty()) return std::nullopt;
  const std::vector<std::string> compared = kernels::ComparedVersions(filter.engine);
  const auto has_version = [&filter](const std::string& versions) {
    return HasVersion(versions, filter.version);
  };
  if (absl::c_any_of(compared, has_version)) return std::nullopt;
  return Finding{
      .rule = &RuleOf("version-not-compared"),
      .message = absl::StrCat(filter.engine, " ", filter.version,
                              " was never compared; compared were ", absl::StrJoin(compared, ", ")),
      .engine = filter.engine,
      .version = filter.version};
}

// The readings that differ at length 1 or at the model's own length, one for each engine and
// version that passes `filter`. Field, line and layer types are not set.
std::vector<Finding> EngineReadings(const kernels::LayerRope& rope,
                                    const kernels::ResolvedRope& resolved,
                                    const kernels::EngineVersion& filter) {
  std::vector<Finding> findings;
  const int64_t length = rope.layer.config.max_position_embeddings.value_or(1);
  for (const int64_t seq_len : {int64_t{1}, length}) {
    for (const Reading& reading :
         kernels::Readings(rope.stated, rope.layer.names, resolved, seq_len)) {
      Finding finding = FindingOf(reading);
      const auto is_same = [&finding](const Finding& other) {
        return other.engine == finding.engine && other.version == finding.version;
      };
      if (!Passes(finding, filter) || std::ranges::any_of(findings, is_same)) continue;
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

// Lints one file: adds findings, each with its field and line.
class Linter {
 public:
  Linter(absl::string_view text, const kernels::EngineVersion& filter, FileReport& report)
      : keys_(KeyLines::Of(text)), filter_(filter), report_(report) {
    report_.model_type = keys_.model_type();
  }

  // What this program does not support of a `tower` is no error of the file.
  void Lint(const absl::StatusOr<kernels::ModelConfig>& config, absl::string_view sub_config,
            bool tower) {
    sub_config_ = std::string(sub_config);
    if (!config.ok() && tower) {
      return Add("", {.rule = &RuleOf("tower-not-supported"),
                      .field = proto::PartsOf(config.status()).field,
                      .message = std::string(config.status().message())});
    }
    if (!config.ok()) return AddRefusal("", config.status());
    std::vector<std::string> types = config->layer_types();
    if (types.empty()) types.emplace_back();  // all layers are equal
    for (const std::string& type : types) {
      const absl::Status status = LintLayer(*config, type);
      if (!status.ok()) AddRefusal(type, status);
    }
  }

  // The report's columns are those of what was linted so far.
  void KeepColumns() { described_ = true; }

  void Finish() {
    if (auto finding = VersionFinding(filter_)) report_.findings.push_back(*std::move(finding));
    report_.rope_type = absl::StrJoin(rope_types_, ", ");
    std::ranges::stable_sort(report_.findings, std::greater<>(),
                             [](const Finding& finding) { return finding.rule->weight; });
  }

 private:
  // Fills the report's columns. REQUIRES: described_ is false.
  void Describe(const kernels::LayerConfig& layer) {
    if (layer.pairing.has_value()) report_.pairing = std::string(Name(*layer.pairing));
    if (!sub_config_.empty() && !layer.names.model_type.empty())
      report_.model_type = layer.names.model_type;
    if (!layer.rotates) return;
    const std::string rope_type(Name(layer.config.rope_type));
    if (!absl::c_linear_search(rope_types_, rope_type)) rope_types_.push_back(rope_type);
  }

  // INVALID_ARGUMENT: the layer is refused.
  absl::Status LintLayer(const kernels::ModelConfig& config, const std::string& type) {
    ROPE_ASSIGN_OR_RETURN(kernels::LayerConfig layer, config.Layer({.layer_type = type}));
    if (!described_) Describe(layer);
    if (layer.rotates) ROPE_RETURN_IF_ERROR(kernels::Validate(layer.config));
    ROPE_ASSIGN_OR_RETURN(
        const kernels::LayerRope rope,
        kernels::ReadLayer(std::move(layer), std::nullopt, kernels::Compat::kDefault));
    for (const kernels::Remark& remark : kernels::RemarksOf(rope)) {
      // Published files have many towers that are not known here.
      const bool tower = described_ && remark.kind == kernels::RemarkKind::kUnknownModelType;
      Add(type,
          {.rule = tower ? &RuleOf("tower-not-supported") : &RuleOf(kernels::Name(remark.kind)),
           .field = remark.field,
           .message = remark.text});
    }
    if (!rope.layer.rotates) return absl::OkStatus();
    if (!rope.layer.config.head_dim.has_value()) {
      Add(type, {.rule = &RuleOf(kernels::Name(kernels::RemarkKind::kNoHeadDim)),
                 .field = "head_dim",
                 .message = "head_dim: got nothing, want the channels of a head; the "
                            "readings of engines are not compared"});
      return absl::OkStatus();
    }
    ROPE_ASSIGN_OR_RETURN(const auto resolved, kernels::Resolve(rope.layer.config));
    for (Finding& finding : EngineReadings(rope, *resolved, filter_)) {
      Add(type, std::move(finding));
    }
    LintScale(type, rope);
    return absl::OkStatus();
  }

  // The engines that scale attention in another way than the model's code.
  void LintScale(const std::string& type, const kernels::LayerRope& rope) {
    const double factor = kernels::AttentionFactor(rope.stated);
    const AttentionScale own = kernels::ScaleOf(rope.layer, rope.stated, factor);
    for (const ScaleReading& reading :
         kernels::ScaleReadings(rope.layer, rope.stated, own, factor)) {
      Finding finding = {.rule = &RuleOf("scaled-differently"),
                         .message = absl::StrCat(EngineText(reading), ": ", reading.difference),
                         .engine = reading.engine,
                         .version = reading.version};
      if (Passes(finding, filter_)) Add(type, std::move(finding));
    }
  }

  void AddRefusal(const std::string& type, const absl::Status& status) {
    const proto::ErrorParts parts = proto::PartsOf(status);
    std::string_view rule = parts.got == "nothing" ? "missing-value" : "invalid-value";
    if (parts.field == "config_json") rule = "syntax";
    if (absl::EndsWith(parts.field, "model_type")) rule = "not-supported";
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
    finding.line = NearestLine(finding.field, type);
  }

  int64_t NearestLine(absl::string_view field, const std::string& type) const {
    while (!field.empty()) {
      if (const auto line = LineOf(field, type)) return *line;
      const size_t dot = field.rfind('.');
      field = field.substr(0, dot == absl::string_view::npos ? 0 : dot);
    }
    for (const absl::string_view around :
         {"rope_type", "type", "rope_parameters", "rope_scaling", "rope_theta", "model_type"}) {
      if (const auto line = LineOf(around, type)) return *line;
    }
    return keys_.Find(sub_config_, "").value_or(1);
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
  const kernels::EngineVersion& filter_;
  FileReport& report_;
  std::vector<std::string> rope_types_;  // each once
  std::string sub_config_;               // the one that is being linted
  bool described_ = false;               // the report's columns are those of a config before
};

}  // namespace

Result<kernels::EngineVersion> ReadFilter(const std::string& text) {
  const auto filter = kernels::SplitEngine(text);
  if (!filter.ok()) return ToStatus(filter.status());
  if (filter->version.empty()) return *filter;
  const auto newest = std::ranges::find(kernels::EngineTable(), std::string_view(filter->engine),
                                        &kernels::EngineVersions::engine);
  const bool readable =
      kernels::ParseRelease(newest->last).has_value()
          ? kernels::ParseRelease(filter->version).has_value()
          : absl::c_all_of(filter->version, [](char c) {
              return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-';
            });
  if (readable) return *filter;
  return InvalidField("engine", text,
                      absl::StrCat("a version such as ", std::string(newest->last)));
}

FileReport LintText(absl::string_view file, absl::string_view text,
                    const kernels::EngineVersion& filter, absl::string_view sub_config) {
  FileReport report = {.file = std::string(file)};
  const std::string_view json(text.data(), text.size());
  const auto parse = [&](absl::string_view name) {
    return kernels::ModelConfig::Parse(json, {name.data(), name.size()});
  };
  const auto found = kernels::FindSubConfigs(json);
  Linter linter(text, filter, report);
  if (!sub_config.empty() || !found.ok() || found->readable_without_choice) {
    linter.Lint(parse(sub_config), sub_config, /*tower=*/false);
    linter.KeepColumns();
  }
  if (sub_config.empty() && found.ok()) {
    for (const kernels::SubConfig& sub : found->configs) {
      // The file's text_config is what the file is read by.
      if (sub.states_rope && sub.name != "text_config") {
        linter.Lint(parse(sub.name), sub.name, !sub.unsupported.empty());
      }
    }
  }
  linter.Finish();
  return report;
}

}  // namespace rope::client
