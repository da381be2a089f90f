// diagnose: which setting explains a tensor that somebody else rotated.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "client/cli/diagnose/believed_config.h"
#include "client/cli/diagnose/diagnose.h"
#include "client/cli/diagnose/diagnose_input.h"

namespace rope::client {
namespace {

constexpr int64_t kNpyBytesMax = int64_t{2} << 30;
constexpr size_t kShown = 8;

Result<RotatedSample> SampleFrom(const Arguments& arguments) {
  for (const char* flag : {"before", "after"}) {
    if (!arguments.Has(flag)) {
      return Status(StatusCode::kInvalidArgument,
                    absl::StrCat("--", flag, ": got nothing, want FILE.npy"));
    }
  }
  const Result<std::string> before = ReadFile(arguments.Text("before"), kNpyBytesMax);
  if (!before.ok()) return before.status();
  const Result<std::string> after = ReadFile(arguments.Text("after"), kNpyBytesMax);
  if (!after.ok()) return after.status();
  return SampleOf(*before, *after,
                  {.layout = arguments.Text("layout"),
                   .start = arguments.Integer("start"),
                   .positions = arguments.Integers("positions")});
}

std::string WordsOf(const Explanation& explanation) {
  return explanation.changes.empty() ? "as configured" : absl::StrJoin(explanation.changes, ", ");
}

// The explanations to show, and how the config itself does where it is none.
std::vector<Explanation> Shown(const Diagnosis& diagnosis) {
  const auto& all = diagnosis.explanations;
  std::vector<Explanation> shown;
  if (diagnosis.as_configured.explains()) shown.push_back(diagnosis.as_configured);
  const auto count = static_cast<std::ptrdiff_t>(std::min(kShown, all.size()));
  shown.insert(shown.end(), all.begin(), all.begin() + count);
  if (!diagnosis.as_configured.explains()) shown.push_back(diagnosis.as_configured);
  return shown;
}

void PrintVerdict(const Diagnosis& diagnosis, const std::vector<Explanation>& shown) {
  if (!shown.front().explains()) {
    absl::PrintF("\nNothing that was tried explains it. What holds:\n");
    for (const std::string& fact : diagnosis.facts) absl::PrintF("  %s\n", fact);
    return;
  }
  if (diagnosis.as_configured.explains()) {
    absl::PrintF("\nThe config explains it.\n");
  } else {
    absl::PrintF("\nExplained by: %s.\n", WordsOf(shown.front()));
  }
  for (size_t i = 1; i < shown.size() && shown[i].explains(); ++i) {
    absl::PrintF("%s %s.\n",
                 i == 1 ? "The same numbers to within the tolerance:" : "Or:", WordsOf(shown[i]));
  }
}

void PrintPage(const RotatedSample& sample, const Diagnosis& diagnosis) {
  absl::PrintF("%d of %d tokens, %d of %d rows of %d channels\n\n", sample.positions.size(),
               sample.tokens_total, sample.rows, sample.rows_total, sample.head_dim);
  absl::PrintF("%-11s %-11s %-11s\n", "max error", "rms error", "/ tolerance");
  const std::vector<Explanation> shown = Shown(diagnosis);
  for (const Explanation& explanation : shown) {
    absl::PrintF("%-11.3g %-11.3g %-11.3g %s\n", explanation.max_error, explanation.rms_error,
                 explanation.ratio, WordsOf(explanation));
  }
  PrintVerdict(diagnosis, shown);
  const std::string& positions = shown.front().positions;
  if (!positions.empty()) absl::PrintF("Positions of the tokens above: %s\n", positions);
}

void PrintJson(const RotatedSample& sample, const Diagnosis& diagnosis) {
  const std::vector<Explanation> shown = Shown(diagnosis);
  nlohmann::json json = {{"tokens", sample.positions.size()},
                         {"tokens_total", sample.tokens_total},
                         {"rows", sample.rows},
                         {"rows_total", sample.rows_total},
                         {"explained", shown.front().explains()},
                         {"as_configured", diagnosis.as_configured.explains()},
                         {"facts", diagnosis.facts},
                         {"explanations", nlohmann::json::array()}};
  for (const Explanation& explanation : shown) {
    nlohmann::json entry = {{"changes", explanation.changes},
                            {"max_error", explanation.max_error},
                            {"rms_error", explanation.rms_error},
                            {"max_error_over_tolerance", explanation.ratio},
                            {"explains", explanation.explains()}};
    if (!explanation.positions.empty()) entry["positions"] = explanation.positions;
    json["explanations"].push_back(std::move(entry));
  }
  absl::PrintF("%s\n", json.dump(2));
}

}  // namespace

std::vector<Flag> DiagnoseFlags() {
  return WithRopeFlags({
      {"before", FlagKind::kText, "FILE.npy", "The tensor, float32, float64, float16 or"},
      {"after", FlagKind::kText, "FILE.npy", "bfloat16 as uint16, and somebody's rotation of it."},
      {"layout", FlagKind::kText, "AXES", "A letter for each axis, for example SHD or BSHD."},
      {"start", FlagKind::kInteger, "N", "Position of the first token; the next follow. Or"},
      {"positions", FlagKind::kIntegers, "0,1,2", "one for each token."},
      {"seq_len", FlagKind::kInteger, "N", "Length that decides dynamic and longrope."},
      {"json", FlagKind::kSwitch, "", "Print the explanations as JSON."},
  });
}

int RunDiagnose(const Arguments& arguments) {
  const Result<RotatedSample> sample = SampleFrom(arguments);
  if (!sample.ok()) return FailOrMisuse(sample.status());
  const Result<RopeSpec> spec = BelievedSpecOf(arguments, sample->head_dim);
  if (!spec.ok()) return FailOrMisuse(spec.status());
  const Result<BelievedConfig> believed = BelievedConfigOf(*spec, arguments, sample->head_dim);
  if (!believed.ok()) return Fail(believed.status());
  const int64_t seq_len = arguments.Integer("seq_len").value_or(sample->seq_len);
  if (seq_len < 1) {
    return Misuse(absl::StrCat("--seq_len: got ", seq_len, ", want 1 or more"));
  }
  const Result<Diagnosis> diagnosis =
      Diagnose(*sample, believed->config, believed->pairing, seq_len);
  if (!diagnosis.ok()) return Fail(diagnosis.status());
  if (arguments.Has("json")) {
    PrintJson(*sample, *diagnosis);
  } else {
    PrintPage(*sample, *diagnosis);
  }
  return diagnosis->as_configured.explains() ? kExitOk : kExitFailed;
}

}  // namespace rope::client
