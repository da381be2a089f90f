// fingerprint: names the rotation of K as an engine computes it, for the key of a KV cache.
// same: whether the K of two configs, or of two engines, is the same.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "client/cli/npy.h"

namespace rope::client {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Flag> KeyFlags(absl::string_view engine_help) {
  return {
      {"engine", FlagKind::kTexts, "NAME[@VERSION]", engine_help},
      {"max_model_len", FlagKind::kIntegers, "N", "The length that the engine is started with."},
      {"dtype", FlagKind::kTexts, "DTYPE", "Of K: fp32, fp16 or bf16. Default: left out."},
      {"model", FlagKind::kText, "NAME", "A model that the engine knows, in place of a file."},
      {"sub_config", FlagKind::kText, "NAME", "The config inside a composite config.json."},
      {"head_dim", FlagKind::kInteger, "N", "Channels of a head, where the config does not say."},
      kJsonFlag,
  };
}

// The value of A or of B: the only one is that of both.
template <typename T>
std::optional<T> Of(size_t which, const std::vector<T>& values) {
  if (values.empty()) return std::nullopt;
  return values[std::min(which, values.size() - 1)];
}

Result<std::optional<DType>> DTypeNamed(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    if (NameOf(dtype) == name) return std::optional<DType>(dtype);
  }
  return Misused(absl::StrCat("--dtype: got ", name, ", want fp32, fp16 or bf16"));
}

Result<RopeSpec> SpecOf(const Arguments& arguments, size_t which) {
  RopeSpec spec = {.model = arguments.Text("model")};
  spec.sub_config = arguments.Text("sub_config");
  const std::vector<std::string>& paths = arguments.positional();
  if (paths.empty() == spec.model.empty()) {
    return Misused(absl::StrCat("got ", paths.size(), " files", spec.model.empty() ? "" : " and a ",
                                spec.model.empty() ? "" : "--model", ", want CONFIG or --model"));
  }
  if (paths.empty()) return spec;
  Result<std::string> text = ReadConfig(paths[std::min(which, paths.size() - 1)]);
  if (!text.ok()) return text.status();
  spec.config_json = *std::move(text);
  return spec;
}

Result<KeySource> KeyOf(const Arguments& arguments, size_t which) {
  Result<RopeSpec> spec = SpecOf(arguments, which);
  if (!spec.ok()) return spec.status();
  KeySource key = {.rope = *std::move(spec),
                   .engine = Of(which, arguments.Texts("engine")).value_or(""),
                   .max_model_len = Of(which, arguments.Integers("max_model_len")),
                   .head_dim = arguments.Integer("head_dim")};
  if (const auto name = Of(which, arguments.Texts("dtype")); name.has_value()) {
    const Result<std::optional<DType>> dtype = DTypeNamed(*name);
    if (!dtype.ok()) return dtype.status();
    key.dtype = *dtype;
  }
  return key;
}

// How many values stand for A and B, by flag; files have no flag.
std::vector<std::pair<absl::string_view, size_t>> CountsOf(const Arguments& arguments) {
  return {{"", arguments.positional().size()},
          {"--engine", arguments.Texts("engine").size()},
          {"--max_model_len", arguments.Integers("max_model_len").size()},
          {"--dtype", arguments.Texts("dtype").size()}};
}

// At most `count` of each value.
Status CheckCounts(const Arguments& arguments, size_t count) {
  for (const auto& [name, got] : CountsOf(arguments)) {
    if (got <= count) continue;
    return Misused(absl::StrCat(name, name.empty() ? "got " : ": got ", got,
                                name.empty() ? " files" : " values", ", want at most ", count));
  }
  return {};
}

Result<std::string> Ask(const Arguments& arguments, size_t count) {
  if (const Status status = CheckCounts(arguments, count); !status.ok()) return status;
  FingerprintRequest request;
  Result<KeySource> key = KeyOf(arguments, 0);
  if (!key.ok()) return key.status();
  request.key = *std::move(key);
  if (count > 1) {
    Result<KeySource> other = KeyOf(arguments, 1);
    if (!other.ok()) return other.status();
    request.other = *std::move(other);
  }
  const Result<Client> client = ConnectToAny(arguments);
  if (!client.ok()) return client.status();
  return client->FingerprintJson(request, CallOptionsOf(arguments));
}

constexpr absl::string_view kSame = "KEY_MATCH_SAME";

absl::string_view SentenceOf(absl::string_view match) {
  constexpr std::pair<absl::string_view, absl::string_view> kSentences[] = {
      {kSame, "same: an engine writes the same bits of K on one machine"},
      {"KEY_MATCH_ROUNDING", "same rotation: bits of K may differ by rounding"},
      {"KEY_MATCH_REORDERED", "same rotation: the channels of K stand in another order"},
      {"KEY_MATCH_CONVERTIBLE",
       "convertible by one rotation, in the first layer: the keys of deeper layers come from "
       "hidden states that A's rotation shaped"},
      {"KEY_MATCH_DIFFERENT", "different: no rotation turns K of A into K of B"}};
  for (const auto& [name, sentence] : kSentences) {
    if (name == match) return sentence;
  }
  return "not compared: the server does not say";
}

}  // namespace

std::vector<Flag> FingerprintFlags() {
  return KeyFlags("Whose K: hf, vllm, sglang, llamacpp, deepseek. Default: as written.");
}

std::vector<Flag> SameFlags() {
  return KeyFlags("Whose K: hf, vllm, sglang, llamacpp, deepseek; or A's, a comma, B's.");
}

int RunFingerprint(const Arguments& arguments) {
  const Result<std::string> reply = Ask(arguments, 1);
  if (!reply.ok()) return FailOrMisuse(reply.status());
  if (arguments.Has("json")) {
    absl::PrintF("%s", *reply);
  } else {
    absl::PrintF("%s\n", Json::parse(*reply).at("key").at("fingerprint").get<std::string>());
  }
  return kExitOk;
}

int RunSame(const Arguments& arguments) {
  const auto counts = CountsOf(arguments);
  if (std::none_of(counts.begin(), counts.end(),
                   [](const auto& each) { return each.second >= 2; })) {
    return Misuse(
        "same: got one side, want two files, or two values of --engine, "
        "--max_model_len or --dtype");
  }
  const Result<std::string> reply = Ask(arguments, 2);
  if (!reply.ok()) {
    FailOrMisuse(reply.status());
    return kExitUsage;
  }
  const Json comparison = Json::parse(*reply).at("comparison");
  const Json& match = comparison.at("match");  // a number: of a newer server
  if (arguments.Has("json")) {
    absl::PrintF("%s", *reply);
  } else {
    absl::PrintF("%s\n", SentenceOf(match.is_string() ? match.get<std::string>() : ""));
    for (const Json& difference : comparison.at("differences")) {
      absl::PrintF("  %s\n", difference.get<std::string>());
    }
  }
  return match == Json(kSame) ? kExitOk : kExitFailed;
}

}  // namespace rope::client
