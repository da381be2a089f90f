// Configs and what is said of them, as text (cases/configs/*.txt), without a server. Paragraphs of
// such a file:
//
//   base NAME               The text that follows, in which $ stands for the text of a case.
//   on NAME                 The cases that follow are in this base. That of the name text is $.
//   TEXT, "with", "?", "="  A case: the text of a config.json, how it is read, facts to show, and
//                           what is said of it.
//
//   with file NAME          configs/NAME.json in place of the text; with model NAME: a preset
//   with layer 3            of DescribeRequest: layer, layer_type, sub_config, pairing, compat,
//                           precision, seq_len, head_dim; positions 0 7
//   with engine vllm@0.33.0 of lint and of the fingerprint; this has max_model_len and dtype, too
//
// What is said: for each type of layers its pairing and its config with all defaults, or the error
// if lint does not find it; then the findings of lint, without readings. A case that chooses one of
// DescribeRequest's fields has the warnings of the reply in their place. Facts:
//
//   ? attention_factor      a field of the reply (DescribeResponse); inv_freq 0 63: two elements
//   ? engines               the findings of lint that are readings
//   ? heads                 the numbers of q heads and of k heads that rotate
//   ? layers                a letter for each layer: F full attention, S sliding, L linear, A any
//                           other; a small one does not rotate
//   ? key                   the KeyIdentity; ? same: how it compares with that of the last case
//
// ROPE_RECORD=FOLDER build/tests/recorder_test writes FOLDER/cases/configs/*.txt with what is said
// at present.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/lint/lint.h"
#include "client/cli/local_describe.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/config_json_layers.h"
#include "kernels/config/placement.h"
#include "kernels/config/presets.h"
#include "rope/client.h"
#include "rope/embedded.h"
#include "tests/conformance/case_file.h"

namespace rope::testing {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kConfigs = fs::path(ROPE_SOURCE_DIR) / "tests/conformance/configs";

// --- Texts ---

// "{factor 2, short_factor [1, 2, ... 48 in all, 64]}", twelve digits, without what is empty.
std::string TextOf(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_float()) return absl::StrFormat("%.12g", json.get<double>());
  if (!json.is_structured()) return json.dump();
  std::vector<std::string> parts;
  for (const auto& [key, value] : json.items()) {
    if (json.is_object() && (value.empty() || value == "")) continue;
    parts.push_back(json.is_object() ? absl::StrCat(key, " ", TextOf(value)) : TextOf(value));
  }
  if (json.is_object()) return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
  if (parts.size() > 12) {
    parts = {parts[0], parts[1], absl::StrCat("... ", parts.size(), " in all"), parts.back()};
  }
  return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
}

// "half {rope_type yarn, rope_theta 10000, head_dim 64}"
std::string LayerText(const client::DescribeReply& reply, const Json& json) {
  const std::string type = reply.layer_type.empty() ? "" : reply.layer_type + ": ";
  if (!reply.rotates) return type + "does not rotate";
  std::string text = type;
  absl::StrAppend(&text,
                  reply.pairing.has_value() ? std::string(Name(*reply.pairing)) : "no pairs");
  if (reply.channel_order.has_value()) {
    absl::StrAppend(&text, ", left ", std::string(Name(*reply.channel_order)));
  }
  return absl::StrCat(text, " ", TextOf(json.at("config")));
}

std::string FindingText(const client::Finding& finding) {
  std::vector<std::string> where = finding.layer_types;
  if (!finding.sub_config.empty()) where.insert(where.begin(), finding.sub_config);
  return absl::StrCat(client::Name(finding.rule->weight), " ", finding.rule->id, " ", finding.line,
                      where.empty() ? "" : absl::StrCat(" [", absl::StrJoin(where, ", "), "]"),
                      ": ", finding.message);
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// --- Cases ---

struct Case {
  std::vector<std::string> text = {};
  std::map<std::string, std::string> with = {};
  std::vector<std::string> shown = {};

  std::string With(const std::string& key) const {
    const auto found = with.find(key);
    return found == with.end() ? "" : found->second;
  }
  std::optional<int64_t> Number(const std::string& key) const {
    int64_t number = 0;
    if (!absl::SimpleAtoi(With(key), &number)) return std::nullopt;
    return number;
  }
};

Case CaseOf(const Paragraph& paragraph) {
  Case result = {.shown = paragraph.shown};
  for (const std::string& line : paragraph.text) {
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "with ")) {
      const std::vector<std::string> words = absl::StrSplit(rest, absl::MaxSplits(' ', 1));
      result.with[words.at(0)] = words.at(1);
    } else {
      result.text.push_back(line);
    }
  }
  return result;
}

// The config of a case, and what is said of it.
class Reader {
 public:
  Reader(const Case& each, std::string text, const client::Client& engine)
      : case_(each), text_(std::move(text)), engine_(engine) {}

  // `last`: the key of the last case that showed one, replaced by that of this one.
  std::vector<std::string> Said(Json& last) {
    Describe();
    const auto filter = client::ReadFilter(case_.With("engine"));
    if (case_.with.contains("engine") && !filter.ok()) {
      said_.push_back("error: " + filter.status().message());
    }
    const client::FileReport report =
        client::LintText("config.json", text_, filter.ok() ? *filter : kernels::EngineVersion(),
                         case_.With("sub_config"));
    std::vector<std::string> findings;
    bool names_error = error_.empty();
    for (const client::Finding& finding : report.findings) {
      const bool is_reading = finding.rule->weight == client::Weight::kReading;
      (is_reading ? readings_ : findings).push_back(FindingText(finding));
      names_error = names_error || finding.message == error_;
    }
    if (ChoosesDescription()) {
      findings.clear();
      names_error = error_.empty();
    }
    if (!names_error) said_.push_back("error: " + error_);
    said_.insert(said_.end(), findings.begin(), findings.end());
    for (const std::string& fact : case_.shown) Show(fact, last);
    return said_;
  }

 private:
  // Whether it chooses a field of DescribeRequest that lint does not have.
  bool ChoosesDescription() const {
    const std::set<std::string> others = {"file",   "model",         "sub_config",
                                          "engine", "max_model_len", "dtype"};
    return std::ranges::any_of(case_.with,
                               [&](const auto& option) { return !others.contains(option.first); });
  }

  void Describe() {
    client::DescribeRequest request = {.rope = {.config_json = text_,
                                                .layer_type = case_.With("layer_type"),
                                                .sub_config = case_.With("sub_config")},
                                       .seq_len = case_.Number("seq_len"),
                                       .head_dim = case_.Number("head_dim")};
    request.rope.layer = case_.Number("layer");
    if (const std::string pairing = case_.With("pairing"); !pairing.empty()) {
      request.rope.pairing = pairing == "half" ? Pairing::kHalf : Pairing::kInterleaved;
    }
    for (const Compat compat : {Compat::kHf, Compat::kVllm, Compat::kLlamacpp, Compat::kDeepseek}) {
      if (kernels::Name(compat) == case_.With("compat")) request.rope.compat = compat;
    }
    if (case_.With("precision") == "hf") request.rope.precision = Precision::kHf;
    for (const auto& word : absl::StrSplit(case_.With("positions"), ' ', absl::SkipEmpty())) {
      EXPECT_TRUE(absl::SimpleAtoi(word, &request.positions.emplace_back()));
    }
    const auto replies = client::DescribeHere(request);
    if (!replies.ok()) {
      error_ = replies.status().message();
      return;
    }
    for (const client::DescribeReply& reply : *replies) {
      replies_.push_back(Json::parse(client::ToJson(reply).value()));
      said_.push_back(LayerText(reply, replies_.back()));
      if (!ChoosesDescription()) continue;
      for (const std::string& warning : reply.warnings) said_.push_back("warning: " + warning);
    }
  }

  void Show(const std::string& fact, Json& last) {
    if (fact == "engines") {
      if (readings_.empty()) said_.emplace_back("no readings");
      said_.insert(said_.end(), readings_.begin(), readings_.end());
    } else if (fact == "heads") {
      const auto model = kernels::ModelConfig::Parse(text_, case_.With("sub_config"));
      said_.push_back(absl::StrCat("heads: ", model->num_heads().value_or(0), " ",
                                   model->num_kv_heads().value_or(0)));
    } else if (fact == "layers") {
      said_.push_back("layers: " + Letters());
    } else if (fact == "key" || fact == "same") {
      ShowKey(fact, last);
    } else {
      const std::vector<std::string> words = absl::StrSplit(fact, ' ');
      for (const Json& reply : replies_) ShowField(reply, words);
    }
  }

  void ShowField(const Json& reply, const std::vector<std::string>& words) {
    const Json value = reply.value(words[0], Json());
    if (words.size() == 1) return said_.push_back(absl::StrCat(words[0], ": ", TextOf(value)));
    std::vector<std::string> texts;
    for (size_t i = 1; i < words.size(); ++i) {
      texts.push_back(TextOf(value.at(std::stoul(words[i]))));
    }
    said_.push_back(absl::StrCat(words[0], ": ", absl::StrJoin(texts, ", ")));
  }

  std::string Letters() const {
    auto file = kernels::ParseJsonObject(text_);
    kernels::CompleteModel(*file, "");
    const auto document = kernels::LocateParameters(kernels::JsonFields(*file));
    const auto layers = kernels::ReadLayerList(*document);
    if (!layers.ok()) return std::string(layers.status().message());
    std::string letters;
    for (size_t i = 0; i < static_cast<size_t>(layers->count.value_or(0)); ++i) {
      const std::string type = layers->types.empty() ? "any" : layers->types[i];
      const char letter = type == "full_attention"      ? 'F'
                          : type == "sliding_attention" ? 'S'
                          : type == "linear_attention"  ? 'L'
                                                        : 'A';
      const bool rotates = layers->no_rope.empty() || !layers->no_rope[i];
      letters += rotates ? letter : absl::ascii_tolower(static_cast<unsigned char>(letter));
    }
    return letters;
  }

  void ShowKey(const std::string& fact, Json& last) {
    Json key = {{"rope", {{"config_json", text_}, {"sub_config", case_.With("sub_config")}}},
                {"engine", case_.With("engine")}};
    if (const auto length = case_.Number("max_model_len")) key["max_model_len"] = *length;
    if (const auto dim = case_.Number("head_dim")) key["head_dim"] = *dim;
    if (const std::string dtype = case_.With("dtype"); !dtype.empty()) {
      key["dtype"] = "DTYPE_" + absl::AsciiStrToUpper(dtype);
    }
    const Json request = {{"key", fact == "same" ? last : key}, {"other", key}};
    const auto reply = engine_.CallJson("Fingerprint", request.dump());
    if (!reply.ok()) return said_.push_back("key: " + reply.status().message());
    const Json parsed = Json::parse(*reply);
    said_.push_back(
        absl::StrCat(fact, ": ", TextOf(parsed.at(fact == "key" ? "key" : "comparison"))));
    last = key;
  }

  const Case& case_;
  const std::string text_;
  const client::Client& engine_;
  std::vector<std::string> said_;
  std::string error_;  // of the description; empty: there is none
  std::vector<std::string> readings_;
  std::vector<Json> replies_;
};

class ConfigCasesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ConfigCasesTest, AreReadAsTheyAre) {
  const auto engine = embedded::Connect();
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  ConfigTexts texts;
  Json last;
  using Lines = std::optional<std::vector<std::string>>;
  PlayCases(GetParam(), [&](const Paragraph& paragraph) -> Lines {
    const Case each = CaseOf(paragraph);
    std::optional<std::string> text = texts.TextOf(each.text);
    if (!text.has_value()) return std::nullopt;
    if (each.with.contains("file")) {
      text = ReadFile(kConfigs / (each.With("file") + ".json"));
    }
    if (each.with.contains("model")) text = client::PresetText(each.With("model"));
    return Reader(each, *std::move(text), *engine).Said(last);
  });
}

std::set<std::string> AllWith(const std::string& file, const std::string& key) {
  std::set<std::string> values;
  for (const Paragraph& each : ReadCases(file)) values.insert(CaseOf(each).With(key));
  return values;
}

TEST(ConfigCasesFilesTest, EveryPublishedFileAndEveryPresetHasACase) {
  const std::set<std::string> files = AllWith("configs/files.txt", "file");
  for (const fs::directory_entry& entry : fs::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".json") continue;
    EXPECT_TRUE(files.contains(entry.path().stem())) << entry.path();
  }
  const std::set<std::string> models = AllWith("configs/presets.txt", "model");
  for (const kernels::Preset& preset : kernels::Presets()) {
    EXPECT_TRUE(models.contains(std::string(preset.name))) << preset.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, ConfigCasesTest, ::testing::ValuesIn(CaseFiles("configs")),
                         [](const auto& file) { return fs::path(file.param).stem().string(); });

}  // namespace
}  // namespace rope::testing
