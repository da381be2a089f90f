// FindConfigs: the config.json files that a command line names, by file or by folder.
//
// Threading:  Functions only; they read the file system.
// Limits:     A folder is searched 16 levels deep, 100,000 entries in all. Links to files are
//             followed, links to folders only if the command line names them, so that a search
//             ends.
#ifndef ROPE_CLIENT_CLI_LINT_CONFIG_FILES_H_
#define ROPE_CLIENT_CLI_LINT_CONFIG_FILES_H_

#include <string>
#include <utility>
#include <vector>

namespace rope::client {

struct ConfigFiles {
  std::vector<std::string> files;  // in the order of the arguments; a folder's are sorted
  std::vector<std::pair<std::string, std::string>> unreadable;  // a path, and "got X, want Y"
};

// A folder without a config.json is unreadable. Files are not opened.
ConfigFiles FindConfigs(const std::vector<std::string>& arguments);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_CONFIG_FILES_H_
