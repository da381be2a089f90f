#include "client/cli/commands.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/local_describe.h"
#include "kernels/config/presets.h"
#include "kernels/status_macros.h"
#include "proto/nearest_name.h"
#include "proto/version.h"
#include "rope/embedded.h"

namespace rope::client {
namespace {

constexpr int64_t kConfigBytesMax = int64_t{1} << 20;
constexpr absl::string_view kDefaultTarget = "127.0.0.1:50051";

// The field of an error of Misused, which no other error has.
constexpr char kUsageField[] = "command line";

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
  const std::string target =
      asks == Command::Asks::kServer
          ? absl::StrCat("The server, or unix:PATH. Default ", kDefaultTarget, ".")
          : "A server, or unix:PATH. Default: the engine in this process.";
  const std::string timeout =
      absl::StrCat("For each call. Default ",
                   absl::FormatDuration(absl::FromChrono(CallOptions().timeout)), ".");
  std::vector<Flag> flags = {
      {"target", FlagKind::kText, "HOST:PORT", target},
      {"timeout", FlagKind::kDuration, "DURATION", timeout},
      {"tls_ca", FlagKind::kText, "FILE",
       "TLS with a server of these authorities, PEM; https://HOST:PORT takes the system's."},
      {"tls_cert", FlagKind::kText, "FILE", "The client's own certificate chain, PEM."},
      {"tls_key", FlagKind::kText, "FILE", "The key of --tls_cert, PEM."},
      {"tls_server_name", FlagKind::kText, "NAME",
       "The name in the server's certificate. Default: the host of --target."},
      {"token_file", FlagKind::kText, "FILE", "Its first line goes as bearer token."},
  };
  for (Flag& flag : flags) flag.environment = true;
  return flags;
}

Command WithCommonFlags(Command command) {
  if (command.asks == Command::Asks::kNobody) return command;
  command.flags = Joined(std::move(command.flags), CommonFlags(command.asks));
  return command;
}

const Command* FindCommand(absl::string_view name) {
  const auto commands = Commands();
  const auto it = std::ranges::find(commands, std::string(name), &Command::name);
  return it == commands.end() ? nullptr : &*it;
}

int Misuse(absl::string_view message) {
  absl::FPrintF(stderr, "ropectl: %s\n", message);
  return kExitUsage;
}

int RunCommand(const Command& command, absl::Span<const absl::string_view> rest) {
  const Result<Arguments> arguments = Arguments::Parse(rest, WithCommonFlags(command));
  if (!arguments.ok()) {
    return Misuse(absl::StrCat(arguments.status().message(), " (ropectl help ", command.name, ")"));
  }
  if (arguments->Duration("timeout") == std::chrono::nanoseconds(0)) {
    return Misuse("--timeout: got no time, want more than 0s");
  }
  const Result<int> exit = command.run(*arguments);
  if (exit.ok()) return *exit;
  if (exit.status().detail().field == kUsageField) return Misuse(exit.status().message());
  absl::FPrintF(stderr, "ropectl: %s\n", exit.status().ToString());
  return command.exits.empty() ? kExitFailed : kExitUsage;
}

int MisuseOfCommand(absl::string_view name) {
  if (name == "diagnose" || name == "plot") {
    return Misuse(
        absl::StrCat(name, ": want `ropeserve ", name, "` of the Python package ropeserve"));
  }
  std::vector<std::string> names;
  for (const Command& command : Commands()) names.push_back(command.name);
  const std::string nearest = proto::NearestName({name.data(), name.size()}, names);
  return Misuse(absl::StrCat("got the command '", name, "', want one of 'ropectl help'",
                             proto::DidYouMean(nearest)));
}

}  // namespace

absl::Span<const Command> Commands() {
  static const std::vector<Command> commands = {
      RotateCommand(),      RepositionCommand(),  TablesCommand(), DescribeCommand(), LintCommand(),
      DiffCommand(),        FingerprintCommand(), SameCommand(),   VerifyCommand(),   LoadCommand(),
      ConnectionsCommand(), ModelsCommand(),      InfoCommand(),   HealthCommand()};
  return commands;
}

Status Misused(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message), {.field = kUsageField});
}

Result<std::optional<DType>> DTypeOf(const Arguments& arguments, absl::string_view name,
                                     std::initializer_list<DType> dtypes) {
  std::vector<std::pair<absl::string_view, std::optional<DType>>> choices = {{"", std::nullopt}};
  for (const DType dtype : dtypes) choices.emplace_back(Name(dtype), dtype);
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

std::vector<Flag> WithRopeFlags(const std::vector<Flag>& flags) {
  const std::vector<Flag> rope = {
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
  return Joined(rope, flags);
}

Result<std::optional<Pairing>> PairingOf(const Arguments& arguments) {
  return ChoiceOf<std::optional<Pairing>>(
      arguments, "pairing",
      {{"", std::nullopt}, {"half", Pairing::kHalf}, {"interleaved", Pairing::kInterleaved}});
}

Result<RopeSpec> RopeSpecOf(const Arguments& arguments, const std::string& prefix) {
  const size_t files = prefix.empty() ? arguments.positional().size() : 0;
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

int RunRopectl(absl::Span<const absl::string_view> arguments) {
  const auto is_word = [](absl::string_view argument) { return !absl::StartsWith(argument, "-"); };
  const auto word = absl::c_find_if(arguments, is_word);
  const auto has = [&](absl::string_view flag) { return absl::c_linear_search(arguments, flag); };
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
  absl::PrintF("%s", HelpOf(WithCommonFlags(*command)));
  return kExitOk;
}

}  // namespace rope::client
