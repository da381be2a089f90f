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

// Searches one folder; `entries` counts those of all searches.
class Search {
 public:
  Search(const std::string& folder, int64_t& entries, ConfigFiles& found)
      : folder_(folder), entries_(entries), found_(found) {}

  void Run() {
    std::error_code error;
    fs::recursive_directory_iterator at(folder_, fs::directory_options::skip_permission_denied,
                                        error);
    for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
      if (++entries_ > kEntriesMax) {
        Refuse(absl::StrCat("got more than ", kEntriesMax, " files and folders, want fewer"));
        break;
      }
      Visit(at);
    }
    if (error) Refuse(absl::StrCat("got ", error.message(), ", want a folder that can be read"));
    if (files_.empty() && !refused_) Refuse("got no config.json, want one, or files by name");
    std::ranges::sort(files_);
    found_.files.insert(found_.files.end(), files_.begin(), files_.end());
  }

 private:
  void Visit(fs::recursive_directory_iterator& at) {
    std::error_code error;
    const bool is_folder = at->is_directory(error) && !at->is_symlink(error);
    if (is_folder && at.depth() + 1 >= kDepthMax) {
      at.disable_recursion_pending();
      if (!std::exchange(too_deep_, true)) {
        Refuse(absl::StrCat("got folders in more than ", kDepthMax, " levels, want fewer"));
      }
    }
    if (is_folder || at->path().filename() != "config.json") return;
    const fs::file_status status = at->status(error);
    if (fs::is_directory(status)) return;  // a link to a folder
    if (fs::is_regular_file(status)) return files_.push_back(at->path().string());
    refused_ = true;
    found_.unreadable.push_back(
        {at->path().string(),
         absl::StrCat("got ", error ? error.message() : "a special file", ", want a file")});
  }

  void Refuse(std::string why) {
    refused_ = true;
    found_.unreadable.push_back({folder_, std::move(why)});
  }

  const std::string& folder_;
  int64_t& entries_;
  ConfigFiles& found_;
  std::vector<std::string> files_;
  bool too_deep_ = false;
  bool refused_ = false;
};

}  // namespace

ConfigFiles FindConfigs(const std::vector<std::string>& arguments) {
  ConfigFiles found;
  int64_t entries = 0;
  for (const std::string& argument : arguments) {
    std::error_code ignored;  // a path that cannot be looked at fails when it is read
    if (fs::is_directory(argument, ignored)) {
      Search(argument, entries, found).Run();
    } else {
      found.files.push_back(argument);
    }
  }
  return found;
}

}  // namespace rope::client
