#include "client/cli/lint/config_files.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace rope::client {
namespace {

namespace fs = std::filesystem;

constexpr int kDepthMax = 16;
constexpr int64_t kEntriesMax = 100'000;

// Adds the config.json files of a folder; `entries` counts what all searches have seen.
void SearchFolder(const std::string& folder, int64_t& entries, ConfigFiles& found) {
  std::vector<std::string> files;
  bool too_deep = false;
  const size_t unreadable_before = found.unreadable.size();
  const auto refuse = [&found](std::string path, std::string why) {
    found.unreadable.emplace_back(std::move(path), std::move(why));
  };
  std::error_code error;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    if (++entries > kEntriesMax) {
      refuse(folder, absl::StrCat("got more than ", kEntriesMax, " files and folders, want fewer"));
      break;
    }
    std::error_code problem;
    const bool is_folder = at->is_directory(problem) && !at->is_symlink(problem);
    if (is_folder && at.depth() + 1 >= kDepthMax) {
      at.disable_recursion_pending();
      if (!std::exchange(too_deep, true)) {
        refuse(folder, absl::StrCat("got folders in more than ", kDepthMax, " levels, want fewer"));
      }
    }
    if (is_folder || at->path().filename() != "config.json") continue;
    const fs::file_status status = at->status(problem);
    if (fs::is_regular_file(status)) {
      files.push_back(at->path().string());
    } else if (!fs::is_directory(status)) {  // a link to a folder is not followed
      refuse(at->path().string(),
             absl::StrCat("got ", problem ? problem.message() : "a special file", ", want a file"));
    }
  }
  if (error) {
    refuse(folder, absl::StrCat("got ", error.message(), ", want a folder that can be read"));
  }
  if (files.empty() && found.unreadable.size() == unreadable_before) {
    refuse(folder, "got no config.json, want one, or files by name");
  }
  std::ranges::sort(files);
  found.files.insert(found.files.end(), files.begin(), files.end());
}

}  // namespace

ConfigFiles FindConfigs(const std::vector<std::string>& arguments) {
  ConfigFiles found;
  int64_t entries = 0;
  for (const std::string& argument : arguments) {
    std::error_code ignored;  // a path that cannot be looked at fails when it is read
    if (fs::is_directory(argument, ignored)) {
      SearchFolder(argument, entries, found);
    } else {
      found.files.push_back(argument);
    }
  }
  return found;
}

}  // namespace rope::client
