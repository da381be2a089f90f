#include "client/cli/commands.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/arguments.h"
#include "client/cli/local_describe.h"
#include "client/cli/npy.h"
#include "kernels/config/presets.h"
#include "kernels/status_macros.h"
#include "proto/nearest_name.h"
#include "proto/version.h"
#include "rope/embedded.h"

namespace rope::client {
namespace {

constexpr int64_t kConfigBytesMax = int64_t{1} << 20;
constexpr absl::string_view kDefaultTarget = "127.0.0.1:50051";

constexpr absl::string_view kLintExits =
    "Exit status 0: no finding of the weight --fail_on or heavier; 1: findings; 2: a file cannot "
    "be "
    "read, or wrong usage.";
constexpr absl::string_view kDiffExits =
    "Exit status 0: the rotations are equal; 1: they differ; 2: a config cannot be read, or wrong "
    "usage.";

constexpr absl::string_view kSameExits =
    "Exit status 0: the same; 1: they differ; 2: a config cannot be read, or wrong usage.";

void PrintOverview(std::FILE* out) {
  absl::FPrintF(out,
                "ropectl: asks a RopeServe server, and checks configs without one.\n\nusage: "
                "ropectl COMMAND [FLAGS]\n\n");
  for (const Command& command : Commands()) {
    absl::FPrintF(out, "  %-11s %s\n", command.name, command.summary);
  }
  absl::FPrintF(out, "\n'ropectl help COMMAND' lists its flags.\n");
}

// Of every command that asks a server.
std::vector<Flag> CommonFlags(Command::Asks asks) {
  static const auto* const server_target = new std::string(  // owned by the process
      absl::StrCat("The server, or unix:PATH. Default ", kDefaultTarget, "."));
  static const auto* const timeout = new std::string(
      absl::StrCat("For each call. Default ",
                   absl::FormatDuration(absl::FromChrono(CallOptions().timeout)), "."));
  const absl::string_view target =
      asks == Command::Asks::kServer
          ? absl::string_view(*server_target)
          : "A server, or unix:PATH. Default: the engine in this process.";
  return {
      {"target", FlagKind::kText, "HOST:PORT", target, /*environment=*/true},
      {"timeout", FlagKind::kDuration, "DURATION", *timeout, /*environment=*/true},
      {"tls_ca", FlagKind::kText, "FILE",
       "TLS with a server of these authorities, PEM; https://HOST:PORT takes the system's.",
       /*environment=*/true},
      {"tls_cert", FlagKind::kText, "FILE", "The client's own certificate chain, PEM.",
       /*environment=*/true},
      {"tls_key", FlagKind::kText, "FILE", "The key of --tls_cert, PEM.", /*environment=*/true},
      {"tls_server_name", FlagKind::kText, "NAME",
       "The name in the server's certificate. Default: the host of --target.",
       /*environment=*/true},
      {"token_file", FlagKind::kText, "FILE", "Its first line goes as bearer token.",
       /*environment=*/true},
  };
}

Usage UsageOf(const Command& command) {
  Usage usage{absl::StrCat("ropectl ", command.name), std::string(command.summary),
              std::string(command.positional), command.flags, std::string(command.exits)};
  if (command.asks == Command::Asks::kNobody) return usage;
  const std::vector<Flag> common = CommonFlags(command.asks);
  usage.flags.insert(usage.flags.end(), common.begin(), common.end());
  return usage;
}

const Command* FindCommand(absl::string_view name) {
  const auto commands = Commands();
  const auto it = std::ranges::find(commands, name, &Command::name);
  return it == commands.end() ? nullptr : &*it;
}

int RunCommand(const Command& command, absl::Span<const absl::string_view> rest) {
  const Result<Arguments> arguments = Arguments::Parse(rest, UsageOf(command));
  if (!arguments.ok()) {
    return Misuse(absl::StrCat(arguments.status().message(), " (ropectl help ", command.name, ")"));
  }
  if (arguments->Duration("timeout") == std::chrono::nanoseconds(0)) {
    return Misuse("--timeout: got no time, want more than 0s");
  }
  return command.run(*arguments);
}

// Unknown command.
int MisuseOfCommand(absl::string_view name) {
  if (name == "diagnose" || name == "plot") {
    return Misuse(
        absl::StrCat(name, ": want `ropeserve ", name, "` of the Python package ropeserve"));
  }
  std::vector<std::string> names;
  for (const Command& command : Commands()) names.emplace_back(command.name);
  const std::string nearest = proto::NearestName({name.data(), name.size()}, names);
  return Misuse(absl::StrCat("got the command '", name, "', want one of 'ropectl help'",
                             proto::DidYouMean(nearest)));
}

}  // namespace

absl::Span<const Command> Commands() {
  using Asks = Command::Asks;
  static const std::vector<Command> commands = {
      {"rotate", "", "Rotates tensors in .npy files.", RotateFlags(), &RunRotate, "", Asks::kAny},
      {"reposition", "",
       "Moves rotated tensors in .npy files to other positions or another config.",
       RepositionFlags(), &RunReposition, "", Asks::kAny},
      {"tables", "", "Writes exact cos and sin as .npy files, in the layout of an engine.",
       TablesFlags(), &RunTables, "", Asks::kAny},
      {"describe", "[FILE]",
       "Says what a config means: frequencies, attention factor, warnings. Without --target a FILE "
       "and a preset need no server.",
       DescribeFlags(), &RunDescribe},
      {"lint", "CONFIG...", "Checks config.json files, and folders of them, without a server.",
       LintFlags(), &RunLint, kLintExits, Asks::kNobody},
      {"diff", "A [B]",
       "Compares the rotations of two config.json files, or of two engines, without a server.",
       DiffFlags(), &RunDiff, kDiffExits, Asks::kNobody},
      {"fingerprint", "[CONFIG]",
       "Prints the name of the rotation that an engine gives K, for the key of a KV cache.",
       FingerprintFlags(), &RunFingerprint, "", Asks::kAny},
      {"same", "A [B]", "Says whether the K of two configs, or of two engines, is the same.",
       SameFlags(), &RunSame, kSameExits, Asks::kAny},
      {"verify", "FILE.json...", "Checks golden files against the engine.", VerifyFlags(),
       &RunVerify, "", Asks::kAny},
      {"load", "", "Sends one request over and over and measures.", LoadFlags(), &RunLoadCommand},
      {"connections",
       "",
       "Lists the connections of the server's clients: owner, transport, calls, bytes.",
       {kJsonFlag},
       &RunConnections},
      {"models",
       "",
       "Lists the models that the engine knows by name.",
       {kJsonFlag},
       &RunModels,
       "",
       Asks::kAny},
      {"info",
       "",
       "Version, devices, limits, table cache and shared memory of the server.",
       {kJsonFlag},
       &RunInfo},
      {"health",
       "[SERVICE]",
       "Prints the server's state; status 0 only if it is SERVING.",
       {{"wait", FlagKind::kDuration, "DURATION", "Wait that long for SERVING."}, kJsonFlag},
       &RunHealth},
  };
  return commands;
}

Status Misused(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

Result<std::optional<DType>> DTypeOf(const Arguments& arguments, absl::string_view name,
                                     std::initializer_list<DType> dtypes) {
  std::vector<std::pair<absl::string_view, std::optional<DType>>> choices = {{"", std::nullopt}};
  for (const DType dtype : dtypes) choices.emplace_back(NameOf(dtype), dtype);
  return ChoiceOf(arguments, name, choices);
}

Result<std::optional<int32_t>> LayerOf(const Arguments& arguments, const std::string& name) {
  const std::optional<int64_t> layer = arguments.Integer(name);
  if (!layer.has_value()) return std::optional<int32_t>();
  if (*layer < 0 || *layer > std::numeric_limits<int32_t>::max()) {
    return Misused(absl::StrCat("--", name, ": got ", *layer, ", want 0 or more"));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*layer));
}

CallOptions CallOptionsOf(const Arguments& arguments) {
  const std::chrono::nanoseconds timeout =
      arguments.Duration("timeout").value_or(CallOptions().timeout);
  return {.timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout)};
}

Result<Client> ConnectTo(const Arguments& arguments, ConnectOptions options) {
  options.timeout = std::min(options.timeout, CallOptionsOf(arguments).timeout);
  options.tls.ca_file = arguments.Text("tls_ca");
  options.tls.cert_file = arguments.Text("tls_cert");
  options.tls.key_file = arguments.Text("tls_key");
  options.tls.server_name = arguments.Text("tls_server_name");
  options.token_file = arguments.Text("token_file");
  return Client::Connect(
      arguments.Has("target") ? arguments.Text("target") : std::string(kDefaultTarget), options);
}

Result<Client> ConnectToAny(const Arguments& arguments) {
  if (arguments.Has("target")) return ConnectTo(arguments);
  for (const char* prefix : {"", "from_"}) {
    const std::string model = arguments.Text(absl::StrCat(prefix, "model"));
    if (!model.empty() && kernels::FindPreset(model) == nullptr) return UnknownPreset(model);
    if (arguments.Has(absl::StrCat(prefix, "config_id"))) {
      return Status(StatusCode::kNotFound,
                    absl::StrCat("--", prefix,
                                 "config_id: got it without --target, want the server that gave "
                                 "it"));
    }
  }
  return embedded::Connect();
}

std::vector<Flag> WithRopeFlags(std::vector<Flag> flags) {
  std::vector<Flag> all = {
      {"model", FlagKind::kText, "NAME", "A model that the server knows (ropectl models); or"},
      {"config", FlagKind::kText, "FILE", "a Hugging Face config.json, - is standard input; or"},
      {"config_id", FlagKind::kText, "ID", "what describe gave, while that server runs."},
      {"layer", FlagKind::kInteger, "INDEX", "Layer, where the config differs by layer; or"},
      {"layer_type", FlagKind::kText, "NAME", "its type, for example full_attention."},
      {"sub_config", FlagKind::kText, "NAME",
       "The config inside a composite config.json, by its path: vision_config."},
      {"pairing", FlagKind::kText, "PAIRING", "half or interleaved. Default: as the model says."},
      {"compat", FlagKind::kText, "WHOSE", "Read it as hf, vllm, llamacpp or deepseek does."},
      {"precision", FlagKind::kText, "exact|hf", "hf: rounded as Hugging Face's eager code does."},
  };
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

Result<std::optional<Pairing>> PairingOf(const Arguments& arguments) {
  return ChoiceOf<std::optional<Pairing>>(
      arguments, "pairing",
      {{"", std::nullopt}, {"half", Pairing::kHalf}, {"interleaved", Pairing::kInterleaved}});
}

namespace {

// `files`: configs that are named without a flag.
Result<RopeSpec> ReadRopeFlags(const Arguments& arguments, const std::string& prefix,
                               size_t files) {
  const auto has = [&](absl::string_view name) {
    return static_cast<size_t>(arguments.Has(absl::StrCat(prefix, name)));
  };
  const size_t named = has("model") + has("config") + has("config_id") + files;
  if (named != 1) {
    return Misused(absl::StrCat("--", prefix, "model, --", prefix, "config, --", prefix,
                                "config_id: got ", named, " of them, want exactly one"));
  }
  RopeSpec spec;
  spec.model = arguments.Text(prefix + "model");
  spec.config_id = arguments.Text(prefix + "config_id");
  spec.layer_type = arguments.Text(prefix + "layer_type");
  spec.sub_config = arguments.Text(prefix + "sub_config");
  ROPE_ASSIGN_OR_RETURN(spec.layer, LayerOf(arguments, prefix + "layer"));
  ROPE_ASSIGN_OR_RETURN(spec.pairing, PairingOf(arguments));
  ROPE_ASSIGN_OR_RETURN(spec.compat, ChoiceOf<Compat>(arguments, "compat",
                                                      {{"", Compat::kDefault},
                                                       {"hf", Compat::kHf},
                                                       {"vllm", Compat::kVllm},
                                                       {"llamacpp", Compat::kLlamacpp},
                                                       {"deepseek", Compat::kDeepseek}}));
  ROPE_ASSIGN_OR_RETURN(
      spec.precision,
      ChoiceOf<std::optional<Precision>>(
          arguments, "precision",
          {{"", std::nullopt}, {"exact", Precision::kExact}, {"hf", Precision::kHf}}));
  const std::string path =
      files > 0 ? arguments.positional().front() : arguments.Text(prefix + "config");
  if (!path.empty()) {
    ROPE_ASSIGN_OR_RETURN(spec.config_json, ReadConfig(path));
  }
  return spec;
}

}  // namespace

Result<std::string> ReadConfig(const std::string& path) {
  std::error_code error;
  if (path != "-" && !std::filesystem::exists(path, error) && !error) {
    if (std::string preset = PresetText(path); !preset.empty()) return preset;
    return Status(StatusCode::kNotFound,
                  absl::StrCat(path, ": cannot be read (no such file, and no preset)",
                               proto::DidYouMean(kernels::NearestPreset(path))));
  }
  std::ifstream file(path, std::ios::binary);
  std::string magic(4, '\0');
  if (file.read(magic.data(), 4) && magic == "GGUF") {
    return Misused(absl::StrCat(path, ": got a GGUF file, want a config.json; `ropeserve lint`, ",
                                "diff and describe of the Python package ropeserve read it"));
  }
  return ReadFile(path, kConfigBytesMax);
}

Result<RopeSpec> RopeSpecOf(const Arguments& arguments) {
  return ReadRopeFlags(arguments, "", arguments.positional().size());
}

Result<RopeSpec> NamedRopeOf(const Arguments& arguments, const std::string& prefix) {
  return ReadRopeFlags(arguments, prefix, 0);
}

std::vector<Flag> FromRopeFlags() {
  return {
      {"from_model", FlagKind::kText, "NAME", "The former model, where it is another; or"},
      {"from_config", FlagKind::kText, "FILE", "the former config.json; or"},
      {"from_config_id", FlagKind::kText, "ID", "its config_id."},
      {"from_sub_config", FlagKind::kText, "PATH", "Its sub-config."},
      {"from_layer", FlagKind::kInteger, "INDEX", "Its layer; or"},
      {"from_layer_type", FlagKind::kText, "NAME", "the layer's type."},
  };
}

bool HasFromRope(const Arguments& arguments) {
  return std::ranges::any_of(FromRopeFlags(),
                             [&](const Flag& flag) { return arguments.Has(flag.name); });
}

int Fail(const Status& status) {
  absl::FPrintF(stderr, "ropectl: %s\n", status.ToString());
  return kExitFailed;
}

int Misuse(absl::string_view message) {
  absl::FPrintF(stderr, "ropectl: %s\n", message);
  return kExitUsage;
}

int FailOrMisuse(const Status& status) {
  // INVALID_ARGUMENT of our own, before the server was asked, is about the arguments.
  return status.code() == StatusCode::kInvalidArgument ? Misuse(status.message()) : Fail(status);
}

int RunRopectl(absl::Span<const absl::string_view> arguments) {
  const auto is_word = [](absl::string_view argument) { return !absl::StartsWith(argument, "-"); };
  const auto word = std::find_if(arguments.begin(), arguments.end(), is_word);
  const auto has = [&arguments](absl::string_view flag) {
    return std::find(arguments.begin(), arguments.end(), flag) != arguments.end();
  };
  const bool asks_help = has("--help") || has("-h");
  if (has("--version")) {
    absl::PrintF("ropectl %s\n", proto::kVersion);
    return kExitOk;
  }
  if (word == arguments.end()) {
    PrintOverview(asks_help ? stdout : stderr);
    return asks_help ? kExitOk : kExitUsage;
  }
  std::vector<absl::string_view> rest(arguments.begin(), word);
  rest.insert(rest.end(), word + 1, arguments.end());
  if (*word == "help" && rest.empty()) {
    PrintOverview(stdout);
    return kExitOk;
  }
  const absl::string_view name = *word == "help" ? rest.front() : *word;
  const Command* command = FindCommand(name);
  if (command == nullptr) return MisuseOfCommand(name);
  if (*word != "help" && !asks_help) return RunCommand(*command, rest);
  absl::PrintF("%s", HelpOf(UsageOf(*command)));
  return kExitOk;
}

}  // namespace rope::client
