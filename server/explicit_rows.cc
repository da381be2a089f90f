#include "server/explicit_rows.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "kernels/table_page.h"
#include "server/array_reader.h"
#include "server/error.h"
#include "server/positions.h"
#include "server/rope_spec.h"

namespace rope::server {
namespace {

// Rows and how they lie: [..., columns].
struct RowArray {
  std::vector<int64_t> shape;  // without the last axis
  int64_t rows = 1;
  int64_t columns = 0;
  std::vector<float> values;  // [rows][columns cosines, columns sines]
};

absl::Status CheckAlternatives(const v1::Rows& rows) {
  const bool pair = rows.has_cos() || rows.has_sin();
  if (pair && rows.has_angles()) {
    return InvalidField("rows", "angles beside cos and sin", "one of the two ways");
  }
  if (rows.has_cos() != rows.has_sin()) {
    return InvalidField(rows.has_cos() ? "rows.sin" : "rows.cos", "nothing",
                        "cos and sin together");
  }
  if (pair || rows.has_angles()) return absl::OkStatus();
  return InvalidField("rows", "nothing", "cos and sin, or angles");
}

absl::StatusOr<FloatArray> ReadShaped(const v1::Array& array, const proto::SplitMessage& split,
                                      const std::string& field) {
  ROPE_ASSIGN_OR_RETURN(FloatArray read, ReadFloats(array, split, field));
  if (read.shape.size() >= 2) return read;
  return InvalidField(field + ".shape", Brackets(read.shape), "[rows, pairs]");
}

RowArray Shaped(const FloatArray& array) {
  RowArray result;
  result.columns = array.shape.back();
  result.shape.assign(array.shape.begin(), array.shape.end() - 1);
  for (const int64_t length : result.shape) result.rows *= length;
  result.values.resize(2 * array.values.size());
  return result;
}

// Calls `cos_sin(index)` for every element and stores what it gives.
template <typename CosSinOf>
void Fill(const CosSinOf& cos_sin, RowArray& rows) {
  const auto columns = static_cast<size_t>(rows.columns);
  for (size_t row = 0; row < static_cast<size_t>(rows.rows); ++row) {
    float* const out = rows.values.data() + row * 2 * columns;
    for (size_t j = 0; j < columns; ++j) {
      const auto [cos, sin] = cos_sin(row * columns + j);
      out[j] = static_cast<float>(cos);
      out[columns + j] = static_cast<float>(sin);
    }
  }
}

absl::StatusOr<RowArray> ReadRows(const v1::Rows& message, const proto::SplitMessage& split) {
  ROPE_RETURN_IF_ERROR(CheckAlternatives(message));
  if (message.has_angles()) {
    ROPE_ASSIGN_OR_RETURN(const FloatArray angles,
                          ReadShaped(message.angles(), split, "rows.angles"));
    RowArray rows = Shaped(angles);
    Fill(
        [&angles](size_t i) {
          return std::pair(std::cos(angles.values[i]), std::sin(angles.values[i]));
        },
        rows);
    return rows;
  }
  ROPE_ASSIGN_OR_RETURN(const FloatArray cos, ReadShaped(message.cos(), split, "rows.cos"));
  ROPE_ASSIGN_OR_RETURN(const FloatArray sin, ReadShaped(message.sin(), split, "rows.sin"));
  if (cos.shape != sin.shape) {
    return InvalidField("rows.sin.shape", Brackets(sin.shape),
                        absl::StrCat(Brackets(cos.shape), ", as rows.cos"));
  }
  RowArray rows = Shaped(cos);
  Fill([&](size_t i) { return std::pair(cos.values[i], sin.values[i]); }, rows);
  return rows;
}

// The embedding is in the rows: nothing but the pairing is left to say.
absl::StatusOr<kernels::PairGeometry> ReadGeometry(const v1::RopeSpec& spec, int64_t pairs,
                                                   int64_t head_dim) {
  v1::RopeSpec rest = spec;
  rest.clear_pairing();
  if (rest.ByteSizeLong() > 0) {
    return InvalidField("rope", "an embedding beside rows", "its pairing alone");
  }
  ROPE_ASSIGN_OR_RETURN(const auto pairing, ReadPairing(spec.pairing()));
  if (!pairing.has_value()) {
    return InvalidField("rope.pairing", "nothing", "PAIRING_HALF or PAIRING_INTERLEAVED");
  }
  if (pairs > head_dim / 2) {
    return InvalidField("rows", absl::StrCat(pairs, " pairs"),
                        absl::StrCat("at most ", head_dim / 2, " for D ", head_dim));
  }
  kernels::PairGeometry geometry;
  geometry.pairing = *pairing;
  geometry.pairs = pairs;
  geometry.partner = pairs;
  return geometry;
}

// With positions, each token takes the row of its position.
absl::Status TakePositions(const v1::RotateRequest& message, const proto::SplitMessage& split,
                           const RowArray& rows, Plan& plan) {
  if (rows.shape.size() != 1) {
    return InvalidField("rows.shape", Brackets(rows.shape), "[rows, pairs] beside positions");
  }
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(message.positions(), split, plan.tensors.front().layout,
                                      /*multimodal=*/false, "positions"));
  for (const int64_t position : positions.values[0]) {
    if (position < rows.rows) continue;
    return absl::OutOfRangeError(
        absl::StrCat("positions: got ", position, ", want less than the ", rows.rows, " rows"));
  }
  plan.positions[0] = std::move(positions.values[0]);
  return absl::OkStatus();
}

// Without positions, rows lie as the tokens do: [S], [B, S] or [T].
absl::Status CountRows(const RowArray& rows, Plan& plan) {
  const Layout& layout = plan.tensors.front().layout;
  const std::vector<int64_t> by_sequence = {layout.Length('B'), layout.Length('S')};
  const std::vector<int64_t> flat = {layout.Has('T') ? layout.Length('T') : layout.Length('S')};
  const bool by_batch = !layout.Has('T') && rows.shape == by_sequence;
  if (!by_batch && rows.shape != flat) {
    return InvalidField(
        "rows.shape", Brackets(rows.shape),
        absl::StrCat(Brackets(flat),
                     layout.Has('T') ? "" : absl::StrCat(" or ", Brackets(by_sequence)),
                     " rows, or positions beside them"));
  }
  plan.positions[0].resize(static_cast<size_t>(plan.tokens));
  ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
    plan.positions[0][static_cast<size_t>(token)] =
        i.t + i.s + (by_batch ? i.b * layout.Length('S') : 0);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanExplicitRows(const v1::RotateRequest& message, const proto::SplitMessage& split,
                              Plan& plan) {
  plan.conjugate = message.operation() == v1::OPERATION_BACKWARD;
  const bool rotates = message.operation() == v1::OPERATION_UNSPECIFIED ||
                       message.operation() == v1::OPERATION_ROTATE;
  if (!rotates && !plan.conjugate) {
    return InvalidField("operation", v1::Operation_Name(message.operation()),
                        "OPERATION_ROTATE or OPERATION_BACKWARD beside rows");
  }
  if (message.return_attention_factor()) {
    return InvalidField("return_attention_factor", "true beside rows",
                        "false: rows hold whatever factor they were made with");
  }
  ROPE_ASSIGN_OR_RETURN(RowArray rows, ReadRows(message.rows(), split));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, ReadGeometry(message.rope(), rows.columns,
                                                    plan.tensors.front().layout.head_dim));
  ROPE_RETURN_IF_ERROR(message.has_positions() ? TakePositions(message, split, rows, plan)
                                               : CountRows(rows, plan));
  plan.rows =
      std::make_shared<const kernels::TablePage>(rows.rows, rows.columns, std::move(rows.values));
  return absl::OkStatus();
}

}  // namespace rope::server
