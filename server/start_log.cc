#include "server/start_log.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/version.h"
#include "server/error.h"
#include "server/telemetry/log.h"

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

std::vector<std::string> LinesOf(const FileReport& file) {
  std::vector<std::string> lines;
  const std::string model = absl::StrCat("model=", file.name);
  if (file.replaces_preset) lines.push_back(model + " replaces the preset of this name");
  const size_t shown = std::min(file.warnings.size(), kWarningsShown);
  for (size_t i = 0; i < shown; ++i) {
    lines.push_back(absl::StrCat(model, " warning=", Quoted(ShortText(file.warnings[i]))));
  }
  const size_t left_out = file.warnings.size() - shown;
  if (left_out > 0) lines.push_back(absl::StrCat(model, " warnings_left_out=", left_out));
  return lines;
}

void LogStart(const Started& started) {
  const ServerOptions& options = started.options;
  const MemoryShares& shares = started.shares;
  const int64_t shared = options.shared_memory.enabled ? options.shared_memory.bytes_max : 0;
  const std::vector<FileReport>& files = started.models.file_reports();
  spdlog::info(
      "started version={} revision={} pid={} devices={} threads={} memory_bytes={} "
      "max_message_bytes={} table_cache_bytes={} shared_memory_bytes={} listen={} "
      "metrics_listen={} tls={} access={} models={} model_files={}",
      proto::kVersion, Revision(), getpid(), DevicesOf(started.devices), started.threads,
      options.memory_bytes, shares.message, shares.tables, shared,
      absl::StrJoin(started.addresses, ","),
      started.metrics_address.empty() ? "off" : started.metrics_address, TlsOf(options.tls),
      options.access_file.empty() ? "everybody" : "file", started.models.models().size(),
      files.empty() ? "none" : FilesOf(files));
  for (const std::string& flag : options.warnings) spdlog::warn("{}", flag);
  for (const FileReport& file : files) {
    for (const std::string& line : LinesOf(file)) spdlog::warn("{}", line);
  }
}

}  // namespace rope::server
