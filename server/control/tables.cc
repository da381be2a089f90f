#include "server/control/tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "kernels/tables/derived_rows.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/request/array_reader.h"
#include "server/request/positions.h"
#include "server/request/rotation_plan.h"

namespace rope::server {
namespace {

using EntryPtr = std::shared_ptr<const RopeEntry>;

// Numbers per step, cos or sin: about half a millisecond.
constexpr int64_t kNumbersPerStep = 4096;

struct TablesPlan {
  kernels::RowSource source;
  kernels::RowFormat format;
  std::vector<int64_t> positions;       // by row; of a move within one embedding: differences
  std::vector<int64_t> from_positions;  // by row; empty unless source.from is set
  v1::GetTablesResponse response;       // all but the arrays
};

// An embedding of the request, resolved. `field` is its path in errors.
struct Embedding {
  EntryPtr entry;
  ResolvedPtr resolved;
};

absl::StatusOr<Embedding> ResolveEmbedding(EntryPtr entry, const v1::GetTablesRequest& request,
                                           absl::string_view field) {
  if (!entry->layer().rotates) {
    return InvalidField(field, "a layer that does not rotate", "one that rotates");
  }
  ROPE_ASSIGN_OR_RETURN(auto resolved, ResolveAsked(*entry, request));
  return Embedding{std::move(entry), std::move(resolved)};
}

absl::StatusOr<kernels::RowLayout> ReadLayout(v1::TableLayout layout) {
  if (layout == v1::TABLE_LAYOUT_UNSPECIFIED) return kernels::RowLayout::kCosSin;
  // The schema has the same layouts in the same order, from 1.
  if (v1::TableLayout_IsValid(layout)) return static_cast<kernels::RowLayout>(layout - 1);
  return InvalidField("layout", static_cast<int>(layout), "a value of TableLayout");
}

absl::StatusOr<kernels::RowFormat> ReadFormat(const v1::GetTablesRequest& request,
                                              const kernels::ResolvedRope& resolved) {
  kernels::RowFormat format;
  ROPE_ASSIGN_OR_RETURN(format.layout, ReadLayout(request.layout()));
  const bool is_hf = resolved.DependsOnDType();
  if (request.dtype() == v1::DTYPE_FP64 && !is_hf) return format;
  format.dtype = kernels::DType::kFloat32;
  if (request.dtype() == v1::DTYPE_UNSPECIFIED) return format;
  const auto dtype = ReadDType(request.dtype(), "dtype");
  if (!dtype.ok()) {
    return InvalidField("dtype", proto::DTypeName(request.dtype()),
                        absl::StrCat("DTYPE_FP32, DTYPE_FP16, DTYPE_BF16",
                                     is_hf ? " with PRECISION_HF" : " or DTYPE_FP64"));
  }
  format.dtype = *dtype;
  return format;
}

absl::StatusOr<kernels::Side> ReadSide(v1::Role role, const kernels::ResolvedRope& resolved) {
  if (role == v1::ROLE_UNSPECIFIED) return kernels::Side::kQ;
  if (!resolved.DependsOnSide()) {
    return InvalidField("role", v1::Role_Name(role), "it unset: without xpos q and k share rows");
  }
  if (role == v1::ROLE_Q) return kernels::Side::kQ;
  if (role == v1::ROLE_K) return kernels::Side::kK;
  return InvalidField("role", v1::Role_Name(role), "ROLE_Q or ROLE_K");
}

using CheckRows = absl::FunctionRef<absl::Status(int64_t rows)>;

absl::StatusOr<std::vector<int64_t>> ReadRange(const v1::PositionRange& range,
                                               const std::string& path, CheckRows check) {
  ROPE_RETURN_IF_ERROR(CheckPosition(range.begin(), absl::StrCat(path, ".begin")));
  const std::string end = absl::StrCat(path, ".end");
  if (range.end() <= range.begin()) {
    return InvalidField(end, range.end(), absl::StrCat("more than begin, ", range.begin()));
  }
  if (range.end() - 1 > limits::kPositionMax) {
    return MakeError(Reason::kPositionOutOfRange, end, range.end(),
                     absl::StrCat("at most ", limits::kPositionMax + 1));
  }
  ROPE_RETURN_IF_ERROR(check(range.end() - range.begin()));
  std::vector<int64_t> positions;
  positions.reserve(static_cast<size_t>(range.end() - range.begin()));
  for (int64_t i = range.begin(); i < range.end(); ++i) positions.push_back(i);
  return positions;
}

// Calls `check` before the positions are read.
absl::StatusOr<std::vector<int64_t>> ReadRows(const v1::TablePositions& message,
                                              const proto::SplitMessage& payloads,
                                              const std::string& path, CheckRows check) {
  if (message.has_range()) return ReadRange(message.range(), absl::StrCat(path, ".range"), check);
  if (!message.has_position_ids()) {
    return InvalidField(path, "nothing", "exactly one of range, position_ids");
  }
  const std::string field = absl::StrCat(path, ".position_ids");
  ArraySource source(payloads);
  const auto check_shape = [&](absl::Span<const int64_t> shape) {
    if (shape.size() == 1 && shape[0] > 0) return check(shape[0]);
    return InvalidField(absl::StrCat(field, ".shape"), Brackets(shape), "[rows], at least one");
  };
  ROPE_ASSIGN_OR_RETURN(IntegerArray array,
                        ReadIntegers(message.position_ids(), source, field, check_shape));
  for (const int64_t position : array.values) ROPE_RETURN_IF_ERROR(CheckPosition(position, field));
  return std::move(array.values);
}

absl::StatusOr<int64_t> ReadSeqLen(bool is_set, int64_t seq_len, absl::string_view field,
                                   const std::vector<int64_t>& positions) {
  if (!is_set) return *std::ranges::max_element(positions) + 1;
  if (seq_len >= 1 && seq_len <= limits::kSeqLenMax) return seq_len;
  return InvalidField(field, seq_len, absl::StrCat("a length from 1 to ", limits::kSeqLenMax));
}

// The memory of a call: its arrays, twice while the answer is encoded, and two positions for each
// row.
absl::Status AdmitRows(int64_t rows, int64_t row_bytes, int64_t reply_bytes_max, AdmitReply admit) {
  ROPE_RETURN_IF_ERROR(CheckAtMost(rows, kTablesRowsMax, "positions", " rows", " in one call"));
  const int64_t bytes_max = std::min(kTablesBytesMax, reply_bytes_max);
  if (row_bytes > bytes_max / rows) {
    return MakeError(Reason::kLimitExceeded, "positions",
                     absl::StrCat(rows, " rows of ", row_bytes, " bytes"),
                     absl::StrCat("at most ", bytes_max, " bytes in one call"));
  }
  return admit(rows * (2 * row_bytes + 2 * static_cast<int64_t>(sizeof(int64_t))));
}

// The rows of a move. Within one embedding they are rows of differences of positions; between two,
// each row has a position in both.
absl::Status PlanMove(const v1::GetTablesRequest& request, const proto::SplitMessage& payloads,
                      const Embedding& to, kernels::Side side, ModelRegistry& registry,
                      TablesPlan& plan) {
  const v1::TableReposition& move = request.reposition();
  EntryPtr from_entry = to.entry;
  if (move.has_from_rope()) {
    ROPE_ASSIGN_OR_RETURN(from_entry, FindFromRope(move.from_rope(), registry));
  }
  ROPE_ASSIGN_OR_RETURN(const Embedding from,
                        ResolveEmbedding(std::move(from_entry), request, "reposition.from_rope"));
  if (to.resolved->DependsOnDType() || from.resolved->DependsOnDType()) {
    return InvalidField(
        to.resolved->DependsOnDType() ? "rope.precision" : "reposition.from_rope.precision",
        "PRECISION_HF with reposition", "PRECISION_EXACT: Hugging Face has no such operation");
  }
  ROPE_RETURN_IF_ERROR(CheckSameGeometry(*from.entry, *from.resolved, *to.entry, *to.resolved));
  const auto rows = static_cast<int64_t>(plan.positions.size());
  const auto check = [rows](int64_t got) {
    if (got == rows) return absl::OkStatus();
    return InvalidField("reposition.from", absl::StrCat(got, " rows"),
                        absl::StrCat(rows, ", as positions"));
  };
  ROPE_ASSIGN_OR_RETURN(std::vector<int64_t> from_positions,
                        ReadRows(move.from(), payloads, "reposition.from", check));
  ROPE_ASSIGN_OR_RETURN(const int64_t from_seq_len,
                        ReadSeqLen(move.has_from_seq_len(), move.from_seq_len(),
                                   "reposition.from_seq_len", from_positions));
  plan.source.frequencies = to.resolved->ForDifferences(plan.response.seq_len(), side);
  const FrequenciesPtr before = from.resolved->ForDifferences(from_seq_len, side);
  const double factor = to.resolved->attention_factor();
  const double from_factor = from.resolved->attention_factor();
  if (plan.source.frequencies->key == before->key && factor == from_factor) {
    plan.response.set_attention_factor(1);
    for (size_t i = 0; i < from_positions.size(); ++i) plan.positions[i] -= from_positions[i];
    return CheckDistances(*to.resolved, plan.positions);
  }
  if (to.resolved->DependsOnSide() || from.resolved->DependsOnSide()) {
    return InvalidField("reposition.from_rope", "a different embedding with xpos in one of them",
                        "the same xpos in both, or none");
  }
  if (!std::isfinite(static_cast<float>(1 / from_factor))) {
    return InvalidField("reposition.from_rope", absl::StrCat("attention factor ", from_factor),
                        "an attention factor that can be divided by");
  }
  plan.response.set_attention_factor(factor / from_factor);
  plan.source.from = before;
  if (!request.skip_attention_factor()) plan.source.multiplier = factor / from_factor;
  plan.from_positions = std::move(from_positions);
  return absl::OkStatus();
}

// The rows that rotate.
absl::Status PlanRows(const v1::GetTablesRequest& request, const Embedding& rope,
                      kernels::Side side, TablesPlan& plan) {
  ROPE_RETURN_IF_ERROR(CheckRange(*rope.resolved, plan.positions));
  const auto multiplier = request.skip_attention_factor() ? kernels::Multiplier::kOne
                                                          : kernels::Multiplier::kAttentionFactor;
  const kernels::RowUse use = {.side = side,
                               .dtype = plan.format.dtype.value_or(kernels::DType::kFloat32)};
  plan.source.frequencies = rope.resolved->ForSeqLen(plan.response.seq_len(), multiplier, use);
  plan.response.set_attention_factor(rope.resolved->attention_factor());
  return absl::OkStatus();
}

class TablesAnswer {
 public:
  explicit TablesAnswer(TablesPlan plan) : plan_(std::move(plan)) {}

  absl::StatusOr<bool> Step(v1::GetTablesResponse& response) {
    if (next_ == 0) Allocate(response);
    const int64_t per_step = std::max<int64_t>(1, kNumbersPerStep / 2 / plan_.source.columns);
    const auto rows = static_cast<int64_t>(plan_.positions.size());
    for (const int64_t stop = std::min(rows, next_ + per_step); next_ < stop; ++next_) {
      const auto row = static_cast<size_t>(next_);
      const int64_t from = plan_.from_positions.empty() ? 0 : plan_.from_positions[row];
      kernels::ReadRow(plan_.source, plan_.positions[row], from, columns_);
      kernels::WriteRow(plan_.format, columns_, out_);
      for (char*& out : out_) out += out == nullptr ? 0 : row_bytes_;
    }
    return next_ == rows;
  }

 private:
  void Allocate(v1::GetTablesResponse& response) {
    response = std::move(plan_.response);
    row_bytes_ = kernels::RowBytes(plan_.format, plan_.source.columns);
    if (kernels::ArraysOf(plan_.format.layout) == 1) {
      out_ = {AddArray(*response.mutable_table()), nullptr};
    } else {
      out_ = {AddArray(*response.mutable_cos()), AddArray(*response.mutable_sin())};
    }
  }

  // Returns where its bytes begin.
  char* AddArray(v1::Array& array) const {
    const auto dtype = plan_.format.dtype;
    array.set_dtype(dtype.has_value() ? MessageDType(*dtype) : v1::DTYPE_FP64);
    array.add_shape(static_cast<int64_t>(plan_.positions.size()));
    for (const int64_t length : kernels::RowShape(plan_.format.layout, plan_.source.columns)) {
      array.add_shape(length);
    }
    array.mutable_raw()->resize(plan_.positions.size() * static_cast<size_t>(row_bytes_));
    return array.mutable_raw()->data();
  }

  TablesPlan plan_;
  int64_t next_ = 0;  // row
  int64_t row_bytes_ = 0;
  std::array<char*, 2> out_ = {};  // of row next_; null: the layout has one array
  std::vector<kernels::CosSin> columns_;
};

}  // namespace

absl::StatusOr<Steps<v1::GetTablesResponse>> GetTables(const v1::GetTablesRequest& request,
                                                       const proto::SplitMessage& payloads,
                                                       ModelRegistry& registry,
                                                       int64_t reply_bytes_max, AdmitReply admit) {
  ROPE_ASSIGN_OR_RETURN(auto entry, registry.Find(request.rope()));
  ROPE_ASSIGN_OR_RETURN(const Embedding rope, ResolveEmbedding(entry, request, "rope"));
  TablesPlan plan;
  ROPE_ASSIGN_OR_RETURN(plan.format, ReadFormat(request, *rope.resolved));
  ROPE_ASSIGN_OR_RETURN(const kernels::Side side, ReadSide(request.role(), *rope.resolved));
  plan.source.columns = rope.resolved->rotary_dim() / 2;
  const int64_t row_bytes =
      kernels::ArraysOf(plan.format.layout) * kernels::RowBytes(plan.format, plan.source.columns);
  ROPE_ASSIGN_OR_RETURN(plan.positions,
                        ReadRows(request.positions(), payloads, "positions", [&](int64_t rows) {
                          return AdmitRows(rows, row_bytes, reply_bytes_max, admit);
                        }));
  ROPE_ASSIGN_OR_RETURN(const int64_t seq_len, ReadSeqLen(request.has_seq_len(), request.seq_len(),
                                                          "seq_len", plan.positions));
  plan.response.set_config_id(entry->config_id());
  plan.response.set_seq_len(seq_len);
  plan.response.set_depends_on_seq_len(rope.resolved->DependsOnSeqLen());
  plan.response.set_attention_factor_applied(!request.skip_attention_factor());
  for (const std::string& warning : entry->warnings()) plan.response.add_warnings(warning);
  const auto past_length =
      WarningPastLength(rope.resolved->config().max_position_embeddings, {plan.positions, {}, {}});
  if (past_length.has_value()) plan.response.add_warnings(*past_length);
  ROPE_RETURN_IF_ERROR(request.has_reposition()
                           ? PlanMove(request, payloads, rope, side, registry, plan)
                           : PlanRows(request, rope, side, plan));
  return [answer = std::make_shared<TablesAnswer>(std::move(plan))](
             v1::GetTablesResponse& response) { return answer->Step(response); };
}

}  // namespace rope::server
