#include "kernels/rotate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/backends.h"
#include "kernels/checked_math.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "kernels/tables/mrope_rows.h"

namespace rope::kernels {
namespace {

// The error of the angles is proven up to here (tables/table_cache.h).
constexpr int64_t kPositionMax = int64_t{1} << 30;

absl::Status Invalid(std::string_view field, std::string_view got, std::string_view want) {
  return InvalidField(field, got, want);
}

absl::Status CheckAxis(const Rotation& rotation, size_t axis) {
  const absl::Span<const int64_t> positions = rotation.positions[axis];
  if (positions.size() != rotation.positions[0].size()) {
    return Invalid(StrCat("positions[", axis, "]"), StrCat(positions.size(), " positions"),
                   StrCat(rotation.positions[0].size(), ", as positions[0] has"));
  }
  const PositionRange range =
      rotation.rope->position_range().value_or(PositionRange{0, kPositionMax});
  for (size_t token = 0; token < positions.size(); ++token) {
    const int64_t position = positions[token];
    if (position >= std::max(range.first, int64_t{0}) &&
        position <= std::min(range.last, kPositionMax)) {
      continue;
    }
    return MakeError(
        Reason::kPositionOutOfRange, StrCat("positions[", axis, "][", token, "]"), position,
        StrCat(std::max(range.first, int64_t{0}), " to ", std::min(range.last, kPositionMax)));
  }
  return absl::OkStatus();
}

absl::Status CheckPositions(const Rotation& rotation) {
  const size_t axes = rotation.positions.size();
  const bool multimodal = rotation.rope->config().mrope.has_value();
  if (axes != 1 && (axes != 3 || !multimodal)) {
    return Invalid("positions", StrCat(axes, " axes"),
                   multimodal ? "1 or 3" : "1: the embedding has no mrope");
  }
  if (rotation.seq_len.value_or(1) < 1) {
    return Invalid("seq_len", StrCat(*rotation.seq_len), "1 or more");
  }
  for (size_t axis = 0; axis < axes; ++axis) ROPE_RETURN_IF_ERROR(CheckAxis(rotation, axis));
  return absl::OkStatus();
}

// The channels that a head must have; more are right only for an embedding with rotary_offset.
absl::Status CheckHead(const ResolvedRope& rope, int64_t channels, const std::string& field) {
  const bool may_be_wider = rope.config().rotary_offset.has_value();
  const int64_t least = std::max(rope.head_dim(), rope.rotary_offset() + rope.rotary_dim());
  if (channels == least || (channels > least && may_be_wider)) return absl::OkStatus();
  return Invalid(StrCat(field, ".shape"), StrCat("a head_dim of ", channels),
                 StrCat(may_be_wider ? "at least " : "", least));
}

absl::Status CheckTensor(const Rotation& rotation, const RotateTensor& tensor,
                         const std::string& field) {
  const std::vector<int64_t>& shape = tensor.shape;
  const auto tokens = static_cast<int64_t>(rotation.positions[0].size());
  const std::string got = StrCat("[", absl::StrJoin(shape, ", "), "]");
  if (shape.size() != 3 || shape[0] != tokens || shape[1] < 0) {
    return Invalid(StrCat(field, ".shape"), got,
                   StrCat("[tokens, heads, head_dim] with ", tokens, " tokens"));
  }
  ROPE_RETURN_IF_ERROR(CheckHead(*rotation.rope, shape[2], field));
  if (IsFloat8(tensor.dtype)) {
    return Invalid(StrCat(field, ".dtype"), Name(tensor.dtype), "fp32, fp16 or bf16");
  }
  std::optional<int64_t> bytes = CheckedMultiply(shape[1], shape[2]);
  if (bytes.has_value()) bytes = CheckedMultiply(*bytes, shape[0]);
  if (bytes.has_value()) bytes = CheckedMultiply(*bytes, ElementBytes(tensor.dtype));
  if (!bytes.has_value()) return Invalid(StrCat(field, ".shape"), got, "less than 2^63 bytes");
  if (*bytes > 0 && (tensor.input == nullptr || tensor.output == nullptr)) {
    return Invalid(field, "no memory", "an input and an output");
  }
  return absl::OkStatus();
}

int64_t SeqLenOf(const Rotation& rotation) {
  int64_t length = 1;
  for (const absl::Span<const int64_t> axis : rotation.positions) {
    for (const int64_t position : axis) length = std::max(length, position + 1);
  }
  return rotation.seq_len.value_or(length);
}

RotateJob JobOf(const Rotation& rotation, const RotateTensor& tensor, const TokenRows& rows,
                int64_t columns) {
  RotateJob job;
  job.input = tensor.input;
  job.output = tensor.output;
  job.tokens = tensor.shape[0];
  job.heads = tensor.shape[1];
  job.head_dim = tensor.shape[2];
  job.input_strides = {.token = job.heads * job.head_dim, .head = job.head_dim};
  job.output_strides = job.input_strides;
  job.dtype = tensor.dtype;
  job.geometry = {.pairing = rotation.pairing,
                  .pairs = columns,
                  .offset = rotation.rope->rotary_offset(),
                  .partner = rotation.rope->rotary_dim() / 2};
  if (rotation.rope->DependsOnDType()) job.arithmetic = PairArithmetic::kTurnStepwise;
  job.rows = rows.rows;
  return job;
}

}  // namespace

Rotator::Rotator(std::unique_ptr<Backend> backend, std::unique_ptr<TableCache> tables)
    : backend_(std::move(backend)), tables_(std::move(tables)) {}

absl::StatusOr<Rotator> Rotator::Create(std::string_view backend, const BackendOptions& options,
                                        int64_t table_bytes) {
  ROPE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> created, CreateBackend(backend, options));
  return Rotator(std::move(created), std::make_unique<TableCache>(table_bytes));
}

absl::Status Rotator::Rotate(const Rotation& rotation,
                             absl::Span<const RotateTensor> tensors) const {
  if (rotation.rope == nullptr) return Invalid("rope", "nothing", "a resolved embedding");
  ROPE_RETURN_IF_ERROR(CheckPositions(rotation));
  for (size_t i = 0; i < tensors.size(); ++i) {
    ROPE_RETURN_IF_ERROR(CheckTensor(rotation, tensors[i], StrCat("tensors[", i, "]")));
  }
  const int64_t seq_len = SeqLenOf(rotation);
  std::vector<TokenRows> rows(tensors.size());
  std::vector<RotateJob> jobs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    RowUse use;
    if (rotation.rope->DependsOnSide()) use.side = tensors[i].side;
    if (rotation.rope->DependsOnDType()) use.dtype = tensors[i].dtype;
    const auto frequencies = rotation.rope->ForSeqLen(seq_len, Multiplier::kAttentionFactor, use);
    ROPE_RETURN_IF_ERROR(rotation.positions.size() == 1
                             ? tables_->AppendRows(*frequencies, rotation.positions[0], rows[i])
                             : AppendMropeRows(*tables_, *frequencies,
                                               *rotation.rope->config().mrope, rotation.positions,
                                               rows[i]));
    jobs.push_back(
        JobOf(rotation, tensors[i], rows[i], static_cast<int64_t>(frequencies->inv_freq.size())));
  }
  return backend_->Rotate(jobs);
}

}  // namespace rope::kernels
