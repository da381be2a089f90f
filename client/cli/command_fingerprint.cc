// fingerprint: names the rotation of K as an engine computes it, for the key of a KV cache.
// same: whether the K of two configs, or of two engines, is the same.

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

std::vector<Flag> KeyFlags(const std::string& engine_help) {
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

// These two are messages of rope.v1: RopeSpec and KeySource.
Result<Json> RopeOf(const Arguments& arguments, size_t which) {
  const std::string model = arguments.Text("model");
  const std::vector<std::string>& paths = arguments.positional();
  if (paths.empty() == model.empty()) {
    return Misused(absl::StrCat("got ", paths.size(), " files",
                                model.empty() ? "" : " and a --model", ", want CONFIG or --model"));
  }
  Json rope = {{"sub_config", arguments.Text("sub_config")}};
  if (paths.empty()) {
    rope["model"] = model;
    return rope;
  }
  ROPE_ASSIGN_OR_RETURN(rope["config_json"], ReadConfig(*OfSide(which, paths)));
  return rope;
}

Result<Json> KeyOf(const Arguments& arguments, size_t which) {
  ROPE_ASSIGN_OR_RETURN(Json rope, RopeOf(arguments, which));
  Json key = {{"rope", std::move(rope)},
              {"engine", OfSide(which, arguments.Texts("engine")).value_or("")}};
  if (const auto length = OfSide(which, arguments.Integers("max_model_len"))) {
    key["max_model_len"] = *length;
  }
  if (const auto head_dim = arguments.Integer("head_dim")) key["head_dim"] = *head_dim;
  if (const auto dtype = OfSide(which, arguments.Texts("dtype"))) {
    if (*dtype != "fp32" && *dtype != "fp16" && *dtype != "bf16") {
      return Misused(absl::StrCat("--dtype: got ", *dtype, ", want fp32, fp16 or bf16"));
    }
    key["dtype"] = absl::StrCat("DTYPE_", absl::AsciiStrToUpper(*dtype));
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

Status CheckCounts(const Arguments& arguments, size_t count) {
  for (const auto& [name, got] : CountsOf(arguments)) {
    if (got <= count) continue;
    return Misused(absl::StrCat(name, name.empty() ? "got " : ": got ", got,
                                name.empty() ? " files" : " values", ", want at most ", count));
  }
  return {};
}

Result<std::string> Ask(const Arguments& arguments, size_t count) {
  ROPE_RETURN_IF_ERROR(CheckCounts(arguments, count));
  Json request;
  for (size_t which = 0; which < count; ++which) {
    ROPE_ASSIGN_OR_RETURN(request[which == 0 ? "key" : "other"], KeyOf(arguments, which));
  }
  ROPE_ASSIGN_OR_RETURN(const Client client, ConnectToAny(arguments));
  return client.CallJson("Fingerprint", JsonText(request), CallOptionsOf(arguments));
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

// The request is made of the arguments alone, so what is wrong with it is wrong usage.
Status MisusedIfInvalid(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument ? Misused(status.message()) : status;
}

Result<int> RunFingerprint(const Arguments& arguments) {
  const Result<std::string> reply = Ask(arguments, 1);
  if (!reply.ok()) return MisusedIfInvalid(reply.status());
  if (arguments.Has("json")) {
    absl::PrintF("%s", *reply);
  } else {
    absl::PrintF("%s\n", Json::parse(*reply).at("key").at("fingerprint").get<std::string>());
  }
  return kExitOk;
}

Result<int> RunSame(const Arguments& arguments) {
  const auto is_pair = [](const auto& each) { return each.second >= 2; };
  if (std::ranges::none_of(CountsOf(arguments), is_pair)) {
    return Misused(
        "same: got one side, want two files, or two values of --engine, "
        "--max_model_len or --dtype");
  }
  const Result<std::string> reply = Ask(arguments, 2);
  if (!reply.ok()) return MisusedIfInvalid(reply.status());
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

}  // namespace

Command FingerprintCommand() {
  return {"fingerprint",
          "[CONFIG]",
          "Prints the name of the rotation that an engine gives K, for the key of a KV cache.",
          KeyFlags("Whose K: hf, vllm, sglang, llamacpp, deepseek. Default: as written."),
          &RunFingerprint,
          Command::Asks::kAny};
}

Command SameCommand() {
  return {"same",
          "A [B]",
          "Says whether the K of two configs, or of two engines, is the same.",
          KeyFlags("Whose K: hf, vllm, sglang, llamacpp, deepseek; or A's, a comma, B's."),
          &RunSame,
          Command::Asks::kAny,
          "Exit status 0: the same; 1: they differ; 2: a config cannot be read, or wrong usage."};
}

}  // namespace rope::client
