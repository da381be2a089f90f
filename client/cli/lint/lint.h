// Findings of the linter: what is wrong with a config.json, where, and from which position on.
//
// Threading:  Values and pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_LINT_LINT_H_
#define ROPE_CLIENT_CLI_LINT_LINT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/compat/engine_table.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/config/remark.h"
#include "rope/status.h"

namespace rope::client {

// Rules: the kinds of findings. Each has an id that scripts may name and that never changes, a
// weight, and a section of RULES.md with the id as its title. They are data, in rules.json of
// kernels/config.

// In ascending order.
enum class Weight {
  kNote,     // as published files have it; worth knowing
  kReading,  // another engine reads the config differently, or was not compared
  kWarning,  // valid, and probably a mistake
  kError,    // the config is refused, or cannot be meant
};

// "note", "reading", "warning" or "error".
absl::string_view Name(Weight weight);

struct Rule {
  std::string id;
  Weight weight;
  std::string summary;  // a sentence
};

// All rules, the heaviest first.
absl::Span<const Rule> Rules();

// nullptr: there is no such rule.
const Rule* FindRule(std::string_view id);

// REQUIRES: there is such a rule.
const Rule& RuleOf(std::string_view id);

// Where the rule is explained: a place in this repository.
std::string HelpLink(const Rule& rule);

// One thing that lint says about a config.json.
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

// All findings of a file.
struct FileReport {
  std::string file = {};
  std::string unreadable = {};  // why the file cannot be read; empty: it was linted
  std::string model_type = {};  // empty: the file does not say
  std::string rope_type = {};   // of all layer types, "default, yarn"; empty: refused
  std::string pairing = {};     // "half", "interleaved" or empty: not known
  std::vector<Finding> findings = {};

  int64_t CountOf(Weight weight) const;
};

// FindFirstDifference: the first position at which two rotations differ by more than an error.
//
// It does not walk all positions. One column has the rows m e^(i w p) and n e^(i v p), whose
// distance is D(p)^2 = (m - n)^2 + 4 m n sin^2((w - v) p / 2). cos and sin differ by at most D, and
// one of them by at least D / sqrt(2). The search starts where D first reaches the error, and steps
// by what the derivatives of cos and sin allow, until one of the two exceeds the error.
//
// Limits:     At most 2^20 evaluations, about a second. Published configs need a few hundred.

// The rows of one rotation, without xPos.
struct Turns {
  std::vector<long double> inv_freq;  // radians per position, >= 0
  double factor = 1;                  // on cos and sin, >= 0
};

struct FirstDifference {
  std::optional<int64_t> position = {};  // unset: none was found
  size_t column = 0;
  // False: the evaluations were used up. The first position is this one or an earlier one; without
  // a position, there may be one.
  bool exact = true;
};

// The first of the positions 0 to `end` - 1 at which cos or sin of a column that both have differ
// by more than `error`. REQUIRES: error > 0; 0 <= end <= 2^30.
FirstDifference FindFirstDifference(const Turns& a, const Turns& b, double error, int64_t end);

// KeyLines: the line of each key of a JSON text, so that findings can point there.
//
// Limits:     The first 4096 keys, down to 8 levels, of at most 128 bytes each; others are not
//             found. Any text is accepted; keys after a syntax error are not found.
class KeyLines {
 public:
  static KeyLines Of(absl::string_view json);

  // The line, from 1, of a key with that path, "factor" or "rope_scaling.factor", at any level.
  // Keys among the rope parameters, and those of `layer_type` (may be empty), come first. Only keys
  // inside the object of path `within` are found, and that object's; empty: the whole file.
  std::optional<int64_t> Find(absl::string_view path, absl::string_view layer_type,
                              absl::string_view within = "") const;
  // The line of the syntax error, if there is one.
  std::optional<int64_t> error_line() const { return error_line_; }
  // That of text_config, else that of the file, else empty.
  const std::string& model_type() const { return model_type_; }

 private:
  friend class KeyReader;
  struct Key {
    std::string path;  // with a dot before each key: ".rope_scaling.factor"
    int64_t line = 0;
  };
  std::vector<Key> keys_;
  std::optional<int64_t> error_line_;
  std::string model_type_;
};

// The engines whose readings are known.
using kernels::EngineNames;

// Reads "vllm" or "vllm@0.33.0"; the version need not have been compared. INVALID_ARGUMENT, of the
// field "engine": no engine of that name, or it has no versions of that form.
Result<kernels::EngineVersion> ReadFilter(const std::string& text);

// Lints the rotary embedding of every layer type of `text`, and of each sub-config that has rope
// parameters. If `sub_config` names a sub-config, lints that one alone. `filter`: the engine whose
// readings are wanted, in one version or in all; without a name: every engine. Limits: as
// kernels::ModelConfig; any bytes are accepted.
FileReport LintText(absl::string_view file, absl::string_view text,
                    const kernels::EngineVersion& filter, absl::string_view sub_config = "");

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_LINT_H_
