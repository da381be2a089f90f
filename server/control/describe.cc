#include "server/control/describe.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/describe.h"
#include "kernels/status_macros.h"
#include "proto/wire/rope_config.h"
#include "server/control/limits.h"
#include "server/error.h"
#include "server/request/array_reader.h"
#include "server/request/limits.h"
#include "server/request/positions.h"
#include "server/request/rotation_plan.h"

namespace rope::server {
namespace {

// Pairs of cos and sin per step: about half a millisecond.
constexpr int64_t kPairsPerStep = 2048;

struct DescribePlan {
  std::shared_ptr<const RopeEntry> entry;
  std::shared_ptr<const kernels::ResolvedRope> resolved;  // null: the layer does not rotate
  kernels::DescribeOptions options;                       // without positions; seq_len is set
  std::vector<int64_t> positions;                         // of the rows
};

absl::Status CheckPositions(const v1::DescribeRequest& request) {
  if (request.positions_size() > limits::kDescribePositionsMax) {
    return InvalidField("positions", absl::StrCat(request.positions_size(), " positions"),
                        absl::StrCat("at most ", limits::kDescribePositionsMax));
  }
  for (const int64_t position : request.positions()) {
    ROPE_RETURN_IF_ERROR(CheckPosition(position, "positions"));
  }
  return absl::OkStatus();
}

absl::Status CheckSeqLen(const v1::DescribeRequest& request) {
  if (!request.has_seq_len()) return absl::OkStatus();
  if (request.seq_len() >= 1 && request.seq_len() <= limits::kSeqLenMax) return absl::OkStatus();
  return InvalidField("seq_len", request.seq_len(),
                      absl::StrCat("a length from 1 to ", limits::kSeqLenMax));
}

// The embedding that `entry` describes; null if the layer does not rotate.
absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> ResolveFor(
    const RopeEntry& entry, const v1::DescribeRequest& request) {
  std::shared_ptr<const kernels::ResolvedRope> resolved;
  if (!entry.layer().rotates) return resolved;
  std::optional<int64_t> head_dim;
  if (request.has_head_dim()) head_dim = request.head_dim();
  ROPE_ASSIGN_OR_RETURN(resolved, entry.Resolve(head_dim));
  if (head_dim.has_value() && resolved->head_dim() != *head_dim) {
    return InvalidField("head_dim", *head_dim, absl::StrCat("the config's ", resolved->head_dim()));
  }
  return resolved;
}

// What the request asks for, if the embedding has it.
absl::StatusOr<kernels::DescribeOptions> OptionsOf(const v1::DescribeRequest& request,
                                                   const RopeEntry& entry,
                                                   const kernels::ResolvedRope* resolved) {
  kernels::DescribeOptions options;
  options.positions = request.positions();
  if (request.has_seq_len()) options.seq_len = request.seq_len();
  if (resolved == nullptr) return options;
  ROPE_ASSIGN_OR_RETURN(options.row_dtype,
                        ReadRowDType(request.dtype(), resolved->config().precision));
  options.sinusoidal = request.sinusoidal();
  if (!options.sinusoidal) return options;
  ROPE_RETURN_IF_ERROR(CheckSinusoidal(*resolved));
  if (!entry.pairing().has_value()) {
    return InvalidField("rope.pairing", "nothing",
                        "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
  }
  return options;
}

// Columns of the embedding; 0: it does not rotate.
int64_t ColumnsOf(const DescribePlan& plan) {
  return plan.resolved == nullptr ? 0 : plan.resolved->rotary_dim() / 2;
}

// The memory of a call: its rows, twice while the answer is encoded, and for each column its
// frequency, wavelength, scaling and parameters, computed and encoded.
absl::Status AdmitAnswer(const DescribePlan& plan, int64_t reply_bytes_max, AdmitDescribe admit) {
  constexpr int64_t kColumnBytes = 128;
  constexpr int64_t kRowHeadBytes = 32;  // the position, and the lengths of the lists
  const int64_t columns = ColumnsOf(plan);
  const int64_t numbers = plan.options.sinusoidal ? 4 : 2;  // of each column
  const int64_t row_bytes =
      kRowHeadBytes + columns * numbers * static_cast<int64_t>(sizeof(double));
  const auto rows = columns == 0 ? int64_t{0} : static_cast<int64_t>(plan.positions.size());
  const int64_t bytes_max = std::min(limits::kDescribeBytesMax, reply_bytes_max);
  if (rows * row_bytes > bytes_max) {
    return MakeError(Reason::kLimitExceeded, "positions",
                     absl::StrCat(rows, " rows of ", row_bytes, " bytes"),
                     absl::StrCat("at most ", bytes_max, " bytes in one call"));
  }
  return admit(2 * rows * row_bytes + columns * kColumnBytes);
}

class DescribeAnswer {
 public:
  explicit DescribeAnswer(DescribePlan plan) : plan_(std::move(plan)), columns_(ColumnsOf(plan_)) {}

  absl::StatusOr<bool> Step(v1::DescribeResponse& response) {
    if (!described_) {
      ROPE_RETURN_IF_ERROR(DescribeAll(response));
    } else {
      AddRows(response);
    }
    return columns_ == 0 || next_ == plan_.positions.size();
  }

 private:
  // Everything but the rows.
  absl::Status DescribeAll(v1::DescribeResponse& response) {
    ROPE_ASSIGN_OR_RETURN(
        DescribeReply reply,
        kernels::Describe(plan_.entry->rope(), plan_.resolved.get(), plan_.options));
    reply.config_id = plan_.entry->config_id();
    response = proto::WriteDescribeReply(reply);
    if (columns_ > 0) rows_.emplace(plan_.entry->rope(), *plan_.resolved, plan_.options);
    described_ = true;
    return absl::OkStatus();
  }

  void AddRows(v1::DescribeResponse& response) {
    const auto per_step = static_cast<size_t>(std::max<int64_t>(1, kPairsPerStep / columns_));
    const size_t stop = std::min(plan_.positions.size(), next_ + per_step);
    for (; next_ < stop; ++next_) {
      proto::WriteRow(rows_->At(plan_.positions[next_]), *response.add_rows());
    }
  }

  const DescribePlan plan_;
  const int64_t columns_;
  bool described_ = false;
  std::optional<kernels::DescribedRows> rows_;  // unset: the layer does not rotate
  size_t next_ = 0;                             // row
};

}  // namespace

absl::StatusOr<Steps<v1::DescribeResponse>> Describe(const v1::DescribeRequest& request,
                                                     ModelRegistry& registry,
                                                     int64_t reply_bytes_max, AdmitDescribe admit) {
  DescribePlan plan;
  ROPE_ASSIGN_OR_RETURN(plan.entry, registry.Find(request.rope()));
  ROPE_RETURN_IF_ERROR(CheckPositions(request));
  ROPE_RETURN_IF_ERROR(CheckSeqLen(request));
  ROPE_ASSIGN_OR_RETURN(plan.resolved, ResolveFor(*plan.entry, request));
  ROPE_ASSIGN_OR_RETURN(plan.options, OptionsOf(request, *plan.entry, plan.resolved.get()));
  plan.options.seq_len = kernels::SeqLenOf(plan.options);
  plan.options.positions = {};
  plan.positions.assign(request.positions().begin(), request.positions().end());
  ROPE_RETURN_IF_ERROR(AdmitAnswer(plan, reply_bytes_max, admit));
  return [answer = std::make_shared<DescribeAnswer>(std::move(plan))](
             v1::DescribeResponse& response) { return answer->Step(response); };
}

}  // namespace rope::server
