#include "server/options.h"

#include <arpa/inet.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/status_macros.h"
#include "proto/flags/flags.h"
#include "server/clients/peers.h"
#include "server/error.h"
#include "server/file_watch.h"
#include "server/telemetry/process.h"

namespace rope::server {
namespace {

using proto::Check;
using proto::DurationBetween;
using proto::IntegerBetween;
using proto::Refuse;
using proto::SizeBetween;

// HOST:PORT only; CheckListen also accepts unix:PATH.
std::string CheckHostPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  int64_t port = -1;
  const bool legal = colon != std::string::npos && colon > 0 &&
                     absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
                     port <= 65535;
  return legal ? std::string() : Refuse(address, "HOST:PORT");
}

std::string CheckListen(const std::string& address) {
  if (absl::StartsWith(address, "unix:") && address.size() > 5) return {};
  return CheckHostPort(address).empty() ? std::string() : Refuse(address, "HOST:PORT or unix:PATH");
}

std::string CheckSocketMode(const std::string& value) {
  const bool legal = (value.size() == 3 || (value.size() == 4 && value[0] == '0')) &&
                     value.find_first_not_of("01234567") == std::string::npos;
  return legal ? std::string() : Refuse(value, "three octal digits, for example 660");
}

// As peers.h writes owners: any other spelling would never match.
std::string CheckOwner(const std::string& value) {
  uid_t uid = 0;
  absl::string_view user = value;
  absl::string_view address = value;
  const bool is_user = absl::ConsumePrefix(&user, "uid:") && absl::SimpleAtoi(user, &uid) &&
                       OwnerOfUser(uid) == value;
  const bool is_address = absl::ConsumePrefix(&address, "ip:") &&
                          (address == "loopback" || ForwardedOwner({}, address) == value);
  return is_user || is_address
             ? std::string()
             : Refuse(value, "uid:N, ip:ADDRESS or ip:loopback, as ropectl connections shows it");
}

std::string CheckModel(const std::string& value) {
  const size_t equals = value.find('=');
  const bool legal = equals != std::string::npos && equals > 0 && equals + 1 < value.size();
  return legal ? std::string() : Refuse(value, "NAME=CONFIG.json");
}

Check OneOf(std::vector<std::string> choices) {
  return [choices = std::move(choices)](const std::string& value) {
    const bool known = std::ranges::count(choices, value) > 0;
    return known ? std::string() : Refuse(value, absl::StrJoin(choices, ", "));
  };
}

template <typename... Parts>
std::string WithDefault(const char* help, const Parts&... value) {
  return absl::StrCat(help, " (default ", value..., ").");
}

// Flags as they were given, before files are read and addresses compared.
struct Given {
  std::vector<std::string> listen;
  std::vector<std::string> models;
  std::string model_dir;
  bool insecure_listen = false;
  std::optional<int64_t> shared_memory_bytes;
  std::optional<int64_t> session_memory_bytes;
};

// Declares flags of one App that set the members of one ServerOptions. The help shows the values
// that these have before.
class Flags {
 public:
  explicit Flags(CLI::App& app) : app_(app) {}

  // The last of several counts. `check`: null: any text.
  void Text(const std::string& name, const std::string& value, const std::string& help,
            const Check& check, std::function<void(const std::string&)> set) {
    CLI::Option* const option =
        app_.add_option_function<std::string>("--" + name, std::move(set), help);
    option->type_name(value)->take_last();
    if (check != nullptr) option->check(check);
  }
  void Text(const std::string& name, const std::string& value, const std::string& help,
            const Check& check, std::string& text) {
    Text(name, value, help, check, [&text](const std::string& given) { text = given; });
  }
  // One value each time it is given.
  void Texts(const std::string& name, const std::string& value, const std::string& help,
             const Check& check, std::vector<std::string>& values) {
    app_.add_option("--" + name, values, help)
        ->type_name(value)
        ->check(check)
        ->allow_extra_args(false);
  }
  template <typename Number>
  void Integer(const std::string& name, const std::string& help, int64_t min, int64_t max,
               Number& number) {
    Text(name, "N", help, IntegerBetween(min, max), [&number](const std::string& text) {
      static_cast<void>(absl::SimpleAtoi(text, &number));
    });
  }
  template <typename Size>
  void Bytes(const std::string& name, const std::string& help, int64_t min, int64_t max,
             Size& size) {
    Text(name, "SIZE", help, SizeBetween(min, max),
         [&size](const std::string& text) { size = *proto::ParseSize(text); });
  }
  void Duration(const std::string& name, const char* help, absl::Duration min,
                absl::Duration& duration) {
    Text(name, "DURATION", WithDefault(help, absl::FormatDuration(duration)),
         DurationBetween(min, absl::Hours(1)),
         [&duration](const std::string& text) { duration = *proto::ParseDuration(text); });
  }
  void Switch(const std::string& name, const char* help, bool& value) {
    app_.add_flag("--" + name, value, WithDefault(help, value ? "on" : "off"))->take_last();
  }

 private:
  CLI::App& app_;
};

void AddConnections(Flags& flags, ServerOptions& options, Given& given) {
  flags.Texts("listen", "HOST:PORT|unix:PATH",
              WithDefault("Serve here; repeatable; port 0 takes a free one",
                          absl::StrJoin(options.listen, " ")),
              CheckListen, given.listen);
  flags.Text("socket_mode", "MODE",
             "Permissions of Unix sockets, octal (default what the umask leaves).", CheckSocketMode,
             [&options](const std::string& text) {
               options.socket_mode = static_cast<mode_t>(std::stoul(text, nullptr, 8));
             });
  flags.Text("tls_cert", "FILE",
             "TLS on TCP: the server's certificate chain, PEM; replaced files are seen.", nullptr,
             options.tls.cert);
  flags.Text("tls_key", "FILE", "The key of --tls_cert, PEM.", nullptr, options.tls.key);
  flags.Text("tls_client_ca", "FILE",
             "Mutual TLS: clients need a certificate of one of these, PEM.", nullptr,
             options.tls.client_ca);
  flags.Text("access_file", "FILE",
             "Who may do what, JSON; read again when it changes (default all all).", nullptr,
             options.access_file);
  flags.Switch("insecure_listen", "Allow TCP beyond loopback without TLS", given.insecure_listen);
  flags.Switch("enable_reflection",
               "Serve reflection, which grpcurl uses, to everybody; off with --access_file",
               options.reflection);
  flags.Texts("trusted_proxy", "uid:N|ip:ADDRESS",
              "Believe this proxy's x-forwarded-client-cert and x-forwarded-for; repeatable.",
              CheckOwner, options.trusted_proxies);
  flags.Integer("max_connections",
                "Most connections at a time; one user or address gets half of them (default a "
                "quarter of the files that may be open).",
                2, limits::kMaxConnectionsCeiling, options.max_connections);
}

void AddWork(Flags& flags, ServerOptions& options, Given& given) {
  flags.Text("device", "auto|cpu|cuda",
             WithDefault("Where to rotate; auto is the CPU", options.device),
             OneOf({"auto", "cpu", "cuda", "reference"}), options.device);
  flags.Texts("model", "NAME=CONFIG.json",
              "Serve this Hugging Face config.json as NAME; repeatable.", CheckModel, given.models);
  flags.Text("model_dir", "DIR", "Serve each NAME.json of this folder as NAME.", nullptr,
             given.model_dir);
  flags.Integer("threads", WithDefault("Processors to use; 0 all there are", options.threads), 0,
                1024, options.threads);
  flags.Text("poll_spin_us", "N",
             WithDefault("Poll this long before sleeping, microseconds; 0 never",
                         absl::ToInt64Microseconds(options.poll_spin)),
             IntegerBetween(0, 1'000'000), [&options](const std::string& text) {
               options.poll_spin = absl::Microseconds(std::stoll(text));
             });
  flags.Text("metrics_listen", "HOST:PORT", "Prometheus metrics at /metrics (default off).",
             CheckHostPort, options.metrics_listen);
  flags.Text("log_level", "LEVEL", WithDefault("debug, info, warn or error", options.log_level),
             OneOf({"debug", "info", "warn", "error"}), options.log_level);
  flags.Text("log_format", "FORMAT", "logfmt or json (default logfmt).", OneOf({"logfmt", "json"}),
             [&options](const std::string& text) {
               options.log_format = text == "json" ? LogFormat::kJson : LogFormat::kLogfmt;
             });
}

void AddTimes(Flags& flags, ServerOptions& options) {
  flags.Duration("drain_lead", "Keep serving this long after SIGTERM, not-serving in health",
                 absl::ZeroDuration(), options.drain_lead);
  flags.Duration("drain_timeout", "Finish what runs within this long, then cancel it",
                 absl::ZeroDuration(), options.drain_timeout);
  flags.Duration("receive_timeout", "A message must arrive whole within this long",
                 absl::Milliseconds(100), options.receive_timeout);
  flags.Duration("handshake_timeout",
                 "A connection must send HTTP/2's preface within this long, and then its first "
                 "call",
                 absl::Milliseconds(100), options.handshake_timeout);
  flags.Duration("idle_timeout", "Close connections without a call or shared memory for this long",
                 absl::Milliseconds(100), options.idle_timeout);
}

void AddMemory(Flags& flags, ServerOptions& options, Given& given) {
  flags.Bytes("memory_bytes",
              "Messages, requests, replies, tables and buffers together (default 3/4 of what "
              "there is).",
              limits::kMemoryBytesMin, limits::kMemoryBytesCeiling, options.memory_bytes);
  flags.Bytes("max_message_bytes",
              WithDefault("Largest request", limits::kMessageBytesMax / limits::kMiB,
                          "MiB, at most 1/", limits::kMessagePart, " of memory_bytes"),
              limits::kMiB, limits::kMessageBytesCeiling, options.max_message_bytes);
  flags.Bytes("table_cache_bytes",
              WithDefault("Budget of the cos/sin tables", limits::kTableCacheBytes / limits::kMiB,
                          "MiB, at most 1/", limits::kTablePart, " of memory_bytes"),
              0, 1024 * limits::kGiB, options.table_cache_bytes);
  flags.Switch("enable_shared_memory", "Let clients register memory regions",
               options.shared_memory.enabled);
  flags.Bytes("shared_memory_bytes",
              WithDefault("Memory regions of all clients",
                          "what memory_bytes leaves of what there is, at most ",
                          limits::kSharedMemoryBytesMax / limits::kGiB, "GiB"),
              0, limits::kSharedMemoryBytesCeiling, given.shared_memory_bytes);
  flags.Bytes(
      "session_memory_bytes",
      WithDefault("Memory regions of one connection", "half of shared_memory_bytes, at most ",
                  limits::kSessionMemoryBytesMax / limits::kGiB, "GiB"),
      0, limits::kSharedMemoryBytesCeiling, given.session_memory_bytes);
}

// Every flag; `options` and `given` are set while it parses.
std::unique_ptr<CLI::App> MakeApp(ServerOptions& options, Given& given) {
  auto app = proto::NewApp("rope_server", "rope_server: rotary position embeddings over gRPC");
  Flags flags(*app);
  AddConnections(flags, options, given);
  AddWork(flags, options, given);
  AddTimes(flags, options);
  AddMemory(flags, options, given);
  app->set_config("--config_file", "", "Flags as lines NAME=VALUE; the command line wins.")
      ->type_name("FILE");
  proto::ReadEnvironment(*app);
  app->footer(
      "The command line wins over --config_file, which wins over the environment (Env:).\n"
      "SIZE: bytes, or 64MiB, 2GiB. DURATION: 5s, 200ms.\n"
      "Exit status: 0 after SIGTERM or SIGINT, 1 not started, 2 wrong usage,\n"
      "3 the GPU of --device=cuda was lost.");
  return app;
}

// An address that is given twice counts once: a start script may have it already. Port 0 is another
// one each time.
void AddListen(const std::vector<std::string>& given, std::vector<std::string>& listen) {
  if (given.empty()) return;
  listen.clear();
  for (const std::string& address : given) {
    const bool is_new = std::find(listen.begin(), listen.end(), address) == listen.end();
    if (is_new || absl::EndsWith(address, ":0")) listen.push_back(address);
  }
}

absl::StatusOr<ModelRegistry::ModelFile> ReadModel(const std::string& value) {
  const size_t equals = value.find('=');
  ROPE_ASSIGN_OR_RETURN(std::string json,
                        ReadFile("--model", value.substr(equals + 1), limits::kConfigJsonBytesMax));
  return ModelRegistry::ModelFile{value.substr(0, equals), std::move(json)};
}

// Each NAME.json of a folder, by name. A folder that Kubernetes mounts has links to files, and
// hidden names.
absl::Status ReadModelFolder(const std::string& folder,
                             std::vector<ModelRegistry::ModelFile>& models) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    const bool is_hidden = absl::StartsWith(path.filename().string(), ".");
    std::error_code ignored;  // what cannot be looked at cannot be read either: it is named below
    const bool is_folder = entry->is_directory(ignored);
    if (!is_hidden && !is_folder && path.extension() == ".json") paths.push_back(path);
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("--model_dir: got ", folder, ", want a folder (", error.message(), ")"));
  }
  std::sort(paths.begin(), paths.end());
  for (const std::filesystem::path& path : paths) {
    ROPE_ASSIGN_OR_RETURN(std::string json,
                          ReadFile("--model_dir", path.string(), limits::kConfigJsonBytesMax));
    models.push_back({path.stem().string(), std::move(json)});
  }
  return absl::OkStatus();
}

// "localhost" and numbers; any other name may be everywhere.
bool IsLoopback(const std::string& address) {
  absl::string_view host = address;
  host = host.substr(0, host.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  in_addr v4{};
  return host == "localhost" || host == "::1" ||
         (inet_pton(AF_INET, std::string(host).c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127);
}

absl::Status CheckAccess(const ServerOptions& options, const Given& given) {
  const TlsFiles& tls = options.tls;
  if (tls.cert.empty() != tls.key.empty()) {
    return InvalidField(tls.cert.empty() ? "--tls_key" : "--tls_cert", "it alone",
                        "--tls_cert and --tls_key");
  }
  if (!tls.enabled() && !tls.client_ca.empty()) {
    return InvalidField("--tls_client_ca", "it alone", "--tls_cert and --tls_key too");
  }
  for (const std::string& address : options.listen) {
    const bool is_open = !absl::StartsWith(address, "unix:") && !IsLoopback(address);
    if (!is_open || tls.enabled() || given.insecure_listen) continue;
    return InvalidField("--listen", absl::StrCat(address, " without TLS"),
                        "a loopback address, --tls_cert and --tls_key, or --insecure_listen");
  }
  return absl::OkStatus();
}

void DivideSharedMemory(const Given& given, ServerOptions& options) {
  RegionTotals::Options& shared = options.shared_memory;
  shared.bytes_max = given.shared_memory_bytes.value_or(
      DefaultSharedMemoryBytes(options.available_bytes, options.memory_bytes));
  shared.session_bytes_max =
      given.session_memory_bytes.value_or(DefaultSessionMemoryBytes(shared.bytes_max));
}

// A message and its result have to fit the part of one connection.
absl::Status CheckMemory(const ServerOptions& options) {
  const MemoryShares shares = options.memory_shares();
  const int64_t most = options.memory_bytes / limits::kMessagePart;
  if (shares.message > most) {
    return InvalidField(
        "--max_message_bytes", shares.message,
        absl::StrCat("at most ", most, ", 1/", limits::kMessagePart, " of --memory_bytes"));
  }
  if (shares.tables > options.memory_bytes / 4) {
    return InvalidField(
        "--table_cache_bytes", shares.tables,
        absl::StrCat("at most ", options.memory_bytes / 4, ", a quarter of --memory_bytes"));
  }
  return absl::OkStatus();
}

// Flags that were given without effect, or have one that their reader may not expect.
std::vector<std::string> IdleFlags(const CLI::App& app, const ServerOptions& options) {
  const auto is_unix = [](const std::string& a) { return absl::StartsWith(a, "unix:"); };
  const RegionTotals::Options& shared = options.shared_memory;
  const int processors = ProcessorCount();
  struct Rule {
    const char* flag;
    bool is_idle;
    std::string reason;
  };
  const std::string off = "has no effect without --enable_shared_memory";
  const auto is_address = [](const std::string& owner) { return absl::StartsWith(owner, "ip:"); };
  const Rule rules[] = {
      {"--socket_mode", std::ranges::none_of(options.listen, is_unix),
       "has no effect: no --listen is unix:PATH"},
      {"--trusted_proxy",
       !options.access_file.empty() && options.tls.client_ca.empty() &&
           std::ranges::any_of(options.trusted_proxies, is_address),
       "by address, without --tls_client_ca: whoever calls from there may pass for any certificate "
       "of --access_file"},
      {"--shared_memory_bytes", !shared.enabled, off},
      {"--session_memory_bytes", !shared.enabled, off},
      {"--session_memory_bytes", shared.enabled && shared.session_bytes_max > shared.bytes_max,
       absl::StrCat("has no effect above --shared_memory_bytes, which is ", shared.bytes_max)},
      {"--threads", options.threads > processors,
       absl::StrCat("is ", options.threads, ", more than the processors: ", processors)},
      {"--max_connections", options.max_connections > 2 * DefaultMaxConnections(),
       absl::StrCat("is ", options.max_connections, ", with two files for each, but only ",
                    4 * DefaultMaxConnections(), " may be open")},
      {"--poll_spin_us", (options.threads > 0 ? options.threads : processors) == 1,
       "has no effect with one processor"},
      {"--table_cache_bytes", options.table_cache_bytes == 0,
       "is 0: every request computes its rows again"},
  };
  std::vector<std::string> idle;
  for (const Rule& rule : rules) {
    const bool is_given = app.get_option(rule.flag)->count() > 0;
    if (is_given && rule.is_idle) idle.push_back(absl::StrCat(rule.flag, " ", rule.reason));
  }
  return idle;
}

}  // namespace

int64_t DefaultMaxConnections() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) {
    return limits::kMaxConnectionsCeiling;
  }
  return std::clamp<int64_t>(static_cast<int64_t>(files.rlim_cur / 4), 2,
                             limits::kMaxConnectionsCeiling);
}

absl::StatusOr<ServerOptions> ParseOptions(const std::vector<std::string>& arguments) {
  ServerOptions options;
  Given given;
  const std::unique_ptr<CLI::App> app = MakeApp(options, given);
  ROPE_RETURN_IF_ERROR(proto::ParseFlags(*app, arguments));
  AddListen(given.listen, options.listen);
  const bool is_given = app->get_option("--enable_reflection")->count() > 0;
  if (!is_given) options.reflection = options.access_file.empty();  // it asks for no right
  for (const std::string& value : given.models) {
    ROPE_ASSIGN_OR_RETURN(ModelRegistry::ModelFile model, ReadModel(value));
    options.models.push_back(std::move(model));
  }
  if (!given.model_dir.empty()) {
    ROPE_RETURN_IF_ERROR(ReadModelFolder(given.model_dir, options.models));
  }
  ROPE_RETURN_IF_ERROR(CheckAccess(options, given));
  ROPE_RETURN_IF_ERROR(CheckMemory(options));
  DivideSharedMemory(given, options);
  options.warnings = proto::MisspeltVariables(*app);
  for (std::string& idle : IdleFlags(*app, options)) options.warnings.push_back(std::move(idle));
  std::string memory = SharedMemoryWarning(options);
  if (!memory.empty()) options.warnings.push_back(std::move(memory));
  return options;
}

std::string SharedMemoryWarning(const ServerOptions& options) {
  const RegionTotals::Options& shared = options.shared_memory;
  const int64_t left = DefaultSharedMemoryBytes(options.available_bytes, options.memory_bytes);
  if (!shared.enabled || (shared.bytes_max <= left && left > 0)) return {};
  return absl::StrCat("--shared_memory_bytes: got ", shared.bytes_max, ", want 1 to ", left,
                      ", what --memory_bytes (", options.memory_bytes, ") leaves of ",
                      options.available_bytes,
                      ": requests that touch a client's memory first are charged to the server");
}

std::string Help() {
  ServerOptions options;
  Given given;
  return MakeApp(options, given)->help();
}

}  // namespace rope::server
