// Finding: one thing that lint says about a config.json. FileReport: all findings of a file.
//
// Threading:  Values.
#ifndef ROPE_CLIENT_CLI_LINT_FINDING_H_
#define ROPE_CLIENT_CLI_LINT_FINDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/lint/rules.h"

namespace rope::client {

// The engine whose readings are wanted. Empty: every engine; every version.
struct EngineFilter {
  std::string name = {};
  std::string version = {};
};

struct Finding {
  const Rule* rule = nullptr;   // never null in a report
  std::string sub_config = {};  // its path; empty: the config that is read without a choice
  std::vector<std::string> layer_types = {};  // empty: layers do not differ
  std::string field = {};                     // empty: no field of the file
  int64_t line = 1;                           // of the field, or the nearest line that is known
  std::string message = {};
  std::string engine = {};   // of a reading
  std::string version = {};  // of the engine; empty: every version
};

struct FileReport {
  std::string file;
  std::string unreadable;  // why the file cannot be read; empty: it was linted
  std::string model_type;  // empty: the file does not say
  std::string rope_type;   // of all layer types, "default, yarn"; empty: refused
  std::string pairing;     // "half", "interleaved" or empty: not known
  std::vector<Finding> findings;

  int64_t CountOf(Weight weight) const;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_FINDING_H_
