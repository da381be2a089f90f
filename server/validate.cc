#include "server/validate.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/check.h"
#include "kernels/checked_math.h"
#include "kernels/status_macros.h"
#include "server/array_reader.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/positions.h"

namespace rope::server {
namespace {

absl::Status CheckRole(v1::Role role, const std::string& path) {
  if (role == v1::ROLE_Q || role == v1::ROLE_K) return absl::OkStatus();
  return InvalidField(
      path + ".role",
      role == v1::ROLE_UNSPECIFIED ? std::string("nothing") : absl::StrCat(static_cast<int>(role)),
      "ROLE_Q or ROLE_K");
}

absl::StatusOr<TensorPlan> ReadTensor(const v1::Tensor& tensor, const proto::SplitMessage& split,
                                      const std::string& path) {
  ROPE_RETURN_IF_ERROR(CheckRole(tensor.role(), path));
  const std::string array_path = path + ".array";
  TensorPlan plan;
  ROPE_ASSIGN_OR_RETURN(plan.dtype, ReadTensorDType(tensor.array(), array_path));
  ROPE_ASSIGN_OR_RETURN(plan.layout, ParseLayout(tensor.layout(), tensor.array().shape(),
                                                 kernels::ElementBytes(plan.dtype), path));
  const int64_t count = plan.layout.tokens() * plan.layout.heads * plan.layout.head_dim;
  plan.bytes = count * kernels::ElementBytes(plan.dtype);
  ROPE_ASSIGN_OR_RETURN(plan.input, ReadTensorBytes(tensor.array(), plan.dtype, count, split,
                                                    array_path, plan.typed));
  return plan;
}

// Tokens cost memory beside their bytes, and an empty tensor may claim any number of them.
absl::Status CheckTokens(const Layout& layout, const std::string& path) {
  int64_t tokens = 1;
  for (const TokenAxis& axis : layout.token_axes) tokens *= std::max<int64_t>(axis.length, 1);
  if (tokens <= limits::kTokensMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(path, ".array.shape: got ", tokens,
                                                   " tokens, want at most ", limits::kTokensMax));
}

absl::Status ReadTensors(const v1::RotateRequest& message, const proto::SplitMessage& split,
                         Plan& plan) {
  const int64_t count = message.tensors_size();
  if (count == 0 || count > limits::kTensorsMax) {
    return InvalidField("tensors", count == 0 ? "nothing" : absl::StrCat(count),
                        absl::StrCat("1 to ", limits::kTensorsMax, " tensors"));
  }
  for (int i = 0; i < message.tensors_size(); ++i) {
    const std::string path = absl::StrCat("tensors[", i, "]");
    ROPE_ASSIGN_OR_RETURN(TensorPlan tensor, ReadTensor(message.tensors(i), split, path));
    ROPE_RETURN_IF_ERROR(CheckTokens(tensor.layout, path));
    const Layout& first = i == 0 ? tensor.layout : plan.tensors.front().layout;
    if (tensor.layout.token_axes != first.token_axes) {
      return InvalidField(path + ".layout", message.tensors(i).layout(),
                          "the axes B, S, T and L of tensors[0], in its order and lengths");
    }
    if (tensor.layout.head_dim != first.head_dim) {
      return InvalidField(path + ".array.shape", absl::StrCat("D ", tensor.layout.head_dim),
                          absl::StrCat(first.head_dim, ", as tensors[0]"));
    }
    plan.tensors.push_back(std::move(tensor));
  }
  plan.tokens = plan.tensors.front().layout.tokens();
  for (const TensorPlan& tensor : plan.tensors) {
    // Fits by itself, but tensors without tokens may claim heads of any size.
    const auto sum =
        kernels::CheckedAdd(plan.bytes_per_token, tensor.layout.heads * tensor.layout.head_dim *
                                                      kernels::ElementBytes(tensor.dtype));
    if (!sum.has_value()) return InvalidField("tensors", "heads past 63 bits", "smaller ones");
    plan.bytes_per_token = *sum;
  }
  return absl::OkStatus();
}

absl::StatusOr<kernels::Multiplier> ReadOperation(const v1::RotateRequest& message, Plan& plan) {
  switch (message.operation()) {
    case v1::OPERATION_UNSPECIFIED:
    case v1::OPERATION_ROTATE:
      break;
    case v1::OPERATION_INVERSE:
    case v1::OPERATION_BACKWARD:
      plan.conjugate = true;
      break;
    case v1::OPERATION_REPOSITION:
      return absl::UnimplementedError(
          "operation: got OPERATION_REPOSITION, want another: not built yet");
    default:
      return InvalidField("operation", static_cast<int>(message.operation()),
                          "OPERATION_ROTATE, OPERATION_INVERSE or OPERATION_BACKWARD");
  }
  plan.attention_factor_applied = !message.return_attention_factor();
  if (!plan.attention_factor_applied) return kernels::Multiplier::kOne;
  return message.operation() == v1::OPERATION_INVERSE ? kernels::Multiplier::kInverseAttentionFactor
                                                      : kernels::Multiplier::kAttentionFactor;
}

absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> ResolveFor(const RopeEntry& entry,
                                                                        int64_t head_dim) {
  ROPE_ASSIGN_OR_RETURN(auto resolved, entry.Resolve(head_dim));
  if (resolved->head_dim() != head_dim) {
    return InvalidField("tensors[0].array.shape", absl::StrCat("D ", head_dim),
                        absl::StrCat("the config's head_dim ", resolved->head_dim()));
  }
  return resolved;
}

absl::StatusOr<kernels::PairGeometry> GeometryOf(const RopeEntry& entry,
                                                 const kernels::ResolvedRope& resolved) {
  if (!entry.pairing().has_value()) {
    return InvalidField("rope.pairing", "nothing",
                        "PAIRING_HALF or PAIRING_INTERLEAVED: this config does not say");
  }
  kernels::PairGeometry geometry;
  geometry.pairing = *entry.pairing();
  geometry.partner = resolved.rotary_dim() / 2;
  return geometry;
}

// Cuts the tokens into runs of one length each. Sequences without tokens, and tokens without
// bytes, need no frequencies.
void MakeRuns(const kernels::ResolvedRope& resolved, const TokenPositions& positions,
              kernels::Multiplier multiplier, Plan& plan) {
  if (plan.bytes() == 0) return;
  absl::flat_hash_map<int64_t, std::shared_ptr<const kernels::Frequencies>> by_length;
  int64_t sequence = -1;  // of the token before
  for (int64_t token = 0; token < plan.tokens; ++token) {
    const int64_t next = positions.sequence[static_cast<size_t>(token)];
    if (next != sequence) {
      sequence = next;
      const int64_t length =
          resolved.DependsOnSeqLen() ? positions.seq_len[static_cast<size_t>(sequence)] : 1;
      auto& frequencies = by_length[length];
      if (frequencies == nullptr) frequencies = resolved.ForSeqLen(length, multiplier);
      const bool same = !plan.runs.empty() && plan.runs.back().frequencies == frequencies;
      if (!same) plan.runs.push_back({token, token, frequencies});
    }
    plan.runs.back().end = token + 1;
  }
  const size_t columns = plan.runs.front().frequencies->inv_freq.size();
  for (const TokenRun& run : plan.runs) ROPE_CHECK(run.frequencies->inv_freq.size() == columns);
  plan.geometry.pairs = static_cast<int64_t>(columns);
}

void WarnPastLength(const kernels::RopeConfig& config, const TokenPositions& positions,
                    std::vector<std::string>& warnings) {
  if (!config.max_position_embeddings.has_value()) return;
  int64_t largest = -1;
  for (const std::vector<int64_t>& values : positions.values) {
    for (const int64_t position : values) largest = std::max(largest, position);
  }
  if (largest < *config.max_position_embeddings) return;
  warnings.push_back(absl::StrCat("positions: up to ", largest, ", past the model's ",
                                  *config.max_position_embeddings));
}

// Tables hold float32, and 1/m has to be one.
absl::Status CheckInverse(kernels::Multiplier multiplier, double attention_factor) {
  if (multiplier != kernels::Multiplier::kInverseAttentionFactor) return absl::OkStatus();
  if (1 / attention_factor <= std::numeric_limits<float>::max()) return absl::OkStatus();
  return InvalidField("operation",
                      absl::StrCat("OPERATION_INVERSE with attention factor ", attention_factor),
                      "an attention factor that can be divided by");
}

absl::Status PlanRotation(const RopeEntry& entry, kernels::Multiplier multiplier,
                          TokenPositions positions, Plan& plan) {
  const Layout& layout = plan.tensors.front().layout;
  ROPE_ASSIGN_OR_RETURN(const auto resolved, ResolveFor(entry, layout.head_dim));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, GeometryOf(entry, *resolved));
  plan.attention_factor = resolved->attention_factor();
  ROPE_RETURN_IF_ERROR(CheckInverse(multiplier, plan.attention_factor));
  MakeRuns(*resolved, positions, multiplier, plan);
  WarnPastLength(resolved->config(), positions, plan.warnings);
  if (positions.axes == 3) plan.mrope = resolved->config().mrope;
  plan.positions = std::move(positions.values);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                              ModelRegistry& registry) {
  if (static_cast<int64_t>(message.request_id().size()) > limits::kRequestIdBytesMax) {
    return InvalidField("request_id", absl::StrCat(message.request_id().size(), " bytes"),
                        absl::StrCat("at most ", limits::kRequestIdBytesMax));
  }
  Plan plan;
  ROPE_ASSIGN_OR_RETURN(const auto entry, registry.Find(message.rope()));
  ROPE_RETURN_IF_ERROR(ReadTensors(message, split, plan));
  plan.warnings = entry->warnings();
  plan.rotates = entry->layer().rotates;
  // A malformed request is refused by layers that do not rotate, too.
  ROPE_ASSIGN_OR_RETURN(const kernels::Multiplier multiplier, ReadOperation(message, plan));
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(message.positions(), split, plan.tensors.front().layout,
                                      entry->layer().config.mrope.has_value()));
  if (!plan.rotates) return plan;
  ROPE_RETURN_IF_ERROR(PlanRotation(*entry, multiplier, std::move(positions), plan));
  return plan;
}

}  // namespace rope::server
