#include "server/start_log.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/version.h"
#include "server/error.h"

namespace rope::server {
namespace {

using FileReport = ModelRegistry::FileReport;

std::string DevicesOf(const DeviceRouter& devices) {
  return absl::StrJoin(devices.list(), ",",
                       [](std::string* out, const auto& device) { out->append(device.name); });
}

// "mine:2,other:0": the files' models, with the number of their warnings.
std::string FilesOf(const std::vector<FileReport>& files) {
  const auto append = [](std::string* out, const FileReport& file) {
    absl::StrAppend(out, file.name, ":", file.warnings.size());
  };
  const size_t shown = std::min(files.size(), kModelsShown);
  const auto end = files.begin() + static_cast<ptrdiff_t>(shown);
  return absl::StrCat(absl::StrJoin(files.begin(), end, ",", append),
                      shown < files.size() ? ",..." : "");
}

const char* TlsOf(const TlsFiles& tls) {
  if (!tls.enabled()) return "off";
  return tls.client_ca.empty() ? "server" : "mutual";
}

}  // namespace

std::vector<LogLine> LinesOf(const FileReport& file) {
  std::vector<LogLine> lines;
  const auto add = [&]() -> LogLine& { return lines.emplace_back().Word("model", file.name); };
  if (file.replaces_preset) add().Words("replaces the preset of this name");
  const size_t shown = std::min(file.warnings.size(), kWarningsShown);
  for (size_t i = 0; i < shown; ++i) add().Text("warning", ShortText(file.warnings[i]));
  const size_t left_out = file.warnings.size() - shown;
  if (left_out > 0) add().Number("warnings_left_out", static_cast<int64_t>(left_out));
  return lines;
}

void LogStart(const Started& started) {
  const ServerOptions& options = started.options;
  const MemoryShares& shares = started.shares;
  const std::vector<FileReport>& files = started.models.file_reports();
  Log(spdlog::level::info,
      LogLine("started")
          .Word("version", proto::kVersion)
          .Word("revision", Revision())
          .Number("pid", getpid())
          .Word("devices", DevicesOf(started.devices))
          .Number("threads", started.threads)
          .Number("memory_bytes", options.memory_bytes)
          .Number("max_message_bytes", shares.message)
          .Number("table_cache_bytes", shares.tables)
          .Number("shared_memory_bytes",
                  options.shared_memory.enabled ? options.shared_memory.bytes_max : 0)
          .Word("listen", absl::StrJoin(started.addresses, ","))
          .Word("metrics_listen", started.metrics_address.empty() ? "off" : started.metrics_address)
          .Word("tls", TlsOf(options.tls))
          .Word("access", options.access_file.empty() ? "everybody" : "file")
          .Number("models", static_cast<int64_t>(started.models.models().size()))
          .Word("model_files", files.empty() ? "none" : FilesOf(files)));
  for (const std::string& flag : options.warnings) Log(spdlog::level::warn, LogLine(flag));
  for (const FileReport& file : files) {
    for (const LogLine& line : LinesOf(file)) Log(spdlog::level::warn, line);
  }
}

}  // namespace rope::server
