#include "server/options.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

// One flag: what people read and how its value is taken. Repeatable where `take` appends.
struct Flag {
  std::string name;
  std::string value;  // as help shows it; empty: a switch
  std::string help;
  std::function<absl::Status(const std::string& value, ServerOptions& options)> take;
};

absl::StatusOr<int64_t> ReadInteger(const std::string& flag, const std::string& value, int64_t min,
                                    int64_t max) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < min || number > max) {
    return InvalidField(flag, absl::StrCat("\"", value, "\""),
                        absl::StrCat("a whole number from ", min, " to ", max));
  }
  return number;
}

// Bytes, or KiB, MiB or GiB of them.
absl::StatusOr<int64_t> ReadSize(const std::string& flag, const std::string& value, int64_t min,
                                 int64_t max) {
  constexpr std::pair<const char*, int64_t> kUnits[] = {
      {"KiB", limits::kKiB}, {"MiB", limits::kMiB}, {"GiB", limits::kGiB}, {"", 1}};
  for (const auto& [unit, bytes] : kUnits) {
    absl::string_view digits = value;
    int64_t number = 0;
    if (!absl::ConsumeSuffix(&digits, unit) || !absl::SimpleAtoi(digits, &number)) continue;
    if (number >= 0 && number <= max / bytes && number * bytes >= min) return number * bytes;
  }
  return InvalidField(flag, absl::StrCat("\"", value, "\""),
                      absl::StrCat("bytes from ", min, " to ", max, ", for example 64MiB"));
}

absl::Status CheckAddress(const std::string& flag, const std::string& address, bool unix_too) {
  if (unix_too && absl::StartsWith(address, "unix:") && address.size() > 5) {
    return absl::OkStatus();
  }
  const size_t colon = address.rfind(':');
  int64_t port = -1;
  const bool legal = colon != std::string::npos && colon > 0 &&
                     absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
                     port <= 65535;
  if (legal) return absl::OkStatus();
  return InvalidField(flag, absl::StrCat("\"", address, "\""),
                      unix_too ? "HOST:PORT or unix:PATH" : "HOST:PORT");
}

// An address that is given twice counts once: a start script may have it already. Port 0 is another
// one each time.
absl::Status TakeListen(const std::string& value, ServerOptions& options) {
  const auto& listen = options.listen;
  const bool is_new = std::find(listen.begin(), listen.end(), value) == listen.end();
  if (is_new || absl::EndsWith(value, ":0")) options.listen.push_back(value);
  return CheckAddress("--listen", value, true);
}

absl::Status TakeSocketMode(const std::string& value, ServerOptions& options) {
  mode_t mode = 0;
  bool legal = value.size() == 3 || (value.size() == 4 && value[0] == '0');
  for (const char c : value) {
    legal = legal && c >= '0' && c <= '7';
    mode = mode * 8 + static_cast<mode_t>(c - '0');
  }
  if (!legal) {
    return InvalidField("--socket_mode", absl::StrCat("\"", value, "\""),
                        "three octal digits, for example 660");
  }
  options.socket_mode = mode;
  return absl::OkStatus();
}

absl::Status TakeDevice(const std::string& value, ServerOptions& options) {
  const std::vector<std::string> known = {"auto", "cpu", "cuda", "reference"};
  for (const std::string& name : known) {
    if (value != name) continue;
    options.device = value;
    return absl::OkStatus();
  }
  return InvalidField("--device", absl::StrCat("\"", value, "\""), absl::StrJoin(known, ", "));
}

absl::Status TakeModel(const std::string& value, ServerOptions& options) {
  const size_t equals = value.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == value.size()) {
    return InvalidField("--model", absl::StrCat("\"", value, "\""), "NAME=CONFIG.json");
  }
  const std::string path = value.substr(equals + 1);
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  // A folder opens, but nothing can be read from it.
  if (!file.is_open() || file.bad() || text.fail()) {
    return absl::NotFoundError(absl::StrCat("--model: got ", path, ", want a file with a config"));
  }
  if (static_cast<int64_t>(text.str().size()) > limits::kConfigJsonBytesMax) {
    return InvalidField("--model", absl::StrCat(text.str().size(), " bytes in ", path),
                        absl::StrCat("at most ", limits::kConfigJsonBytesMax));
  }
  options.models.push_back({value.substr(0, equals), text.str()});
  return absl::OkStatus();
}

absl::Status TakeLogLevel(const std::string& value, ServerOptions& options) {
  for (const char* level : {"debug", "info", "warn", "error"}) {
    if (value != level) continue;
    options.log_level = value;
    return absl::OkStatus();
  }
  return InvalidField("--log_level", absl::StrCat("\"", value, "\""), "debug, info, warn or error");
}

// A flag that takes a whole number within bounds.
Flag IntegerFlag(const std::string& name, const std::string& value, const std::string& help,
                 int64_t min, int64_t max,
                 const std::function<void(int64_t, ServerOptions&)>& set) {
  return {name, value, help, [=](const std::string& text, ServerOptions& options) -> absl::Status {
            ROPE_ASSIGN_OR_RETURN(const int64_t number, ReadInteger("--" + name, text, min, max));
            set(number, options);
            return absl::OkStatus();
          }};
}

// A flag that takes a size within bounds.
Flag SizeFlag(const std::string& name, const std::string& help, int64_t min, int64_t max,
              const std::function<void(int64_t, ServerOptions&)>& set) {
  return {name, "SIZE", help, [=](const std::string& text, ServerOptions& options) -> absl::Status {
            ROPE_ASSIGN_OR_RETURN(const int64_t bytes, ReadSize("--" + name, text, min, max));
            set(bytes, options);
            return absl::OkStatus();
          }};
}

// A flag that takes a duration of at most an hour.
Flag DurationFlag(const std::string& name, const std::string& help, absl::Duration min,
                  absl::Duration ServerOptions::*member) {
  return {
      name, "DURATION", help, [=](const std::string& text, ServerOptions& options) -> absl::Status {
        absl::Duration duration;
        if (absl::ParseDuration(text, &duration) && duration >= min && duration <= absl::Hours(1)) {
          options.*member = duration;
          return absl::OkStatus();
        }
        return InvalidField(
            "--" + name, absl::StrCat("\"", text, "\""),
            absl::StrCat("a duration from ", absl::FormatDuration(min), " to 1h, for example 5s"));
      }};
}

absl::Status TakeShmPrefix(const std::string& value, ServerOptions& options) {
  constexpr size_t kPrefixBytesMax = 64;
  bool legal = value.size() > 1 && value.size() <= kPrefixBytesMax && value[0] == '/';
  for (size_t i = 1; legal && i < value.size(); ++i) {
    const char c = value[i];
    legal = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
  }
  if (!legal) {
    return InvalidField("--shm_prefix", absl::StrCat("\"", value, "\""),
                        absl::StrCat("a slash, then a-z A-Z 0-9 _ -, at most ", kPrefixBytesMax));
  }
  options.shared_memory.prefix = value;
  return absl::OkStatus();
}

void AddSharedMemoryFlags(std::vector<Flag>& flags) {
  flags.push_back({"shm_prefix", "/PREFIX",
                   "POSIX shared memory that clients may name begins so (default /rope_)",
                   TakeShmPrefix});
  flags.push_back(SizeFlag("shared_memory_bytes", "memory regions of all clients (default 16GiB)",
                           0, limits::kSharedMemoryBytesCeiling,
                           [](int64_t n, ServerOptions& o) { o.shared_memory.bytes_max = n; }));
  flags.push_back(
      SizeFlag("session_memory_bytes", "memory regions of one connection (default 4GiB)", 0,
               limits::kSharedMemoryBytesCeiling,
               [](int64_t n, ServerOptions& o) { o.shared_memory.session_bytes_max = n; }));
}

std::vector<Flag> Flags() {
  std::vector<Flag> flags;
  // The first --listen replaces the default; `first` lives as long as one parse.
  auto first = std::make_shared<bool>(true);
  flags.push_back({"listen", "HOST:PORT|unix:PATH",
                   "serve here; repeatable; port 0 takes a free one (default 127.0.0.1:50051)",
                   [first](const std::string& value, ServerOptions& options) {
                     if (*first) options.listen.clear();
                     *first = false;
                     return TakeListen(value, options);
                   }});
  flags.push_back({"socket_mode", "MODE",
                   "who may connect to Unix sockets, octal (default what the umask leaves)",
                   TakeSocketMode});
  flags.push_back({"device", "auto|cpu|cuda", "where to rotate (default auto)", TakeDevice});
  flags.push_back({"model", "NAME=CONFIG.json",
                   "serve this Hugging Face config.json as NAME; repeatable", TakeModel});
  flags.push_back({"metrics_listen", "HOST:PORT", "Prometheus metrics at /metrics (default off)",
                   [](const std::string& value, ServerOptions& options) {
                     options.metrics_listen = value;
                     return CheckAddress("--metrics_listen", value, false);
                   }});
  flags.push_back({"enable_shared_memory", "", "let clients register memory regions (default off)",
                   [](const std::string& value, ServerOptions& options) {
                     options.shared_memory.enabled = value != "false";
                     if (value == "true" || value == "false") return absl::OkStatus();
                     return InvalidField("--enable_shared_memory", value, "true or false");
                   }});
  AddSharedMemoryFlags(flags);
  flags.push_back(IntegerFlag(
      "poll_spin_us", "N", "poll this long before sleeping, microseconds; 0 never (default 200)", 0,
      1'000'000,
      [](int64_t n, ServerOptions& options) { options.poll_spin = absl::Microseconds(n); }));
  flags.push_back(DurationFlag(
      "drain_lead", "keep serving this long after SIGTERM, not-serving in health (default 0s)",
      absl::ZeroDuration(), &ServerOptions::drain_lead));
  flags.push_back(DurationFlag("drain_timeout",
                               "finish what runs within this long, then cancel it (default 10s)",
                               absl::ZeroDuration(), &ServerOptions::drain_timeout));
  flags.push_back(DurationFlag("receive_timeout",
                               "a message must come whole within this long (default 60s)",
                               absl::Milliseconds(100), &ServerOptions::receive_timeout));
  flags.push_back(SizeFlag(
      "memory_bytes",
      "messages, requests, replies, tables and buffers together (default 3/4 of what there is)",
      limits::kMemoryBytesMin, limits::kMemoryBytesCeiling,
      [](int64_t n, ServerOptions& o) { o.memory_bytes = n; }));
  flags.push_back(SizeFlag("max_message_bytes",
                           "largest request (default 256MiB, at most 1/8 of memory_bytes)",
                           limits::kMiB, limits::kMessageBytesCeiling,
                           [](int64_t n, ServerOptions& o) { o.max_message_bytes = n; }));
  flags.push_back(
      SizeFlag("table_cache_bytes",
               "budget of the cos/sin tables (default 256MiB, at most 1/24 of memory_bytes)", 0,
               1024 * limits::kGiB, [](int64_t n, ServerOptions& o) { o.table_cache_bytes = n; }));
  flags.push_back(IntegerFlag(
      "threads", "N", "processors to use; 0 all there are (default 0)", 0, 1024,
      [](int64_t n, ServerOptions& options) { options.threads = static_cast<int>(n); }));
  flags.push_back(
      {"log_level", "LEVEL", "debug, info, warn or error (default info)", TakeLogLevel});
  return flags;
}

absl::StatusOr<const Flag*> FindFlag(const std::vector<Flag>& flags, const std::string& name,
                                     const std::string& argument) {
  for (const Flag& flag : flags) {
    if (flag.name == name) return &flag;
  }
  return InvalidField("command line", absl::StrCat("\"", argument, "\""),
                      "a flag that --help lists");
}

// A message and its result have to fit the part of one connection.
absl::Status CheckMemory(const ServerOptions& options) {
  const MemoryShares shares = options.memory_shares();
  const int64_t most = options.memory_bytes / 8;
  if (shares.message > most) {
    return InvalidField("--max_message_bytes", shares.message,
                        absl::StrCat("at most ", most, ", an eighth of --memory_bytes"));
  }
  if (shares.tables > options.memory_bytes / 4) {
    return InvalidField(
        "--table_cache_bytes", shares.tables,
        absl::StrCat("at most ", options.memory_bytes / 4, ", a quarter of --memory_bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ServerOptions> ParseOptions(const std::vector<std::string>& arguments) {
  const std::vector<Flag> flags = Flags();
  ServerOptions options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.find('=');
    const std::string name = absl::StartsWith(argument, "--") ? argument.substr(2, equals - 2) : "";
    ROPE_ASSIGN_OR_RETURN(const Flag* flag, FindFlag(flags, name, argument));
    std::string value = "true";
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (!flag->value.empty()) {
      if (i + 1 == arguments.size()) return InvalidField(argument, "nothing", flag->value);
      value = arguments[++i];
    }
    ROPE_RETURN_IF_ERROR(flag->take(value, options));
  }
  ROPE_RETURN_IF_ERROR(CheckMemory(options));
  return options;
}

std::string Help() {
  std::string text = "rope_server: rotary position embeddings over gRPC\n\n";
  for (const Flag& flag : Flags()) {
    absl::StrAppend(&text, "  --", flag.name, flag.value.empty() ? "" : "=", flag.value, "\n      ",
                    flag.help, "\n");
  }
  absl::StrAppend(&text, "  --help\n      this text\n  --version\n      the version\n");
  return text;
}

}  // namespace rope::server
