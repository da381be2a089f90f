#include "server/request/validate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "kernels/config/rope_config.h"
#include "kernels/status_macros.h"
#include "kernels/tables/table_page.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/models/model_registry.h"
#include "server/request/array_reader.h"
#include "server/request/positions.h"
#include "server/request/tensor_reader.h"

namespace rope::server {
namespace {

// Requests whose caller supplies rows of cos and sin instead of an embedding: a rotation by them,
// or a move from some of them to others. The plan holds a copy of the rows that its tokens take. Of
// a move it holds the region of the rows, if they can be used where they are.

// The caller's rows, [..., columns]. Their elements have not been read yet.
struct RowArrays {
  std::vector<int64_t> shape;  // without the last axis
  int64_t rows = 1;
  int64_t columns = 0;
  int64_t sin_at = 0;                  // of a row of `first` with cos beside sin
  bool is_angles = false;              // `first` has angles
  std::optional<FloatElements> first;  // set: cos, cos beside sin, or angles
  std::optional<FloatElements> sin;    // set: `first` has cos alone

  // Reads a row. INVALID_ARGUMENT: an element is not finite.
  absl::Status Read(int64_t row, absl::Span<double> to_cos, absl::Span<double> to_sin) const {
    if (!is_angles) {
      const int64_t begin = row * (columns + sin_at);
      ROPE_RETURN_IF_ERROR(first->Read(begin, to_cos));
      return (sin.has_value() ? sin : first)->Read(begin + sin_at, to_sin);
    }
    ROPE_RETURN_IF_ERROR(first->Read(row * columns, to_sin));
    std::ranges::transform(to_sin, to_cos.begin(), [](double angle) { return std::cos(angle); });
    std::ranges::transform(to_sin, to_sin.begin(), [](double angle) { return std::sin(angle); });
    return absl::OkStatus();
  }

  // Appends rows as floats: the cosines of each, then its sines. INVALID_ARGUMENT: as Read.
  absl::Status Append(absl::Span<const int64_t> numbers, std::vector<float>& values) const {
    std::vector<double> both(static_cast<size_t>(2 * columns));  // of one row
    const auto half = both.size() / 2;
    values.reserve(values.size() + numbers.size() * both.size());
    for (const int64_t row : numbers) {
      const absl::Span<double> row_values = absl::MakeSpan(both);
      ROPE_RETURN_IF_ERROR(Read(row, row_values.first(half), row_values.last(half)));
      for (const double value : both) values.push_back(static_cast<float>(value));
    }
    return absl::OkStatus();
  }

  // The rows where they are, if they can be used there. REQUIRES: no angles.
  std::optional<kernels::RowTable> table() const {
    auto table = first->rows();
    const auto sines = sin.has_value() ? sin->rows() : table;
    if (!table.has_value() || !sines.has_value() || table->dtype != sines->dtype ||
        table->row_bytes != sines->row_bytes) {
      return std::nullopt;
    }
    table->sin = sines->cos + sin_at * kernels::ElementBytes(table->dtype);
    return table;
  }
};

absl::Status CheckAlternatives(const v1::Rows& rows, v1::Operation operation) {
  const bool pair = rows.has_cos() || rows.has_sin();
  if (int{pair} + int{rows.has_angles()} + int{rows.has_cos_sin()} > 1) {
    return InvalidField("rows", "two of angles, cos_sin, and cos and sin", "one of them");
  }
  if (rows.has_cos() != rows.has_sin()) {
    return InvalidField(rows.has_cos() ? "rows.sin" : "rows.cos", "nothing",
                        "cos and sin together");
  }
  if (rows.has_angles() && operation == v1::OPERATION_REPOSITION) {
    return InvalidField("rows.angles", "them with OPERATION_REPOSITION", "cos_sin, or cos and sin");
  }
  if (pair || rows.has_angles() || rows.has_cos_sin()) return absl::OkStatus();
  return InvalidField("rows", "nothing", "cos_sin, cos and sin, or angles");
}

// A call may have other arrays than the prepared request. Their shape is checked for heads of
// `head_dim` channels before they are used: an empty array may state any number of rows.
absl::StatusOr<RowArrays> FindRows(const v1::Rows& message, v1::Operation operation,
                                   ArraySource& source, int64_t head_dim) {
  ROPE_RETURN_IF_ERROR(CheckAlternatives(message, operation));
  RowArrays rows;
  rows.is_angles = message.has_angles();
  const bool beside = message.has_cos_sin();
  const absl::string_view field = rows.is_angles ? "rows.angles"
                                  : beside       ? "rows.cos_sin"
                                                 : "rows.cos";
  const v1::Array& first = rows.is_angles ? message.angles()
                           : beside       ? message.cos_sin()
                                          : message.cos();
  ROPE_ASSIGN_OR_RETURN(rows.first, FloatElements::Of(first, source, field,
                                                      /*may_have_strides=*/!rows.is_angles));
  const std::vector<int64_t>& shape = rows.first->shape();
  if (message.has_sin()) {
    ROPE_ASSIGN_OR_RETURN(rows.sin, FloatElements::Of(message.sin(), source, "rows.sin",
                                                      /*may_have_strides=*/true));
    if (rows.sin->shape() != shape) {
      return InvalidField("rows.sin.shape", Brackets(rows.sin->shape()),
                          absl::StrCat(Brackets(shape), ", as rows.cos"));
    }
  }
  const auto refuse = [&](absl::string_view want) {
    return InvalidField(absl::StrCat(field, ".shape"), Brackets(shape), want);
  };
  if (shape.size() < 2) return refuse("[rows, pairs]");
  if (beside && shape.back() % 2 != 0) return refuse("[rows, 2 * pairs]");
  rows.columns = beside ? shape.back() / 2 : shape.back();
  if (rows.columns < 1) return refuse("1 pair at least");
  const int64_t pairs_max = std::min(head_dim, kernels::kHeadDimMax) / 2;
  if (rows.columns > pairs_max) {
    return InvalidField("rows", absl::StrCat(rows.columns, " pairs"),
                        absl::StrCat("at most ", pairs_max, " for D ", head_dim));
  }
  rows.sin_at = beside ? rows.columns : 0;
  rows.shape.assign(shape.begin(), shape.end() - 1);
  rows.rows = rows.first->count() / shape.back();  // >= 1: at most one row per element
  return rows;
}

// Reads only the rows that the plan's tokens use, into [rows][columns cosines, columns sines]. If
// there are no more rows than tokens, reads each row once. Otherwise reads one row per token, and
// token t uses row t.
absl::Status ReadRows(const RowArrays& rows, Plan& plan) {
  std::vector<int64_t>& by_token = plan.positions[0];
  std::vector<float> values;
  std::vector<int64_t> all;
  const bool reads_all = rows.rows <= plan.tokens;
  if (reads_all) {
    all.resize(static_cast<size_t>(rows.rows));
    std::iota(all.begin(), all.end(), 0);
  }
  ROPE_RETURN_IF_ERROR(rows.Append(reads_all ? all : by_token, values));
  if (!reads_all) std::iota(by_token.begin(), by_token.end(), 0);
  plan.rows = std::make_shared<const kernels::TablePage>(reads_all ? rows.rows : plan.tokens,
                                                         rows.columns, std::move(values));
  return absl::OkStatus();
}

// The rows replace the embedding, so that `spec` may state only the pairing.
absl::Status ReadPairing(const v1::RopeSpec& spec, kernels::PairGeometry& geometry) {
  v1::RopeSpec rest = spec;
  rest.clear_pairing();
  if (rest.ByteSizeLong() > 0) {
    return InvalidField("rope", "an embedding together with rows", "only a pairing");
  }
  ROPE_ASSIGN_OR_RETURN(const auto pairing, proto::ReadPairing(spec.pairing()));
  if (!pairing.has_value()) {
    return InvalidField("rope.pairing", "nothing", "PAIRING_HALF or PAIRING_INTERLEAVED");
  }
  geometry.pairing = *pairing;
  return absl::OkStatus();
}

absl::Status CheckInTable(absl::Span<const int64_t> positions, const RowArrays& rows,
                          absl::string_view field) {
  for (const int64_t position : positions) {
    if (position < rows.rows) continue;
    return MakeError(Reason::kPositionOutOfRange, field, position,
                     absl::StrCat("less than the ", rows.rows, " rows"));
  }
  return absl::OkStatus();
}

// With positions, each token uses the row at its position.
absl::StatusOr<std::vector<int64_t>> ReadRowPositions(const v1::Positions& message,
                                                      absl::string_view field, ArraySource& source,
                                                      const RowArrays& rows, const Plan& plan) {
  if (rows.shape.size() != 1) {
    return InvalidField("rows.shape", Brackets(rows.shape), "[rows, pairs] with positions");
  }
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(message, source, plan.tensors.front().layout,
                                      /*multimodal=*/false, field));
  ROPE_RETURN_IF_ERROR(CheckInTable(positions.values[0], rows, field));
  return std::move(positions.values[0]);
}

// The rows of each token before and after, by number in the table. Returns how many of the first
// tokens have all of them: 1 if all move alike.
absl::StatusOr<size_t> ReadMovedRows(const v1::RotateRequest& values, ArraySource& source,
                                     const RowArrays& rows, Plan& plan) {
  const auto tokens = static_cast<size_t>(plan.tokens);
  if (!values.reposition().has_by()) {
    ROPE_ASSIGN_OR_RETURN(
        plan.from_positions[0],
        ReadRowPositions(values.reposition().from(), "reposition.from", source, rows, plan));
    ROPE_ASSIGN_OR_RETURN(plan.positions[0],
                          ReadRowPositions(values.positions(), "positions", source, rows, plan));
    return tokens;
  }
  if (rows.shape.size() != 1) {
    return InvalidField("rows.shape", Brackets(rows.shape), "[rows, pairs] with reposition.by");
  }
  ROPE_ASSIGN_OR_RETURN(TokenMoves moves,
                        ReadMoves(values.reposition().by(), source, plan.tensors.front()));
  const size_t distinct = moves.is_uniform ? std::min<size_t>(tokens, 1) : tokens;
  for (const std::vector<int64_t>* const numbers : {&moves.from, &moves.to}) {
    ROPE_RETURN_IF_ERROR(
        CheckInTable(absl::MakeConstSpan(*numbers).first(distinct), rows, "reposition.by"));
  }
  plan.from_positions[0] = std::move(moves.from);
  plan.positions[0] = std::move(moves.to);
  return distinct;
}

// Copies the two rows of each token, all old ones first, and numbers them anew.
absl::Status CopyMovedRows(const RowArrays& rows, Plan& plan) {
  std::vector<float> values;
  for (auto* const positions : {&plan.from_positions[0], &plan.positions[0]}) {
    const auto first = static_cast<int64_t>(values.size()) / (2 * rows.columns);
    ROPE_RETURN_IF_ERROR(rows.Append(*positions, values));
    std::iota(positions->begin(), positions->end(), first);
  }
  plan.table->copied = std::make_shared<const std::vector<float>>(std::move(values));
  const auto* const data = reinterpret_cast<const char*>(plan.table->copied->data());
  const auto half = rows.columns * static_cast<int64_t>(sizeof(float));
  plan.table->rows = {data, data + half, kernels::DType::kFloat32, 2 * half};
  return absl::OkStatus();
}

// Checks the rows of the first `tokens` tokens before a token moves. Rows that rise by one are
// checked together. A row in the last such run is not checked again.
absl::Status CheckTable(const RowArrays& rows, const Plan& plan, size_t tokens) {
  const kernels::RowTable& table = plan.table->rows;
  int64_t first = 0;  // rows [first, end) have been checked
  int64_t end = 0;
  for (const auto* const numbers : {&plan.from_positions[0], &plan.positions[0]}) {
    for (size_t token = 0; token < tokens;) {
      const int64_t row = (*numbers)[token];
      if (row >= first && row < end) {
        ++token;
        continue;
      }
      size_t run_end = token + 1;
      while (run_end < tokens && (*numbers)[run_end] == (*numbers)[run_end - 1] + 1) ++run_end;
      const auto count = static_cast<int64_t>(run_end - token);
      if (!CanBeUndone(table, row, count, rows.columns)) {
        while (token + 1 < run_end && CanBeUndone(table, (*numbers)[token], 1, rows.columns)) {
          ++token;
        }
        return InvalidField("rows",
                            absl::StrCat("a row (of token ", token, ") that no move can undo"),
                            "cos and sin below 2^63, and one of each pair at least 2^-63");
      }
      if (row != end) first = row;
      end = row + count;
      token = run_end;
    }
  }
  return absl::OkStatus();
}

absl::Status PlanTableMove(const v1::RotateRequest& values, ArraySource& source,
                           const RowArrays& rows, Plan& plan) {
  ROPE_ASSIGN_OR_RETURN(const size_t distinct, ReadMovedRows(values, source, rows, plan));
  plan.table = std::make_shared<MoveTable>();
  if (const std::optional<kernels::RowTable> table = rows.table(); table.has_value()) {
    plan.table->rows = *table;
    plan.table->cos = rows.first->part();
    if (rows.sin.has_value()) plan.table->sin = rows.sin->part();
  } else {
    ROPE_RETURN_IF_ERROR(CopyMovedRows(rows, plan));
  }
  return CheckTable(rows, plan, distinct);
}

// Without positions, the rows have the shape of the tokens: [S], [B, S] or [T].
absl::Status CountRows(const RowArrays& rows, Plan& plan) {
  const Layout& layout = plan.tensors.front().layout;
  const std::vector<int64_t> by_sequence = {layout.Length('B'), layout.Length('S')};
  const std::vector<int64_t> flat = {layout.Has('T') ? layout.Length('T') : layout.Length('S')};
  const bool by_batch = !layout.Has('T') && rows.shape == by_sequence;
  if (!by_batch && rows.shape != flat) {
    return InvalidField(
        "rows.shape", Brackets(rows.shape),
        absl::StrCat(Brackets(flat),
                     layout.Has('T') ? "" : absl::StrCat(" or ", Brackets(by_sequence)),
                     " rows, or positions as well"));
  }
  plan.positions[0].resize(static_cast<size_t>(plan.tokens));
  ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
    plan.positions[0][static_cast<size_t>(token)] =
        i.t + i.s + (by_batch ? i.b * layout.Length('S') : 0);
  });
  return absl::OkStatus();
}

// What stays the same in each call: the operation, the pairing, and which arrays there are.
absl::Status PrepareExplicitRows(const v1::RotateRequest& fixed, Plan& plan) {
  const v1::Operation operation = fixed.operation();
  plan.conjugate = operation == v1::OPERATION_BACKWARD;
  const bool rotates = operation == v1::OPERATION_UNSPECIFIED || operation == v1::OPERATION_ROTATE;
  if (!rotates && !plan.conjugate && operation != v1::OPERATION_REPOSITION) {
    return InvalidField("operation", v1::Operation_Name(operation),
                        "OPERATION_ROTATE, OPERATION_BACKWARD or OPERATION_REPOSITION with rows");
  }
  if (fixed.skip_attention_factor()) {
    return InvalidField("skip_attention_factor", "true with rows",
                        "false: rows contain the factor they were made with");
  }
  if (fixed.reposition().has_from_rope()) {
    return InvalidField("reposition.from_rope", "it with rows", "it unset: rows are one table");
  }
  ROPE_RETURN_IF_ERROR(CheckAlternatives(fixed.rows(), operation));
  return ReadPairing(fixed.rope(), plan.geometry);
}

// Fills the rest of a plan that PrepareExplicitRows has begun, from values.rows.
absl::Status PlanExplicitRows(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                              ArraySource& source, Plan& plan) {
  ROPE_ASSIGN_OR_RETURN(const RowArrays rows,
                        FindRows(values.rows(), fixed.operation(), source, ChannelsOf(plan)));
  ROPE_RETURN_IF_ERROR(CheckOwnWindows(plan, 2 * rows.columns));
  plan.geometry.pairs = rows.columns;
  plan.geometry.partner = rows.columns;
  if (fixed.operation() == v1::OPERATION_REPOSITION) {
    return PlanTableMove(values, source, rows, plan);
  }
  if (!values.has_positions() && values.rows().has_cos_sin()) {
    return InvalidField("positions", "nothing with rows.cos_sin", "the row of each token");
  }
  if (!values.has_positions()) {
    ROPE_RETURN_IF_ERROR(CountRows(rows, plan));
  } else {
    ROPE_ASSIGN_OR_RETURN(plan.positions[0],
                          ReadRowPositions(values.positions(), "positions", source, rows, plan));
  }
  return ReadRows(rows, plan);
}

absl::Status CheckOperation(const v1::RotateRequest& message) {
  if (v1::Operation_IsValid(message.operation())) return absl::OkStatus();
  return InvalidField("operation", static_cast<int>(message.operation()),
                      "OPERATION_ROTATE, OPERATION_INVERSE, OPERATION_BACKWARD, "
                      "OPERATION_REPOSITION or OPERATION_ADD_SINUSOIDAL");
}

absl::Status CheckReposition(const v1::RotateRequest& message, v1::Operation operation) {
  if ((operation == v1::OPERATION_REPOSITION) == message.has_reposition()) return absl::OkStatus();
  return message.has_reposition()
             ? InvalidField("reposition", "it without OPERATION_REPOSITION", "it unset")
             : InvalidField("reposition", "nothing", "the current positions of the tensors");
}

// How far tokens move is said once: by a difference, or by the positions before and after.
absl::Status CheckBy(const v1::RotateRequest& fixed, const v1::RotateRequest& values) {
  if (!values.reposition().has_by()) return absl::OkStatus();
  for (const auto& [is_set, field] : {std::pair(values.has_positions(), "positions"),
                                      std::pair(values.reposition().has_from(), "from"),
                                      std::pair(fixed.reposition().has_from_rope(), "from_rope")}) {
    if (is_set) {
      return InvalidField("reposition.by", absl::StrCat("it together with ", field), "it alone");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIdAndLabels(const v1::RotateRequest& message) {
  const auto id_bytes = static_cast<int64_t>(message.request_id().size());
  if (id_bytes > limits::kRequestIdBytesMax) {
    return InvalidField("request_id", absl::StrCat(id_bytes, " bytes"),
                        absl::StrCat("at most ", limits::kRequestIdBytesMax));
  }
  if (static_cast<int64_t>(message.labels_size()) > limits::kLabelsMax) {
    return InvalidField("labels", absl::StrCat(message.labels_size(), " labels"),
                        absl::StrCat("at most ", limits::kLabelsMax));
  }
  for (const auto& [key, value] : message.labels()) {
    const auto key_bytes = static_cast<int64_t>(key.size());
    if (key_bytes < 1 || key_bytes > limits::kLabelKeyBytesMax) {
      return InvalidField("labels", absl::StrCat("a key of ", key_bytes, " bytes"),
                          absl::StrCat("1 to ", limits::kLabelKeyBytesMax));
    }
    if (static_cast<int64_t>(value.size()) > limits::kLabelValueBytesMax) {
      return InvalidField(absl::StrCat("labels[", key, "]"), absl::StrCat(value.size(), " bytes"),
                          absl::StrCat("at most ", limits::kLabelValueBytesMax));
    }
  }
  return absl::OkStatus();
}

// SHD and BSHD are what libraries assume where nobody says a layout. Of a tensor [B, H, S, D] the
// model's heads are then on S. A shard of the heads with as many tokens is warned of as well.
void WarnOfHeads(const v1::RotateRequest& message, const RopeEntry& entry, Plan& plan) {
  for (int i = 0; i < message.tensors_size(); ++i) {
    const Layout& layout = plan.tensors[static_cast<size_t>(i)].layout;
    const v1::Role role = message.tensors(i).role();
    const int64_t heads = entry.heads(role == v1::ROLE_K).value_or(0);
    if (layout.letters != "SHD" && layout.letters != "BSHD") continue;
    if (heads <= 1 || layout.heads == heads || layout.Length('S') != heads) continue;
    if (role == v1::ROLE_UNSPECIFIED) continue;
    plan.warnings.push_back(absl::StrCat("tensors[", i, "].layout: ", layout.letters, " has H ",
                                         layout.heads, " and S ", heads, ", and the model has ",
                                         heads, " heads; is it ",
                                         layout.letters == "SHD" ? "HSD?" : "BHSD?"));
  }
}

// Whether it takes long to find the frequencies of all tokens, or to make those of one length.
bool MakesMany(const Ropes& ropes, const Plan& plan) {
  const auto depends = [](const ResolvedPtr& rope) {
    return rope != nullptr && rope->DependsOnSeqLen();
  };
  const auto& layers = ropes.layers.by_layer();
  if (!ropes.layers.differ() && absl::c_none_of(layers, depends) && !depends(ropes.from_resolved)) {
    return false;
  }
  return plan.tokens > limits::kLengthTokensHereMax || ropes.resolved->rotary_dim() > kWidthHereMax;
}

// A reposition by a difference.
absl::Status PlanMove(const v1::RotateRequest& values, const Ropes& ropes, ArraySource& source,
                      Plan& plan) {
  for (const ResolvedPtr& layer : ropes.layers.by_layer()) {
    if (!layer->DependsOnSeqLen()) continue;
    return InvalidField("reposition.by", "it with frequencies that follow the length",
                        "positions and reposition.from");
  }
  ROPE_ASSIGN_OR_RETURN(TokenMoves moves,
                        ReadMoves(values.reposition().by(), source, plan.tensors.front()));
  // No frequency follows the length, so that all tokens may count as one sequence.
  TokenPositions from;
  TokenPositions to;
  for (const auto& [positions, numbers] :
       {std::pair(&from, &moves.from), std::pair(&to, &moves.to)}) {
    positions->sequence.resize(numbers->size());
    positions->seq_len = {1};
    positions->values[0] = std::move(*numbers);
  }
  return PlanReposition(ropes, std::move(from), std::move(to), plan);
}

absl::Status CheckDeviceRequest(const v1::RotateRequest& fixed, const Plan& plan) {
  const auto is_one = [](float weight) { return weight == 1; };
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& tensor = plan.tensors[i];
    const std::string path = absl::StrCat("tensors[", i, "]");
    if (!tensor.source.IsOnDevice() || !tensor.place.IsOnDevice()) {
      return InvalidField(path, "host memory in a call for a device",
                          "memory of the device, for each tensor and each output");
    }
    if (tensor.IsGathered()) {
      return RefuseOnDevice(path + ".array.strides",
                            absl::StrCat(tensor.strides->channel, " for D"), "1");
    }
    if (tensor.norm_weight != nullptr && !std::ranges::all_of(*tensor.norm_weight, is_one)) {
      return RefuseOnDevice(path + ".norm.weight", "weights", "weights of 1");
    }
    if (tensor.token_scaled) return RefuseOnDevice(path + ".llama4_scaling_beta", "it", "it unset");
  }
  if (fixed.has_rows()) return RefuseOnDevice("rows", "rows", "an embedding");
  if (plan.channel_order.value_or(plan.geometry.pairing) != plan.geometry.pairing) {
    return RefuseOnDevice("output.channel_order", "another order", "that of the pairing");
  }
  if (plan.arithmetic != kernels::PairArithmetic::kAdd) return absl::OkStatus();
  return RefuseOnDevice("operation", "OPERATION_ADD_SINUSOIDAL", "another operation");
}

// The length that all sequences have. Unset: the lengths differ or are not known.
std::optional<int64_t> LengthOfAll(const v1::Positions& message, const DevicePositions& positions,
                                   const Layout& layout) {
  if (message.seq_lens_size() == 1) return message.seq_lens(0);
  if (message.seq_lens_size() > 1 || positions.starts.empty()) return std::nullopt;
  const int64_t start = positions.starts.front();
  const auto same = [start](int64_t other) { return other == start; };
  if (!std::ranges::all_of(positions.starts, same)) return std::nullopt;
  return start + std::max<int64_t>(layout.Length('S') * layout.Length('T'), 1);
}

absl::Status PlanUniformMove(const v1::RotateRequest& values, const Ropes& ropes,
                             ArraySource& source, Plan& plan) {
  constexpr absl::string_view kField = "reposition.by";
  if (!values.reposition().has_by()) {
    return RefuseOnDevice("reposition", "positions before and after",
                          "by, one number for all tokens");
  }
  if (ropes.resolved->DependsOnSeqLen()) {
    return InvalidField(kField, "it with frequencies that follow the length",
                        "an embedding without them");
  }
  const auto check = [&](absl::Span<const int64_t> shape) {
    if (shape.empty() || (shape.size() == 1 && shape[0] == 1)) return absl::OkStatus();
    return RefuseOnDevice(kField, absl::StrCat("shape ", Brackets(shape)),
                          "one number for all tokens");
  };
  ROPE_ASSIGN_OR_RETURN(const IntegerArray by,
                        ReadIntegers(values.reposition().by(), source, kField, check));
  const int64_t move = by.values.front();
  ROPE_RETURN_IF_ERROR(CheckMove(move));
  plan.device->move = move;
  return PlanDeviceMove(ropes, move, plan);
}

}  // namespace

absl::Status PrepareFixed(const v1::RotateRequest& fixed, ArraySource& source,
                          ModelRegistry& registry, Ropes& ropes, Plan& plan) {
  // Checked first, so that a malformed operation is refused with explicit rows and with layers that
  // do not rotate as well.
  ROPE_RETURN_IF_ERROR(CheckOperation(fixed));
  if (fixed.has_rows()) {
    ROPE_RETURN_IF_ERROR(PrepareTensors(fixed, source, plan));
    ROPE_RETURN_IF_ERROR(ReadTokenScaling(fixed, std::nullopt, plan));
    return PrepareExplicitRows(fixed, plan);
  }
  if (fixed.rope().has_first_layer()) {
    if (!plan.may_take_long) return NeedsSideThread();
    ROPE_RETURN_IF_ERROR(PrepareTensors(fixed, source, plan));
    ROPE_ASSIGN_OR_RETURN(ropes.entries, FindLayers(fixed, plan.tensors.front().layout, registry));
    ropes.entry = ropes.entries.front();
  } else {
    ROPE_ASSIGN_OR_RETURN(ropes.entry, registry.Find(fixed.rope(), plan.may_take_long));
    ROPE_RETURN_IF_ERROR(PrepareTensors(fixed, source, plan));
  }
  plan.warnings = ropes.entry->warnings();
  plan.rotates = ropes.entry->layer().rotates;
  plan.attention_factor_applied = !fixed.skip_attention_factor();
  ROPE_RETURN_IF_ERROR(
      ReadTokenScaling(fixed, ropes.entry->layer().config.original_max_position_embeddings, plan));
  for (const auto& layer : ropes.entries) {
    for (const std::string& warning : layer->warnings()) {
      if (!absl::c_linear_search(plan.warnings, warning)) plan.warnings.push_back(warning);
    }
  }
  WarnOfHeads(fixed, *ropes.entry, plan);
  if (fixed.operation() != v1::OPERATION_REPOSITION) {
    return PrepareRotation(fixed.operation(), ropes, plan);
  }
  ropes.from_entry = ropes.entry;
  if (fixed.reposition().has_from_rope()) {
    ROPE_ASSIGN_OR_RETURN(ropes.from_entry, FindFromRope(fixed.reposition().from_rope(), registry,
                                                         plan.may_take_long));
  }
  return PrepareReposition(ropes, plan);
}

absl::Status PlanElements(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                          ArraySource& source, Plan& plan) {
  ROPE_RETURN_IF_ERROR(CheckIdAndLabels(values));
  ROPE_RETURN_IF_ERROR(CheckReposition(values, fixed.operation()));
  ROPE_RETURN_IF_ERROR(CheckBy(fixed, values));
  return ReadElements(values, source, plan);
}

absl::Status PlanPositions(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                           const Ropes& ropes, ArraySource& source, Plan& plan) {
  const v1::Operation operation = fixed.operation();
  if (!plan.may_take_long && MakesMany(ropes, plan)) return NeedsSideThread();
  if (fixed.has_rows()) return PlanExplicitRows(fixed, values, source, plan);
  if (values.reposition().has_by()) return PlanMove(values, ropes, source, plan);
  const Layout& layout = plan.tensors.front().layout;
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(values.positions(), source, layout,
                                      ropes.entry->layer().config.mrope.has_value(), "positions"));
  ROPE_RETURN_IF_ERROR(PlanTokenScales(positions.values[0], plan));
  if (operation != v1::OPERATION_REPOSITION) {
    return PlanRotation(operation, ropes, std::move(positions), plan);
  }
  ROPE_ASSIGN_OR_RETURN(
      TokenPositions from_positions,
      ReadPositions(values.reposition().from(), source, layout,
                    ropes.from_entry->layer().config.mrope.has_value(), "reposition.from"));
  return PlanReposition(ropes, std::move(from_positions), std::move(positions), plan);
}

absl::Status PlanDevice(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                        const Ropes& ropes, ArraySource& source, Plan& plan) {
  ROPE_RETURN_IF_ERROR(CheckDeviceRequest(fixed, plan));
  plan.device = std::make_shared<DevicePositions>();
  DevicePositions& device = *plan.device;
  if (!plan.rotates) return absl::OkStatus();
  if (fixed.operation() == v1::OPERATION_REPOSITION) {
    if (fixed.reposition().has_from_rope()) {
      return RefuseOnDevice("reposition.from_rope", "it", "one embedding");
    }
    return PlanUniformMove(values, ropes, source, plan);
  }
  const Layout& layout = plan.tensors.front().layout;
  ROPE_RETURN_IF_ERROR(ReadDevicePositions(values.positions(), source, layout, device));
  device.table_rows = ropes.resolved->config().max_position_embeddings.value_or(0);
  return PlanDeviceRotation(fixed.operation(), ropes,
                            LengthOfAll(values.positions(), device, layout), plan);
}

bool CopiesMovedRows(const v1::Rows& rows) {
  // Bytes of a message may lie in several pieces.
  const auto in_place = [](const v1::Array& array) {
    return array.has_region() && array.dtype() != v1::DTYPE_FP64;
  };
  if (rows.has_cos_sin()) return !in_place(rows.cos_sin());
  return !in_place(rows.cos()) || !in_place(rows.sin()) || rows.cos().dtype() != rows.sin().dtype();
}

absl::Status CheckOnHost(const Plan& plan) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& tensor = plan.tensors[i];
    if (!tensor.source.IsOnDevice() && !tensor.place.IsOnDevice()) continue;
    return InvalidField(absl::StrCat("tensors[", i, "]"), "memory of a device",
                        "host memory, or a call with a queue of the device");
  }
  return absl::OkStatus();
}

}  // namespace rope::server
