// diagnose: which setting explains a tensor that somebody else rotated.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/diagnose/diagnose.h"
#include "client/cli/diagnose/diagnose_configs.h"
#include "client/cli/diagnose/diagnose_input.h"
#include "client/cli/files.h"

namespace rope::client {
namespace {

constexpr int64_t kNpyBytesMax = int64_t{2} << 30;
constexpr size_t kShown = 8;
constexpr size_t kSeconds = 3;  // changes that a second one is tried beside

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

// Without a config: theta 10000, every channel, half.
Result<RopeSpec> BelievedOf(const Arguments& arguments, int64_t head_dim) {
  for (const char* flag : {"model", "config", "config_id", "layer", "layer_type"}) {
    if (arguments.Has(flag)) return RopeSpecOf(arguments);
  }
  const Result<Pairing> pairing = PairingOf(arguments);
  if (!pairing.ok()) return pairing.status();
  RopeSpec spec;
  spec.config = RopeConfig{.head_dim = head_dim};
  spec.pairing = *pairing;
  return spec;
}

// Asks the server for the believed config and for what may have been in its place.
class Survey {
 public:
  Survey(const Client& client, const CallOptions& call, const RotatedSample& sample,
         int64_t seq_len)
      : client_(client), call_(call), sample_(sample), seq_len_(seq_len) {
    positions_ = PositionsToDescribe(sample);
  }

  // The config itself, then with one change.
  Status Begin(const RopeSpec& believed) {
    Result<DescribeReply> reply = Describe(believed);
    if (!reply.ok()) return reply.status();
    if (!reply->rotates) {
      return Status(StatusCode::kFailedPrecondition,
                    "config: got a layer without rotary embedding, want one that rotates");
    }
    if (reply->config.xpos.has_value()) {
      return Status(StatusCode::kUnimplemented,
                    "config: got xpos, which turns q and k differently, want none");
    }
    pairing_ = reply->pairing == Pairing::kUnspecified ? Pairing::kHalf : reply->pairing;
    variants_.push_back({{}, *std::move(reply)});
    return AddChangesOf(0);
  }

  // A second change beside the first of those that come nearest, and beside the number of rotated
  // channels that the tensors show.
  Status Continue(const std::vector<Explanation>& ranked) {
    std::vector<std::string> words = {absl::StrCat(
        "rotary_dim ",
        EstimateRotaryDim(sample_, variants_[0].reply.config.rotary_offset.value_or(0)))};
    for (const Explanation& explanation : ranked) {
      if (words.size() > kSeconds) break;
      if (explanation.changes.size() == 1) words.push_back(explanation.changes.front());
    }
    const size_t count = variants_.size();
    for (size_t i = 1; i < count; ++i) {
      const std::string& change = variants_[i].changes.front();
      if (std::find(words.begin(), words.end(), change) == words.end()) continue;
      if (Status status = AddChangesOf(i); !status.ok()) return status;
    }
    return {};
  }

  std::vector<Explanation> Explanations() const { return Explain(sample_, pairing_, variants_); }

 private:
  Status AddChangesOf(size_t index) {
    // A copy: variants_ grows below.
    const DescribeReply from = variants_[index].reply;
    for (const ConfigChange& change :
         ConfigChanges(from.config, from.inv_freq.size(), pairing_, sample_)) {
      Result<DescribeReply> reply = Describe({.config = change.config, .pairing = pairing_});
      // Not every change makes a config; it is no explanation then.
      if (reply.status().code() == StatusCode::kInvalidArgument) continue;
      if (!reply.ok()) return reply.status();
      if (IsKnown(*reply)) continue;
      std::vector<std::string> changes = variants_[index].changes;
      changes.push_back(change.words);
      variants_.push_back({std::move(changes), *std::move(reply)});
    }
    return {};
  }

  bool IsKnown(const DescribeReply& reply) const {
    return std::any_of(variants_.begin(), variants_.end(), [&reply](const Variant& variant) {
      return variant.reply.inv_freq == reply.inv_freq &&
             variant.reply.attention_factor == reply.attention_factor;
    });
  }

  Result<DescribeReply> Describe(const RopeSpec& spec) const {
    return client_.Describe(
        {.rope = spec, .seq_len = seq_len_, .positions = positions_, .head_dim = sample_.head_dim},
        call_);
  }

  const Client& client_;
  const CallOptions call_;
  const RotatedSample& sample_;
  const int64_t seq_len_;
  std::vector<int64_t> positions_;
  Pairing pairing_ = Pairing::kUnspecified;
  std::vector<Variant> variants_;
};

Result<std::vector<Explanation>> Diagnose(Survey& survey, const RopeSpec& believed) {
  if (Status status = survey.Begin(believed); !status.ok()) return status;
  std::vector<Explanation> explanations = survey.Explanations();
  if (explanations.front().explains()) return explanations;
  if (Status status = survey.Continue(explanations); !status.ok()) return status;
  return survey.Explanations();
}

std::string WordsOf(const Explanation& explanation) {
  return explanation.changes.empty() ? "as configured" : absl::StrJoin(explanation.changes, ", ");
}

void PrintPage(const RotatedSample& sample, const std::vector<Explanation>& shown) {
  absl::PrintF("%d of %d tokens, %d of %d rows of %d channels\n\n", sample.positions.size(),
               sample.tokens_total, sample.rows, sample.rows_total, sample.head_dim);
  absl::PrintF("%-11s %-11s %-11s\n", "max error", "rms error", "/ tolerance");
  for (const Explanation& explanation : shown) {
    absl::PrintF("%-11.3g %-11.3g %-11.3g %s\n", explanation.max_error, explanation.rms_error,
                 explanation.ratio, WordsOf(explanation));
  }
  const Explanation& best = shown.front();
  if (!best.explains()) {
    absl::PrintF("\nNothing that was tried explains it; nearest: %s.\n", WordsOf(best));
  } else if (best.changes.empty()) {
    absl::PrintF("\nThe config explains it.\n");
  } else {
    absl::PrintF("\nExplained by: %s.\n", WordsOf(best));
  }
}

void PrintJson(const RotatedSample& sample, const std::vector<Explanation>& shown) {
  nlohmann::json json = {
      {"tokens", sample.positions.size()},
      {"tokens_total", sample.tokens_total},
      {"rows", sample.rows},
      {"rows_total", sample.rows_total},
      {"explained", shown.front().explains()},
      {"as_configured", shown.front().explains() && shown.front().changes.empty()},
      {"explanations", nlohmann::json::array()}};
  for (const Explanation& explanation : shown) {
    json["explanations"].push_back({{"changes", explanation.changes},
                                    {"max_error", explanation.max_error},
                                    {"rms_error", explanation.rms_error},
                                    {"max_error_over_tolerance", explanation.ratio},
                                    {"explains", explanation.explains()}});
  }
  absl::PrintF("%s\n", json.dump(2));
}

// The best, and how the config itself does where that is not among them.
std::vector<Explanation> Shown(const std::vector<Explanation>& all) {
  std::vector<Explanation> shown(
      all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, all.size())));
  const auto believed =
      std::find_if(all.begin(), all.end(), [](const Explanation& e) { return e.changes.empty(); });
  if (believed - all.begin() >= static_cast<std::ptrdiff_t>(shown.size())) {
    shown.push_back(*believed);
  }
  return shown;
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
  const Result<RopeSpec> believed = BelievedOf(arguments, sample->head_dim);
  if (!believed.ok()) return FailOrMisuse(believed.status());
  const Result<Client> client = ConnectTo(arguments);
  if (!client.ok()) return Fail(client.status());
  Survey survey(*client, CallOptionsOf(arguments), *sample,
                arguments.Integer("seq_len").value_or(sample->seq_len));
  const Result<std::vector<Explanation>> explanations = Diagnose(survey, *believed);
  if (!explanations.ok()) return Fail(explanations.status());
  const std::vector<Explanation> shown = Shown(*explanations);
  if (arguments.Has("json")) {
    PrintJson(*sample, shown);
  } else {
    PrintPage(*sample, shown);
  }
  const bool as_believed = shown.front().explains() && shown.front().changes.empty();
  return as_believed ? kExitOk : kExitFailed;
}

}  // namespace rope::client
