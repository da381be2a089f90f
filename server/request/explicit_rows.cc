#include "server/request/explicit_rows.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/config/rope_config.h"
#include "kernels/status_macros.h"
#include "kernels/tables/table_page.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/request/array_reader.h"
#include "server/request/positions.h"
#include "server/request/token_runs.h"

namespace rope::server {
namespace {

// The caller's rows, [..., columns]. Their elements have not been read yet.
struct RowArrays {
  std::vector<int64_t> shape;  // without the last axis
  int64_t rows = 1;
  int64_t columns = 0;
  std::optional<FloatElements> angles;  // either angles,
  std::optional<FloatElements> cos;     // or cos and sin
  std::optional<FloatElements> sin;
};

absl::Status CheckAlternatives(const v1::Rows& rows) {
  const bool pair = rows.has_cos() || rows.has_sin();
  if (pair && rows.has_angles()) {
    return InvalidField("rows", "angles together with cos and sin",
                        "either angles, or cos and sin");
  }
  if (rows.has_cos() != rows.has_sin()) {
    return InvalidField(rows.has_cos() ? "rows.sin" : "rows.cos", "nothing",
                        "cos and sin together");
  }
  if (pair || rows.has_angles()) return absl::OkStatus();
  return InvalidField("rows", "nothing", "cos and sin, or angles");
}

// Checks the shape of an array of rows for heads of `head_dim` channels before it is used: an empty
// array may state any number of rows.
absl::Status ReadShape(const FloatElements& array, int64_t head_dim, const std::string& field,
                       RowArrays& rows) {
  const std::vector<int64_t>& shape = array.shape();
  const int64_t pairs_max = std::min(head_dim, kernels::kHeadDimMax) / 2;
  if (shape.size() < 2) {
    return InvalidField(field + ".shape", Brackets(shape), "[rows, pairs]");
  }
  rows.columns = shape.back();
  if (rows.columns < 1) return InvalidField(field + ".shape", Brackets(shape), "1 pair at least");
  if (rows.columns > pairs_max) {
    return InvalidField("rows", absl::StrCat(rows.columns, " pairs"),
                        absl::StrCat("at most ", pairs_max, " for D ", head_dim));
  }
  rows.shape.assign(shape.begin(), shape.end() - 1);
  rows.rows = array.count() / rows.columns;  // columns >= 1: at most one row per element
  return absl::OkStatus();
}

absl::StatusOr<RowArrays> FindRows(const v1::Rows& message, ArraySource& source, int64_t head_dim) {
  ROPE_RETURN_IF_ERROR(CheckAlternatives(message));
  RowArrays rows;
  if (message.has_angles()) {
    ROPE_ASSIGN_OR_RETURN(rows.angles, FloatElements::Of(message.angles(), source, "rows.angles"));
    ROPE_RETURN_IF_ERROR(ReadShape(*rows.angles, head_dim, "rows.angles", rows));
    return rows;
  }
  ROPE_ASSIGN_OR_RETURN(rows.cos, FloatElements::Of(message.cos(), source, "rows.cos"));
  ROPE_ASSIGN_OR_RETURN(rows.sin, FloatElements::Of(message.sin(), source, "rows.sin"));
  if (rows.cos->shape() != rows.sin->shape()) {
    return InvalidField("rows.sin.shape", Brackets(rows.sin->shape()),
                        absl::StrCat(Brackets(rows.cos->shape()), ", as rows.cos"));
  }
  ROPE_RETURN_IF_ERROR(ReadShape(*rows.cos, head_dim, "rows.cos", rows));
  return rows;
}

// Reads only the rows that the plan's tokens use, into [rows][columns cosines, columns sines]. If
// there are no more rows than tokens, reads each row once. Otherwise reads one row per token, and
// token t uses row t.
absl::Status ReadRows(const RowArrays& rows, Plan& plan) {
  std::vector<int64_t>& by_token = plan.positions[0];
  const bool reads_all = rows.rows <= plan.tokens;
  const int64_t count = reads_all ? rows.rows : plan.tokens;
  std::vector<double> cos(static_cast<size_t>(rows.columns));  // of one row
  std::vector<double> sin(cos.size());
  std::vector<float> values;
  values.reserve(static_cast<size_t>(count) * 2 * cos.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = (reads_all ? i : by_token[static_cast<size_t>(i)]) * rows.columns;
    if (rows.angles.has_value()) {
      ROPE_RETURN_IF_ERROR(rows.angles->Read(begin, absl::MakeSpan(sin)));
      std::ranges::transform(sin, cos.begin(), [](double angle) { return std::cos(angle); });
      std::ranges::transform(sin, sin.begin(), [](double angle) { return std::sin(angle); });
    } else {
      ROPE_RETURN_IF_ERROR(rows.cos->Read(begin, absl::MakeSpan(cos)));
      ROPE_RETURN_IF_ERROR(rows.sin->Read(begin, absl::MakeSpan(sin)));
    }
    for (const double value : cos) values.push_back(static_cast<float>(value));
    for (const double value : sin) values.push_back(static_cast<float>(value));
  }
  if (!reads_all) std::iota(by_token.begin(), by_token.end(), 0);
  plan.rows = std::make_shared<const kernels::TablePage>(count, rows.columns, std::move(values));
  return absl::OkStatus();
}

// The rows replace the embedding, so that `spec` may state only the pairing.
absl::StatusOr<kernels::PairGeometry> ReadGeometry(const v1::RopeSpec& spec, int64_t pairs) {
  v1::RopeSpec rest = spec;
  rest.clear_pairing();
  if (rest.ByteSizeLong() > 0) {
    return InvalidField("rope", "an embedding together with rows", "only a pairing");
  }
  ROPE_ASSIGN_OR_RETURN(const auto pairing, proto::ReadPairing(spec.pairing()));
  if (!pairing.has_value()) {
    return InvalidField("rope.pairing", "nothing", "PAIRING_HALF or PAIRING_INTERLEAVED");
  }
  kernels::PairGeometry geometry;
  geometry.pairing = *pairing;
  geometry.pairs = pairs;
  geometry.partner = pairs;
  return geometry;
}

// With positions, each token uses the row at its position.
absl::Status ReadRowPositions(const v1::RotateRequest& message, ArraySource& source,
                              const RowArrays& rows, Plan& plan) {
  if (rows.shape.size() != 1) {
    return InvalidField("rows.shape", Brackets(rows.shape), "[rows, pairs] with positions");
  }
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(message.positions(), source, plan.tensors.front().layout,
                                      /*multimodal=*/false, "positions"));
  for (const int64_t position : positions.values[0]) {
    if (position < rows.rows) continue;
    return MakeError(Reason::kPositionOutOfRange, "positions", position,
                     absl::StrCat("less than the ", rows.rows, " rows"));
  }
  plan.positions[0] = std::move(positions.values[0]);
  return absl::OkStatus();
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

}  // namespace

absl::Status PlanExplicitRows(const v1::RotateRequest& message, ArraySource& source, Plan& plan) {
  plan.conjugate = message.operation() == v1::OPERATION_BACKWARD;
  const bool rotates = message.operation() == v1::OPERATION_UNSPECIFIED ||
                       message.operation() == v1::OPERATION_ROTATE;
  if (!rotates && !plan.conjugate) {
    return InvalidField("operation", v1::Operation_Name(message.operation()),
                        "OPERATION_ROTATE or OPERATION_BACKWARD with rows");
  }
  if (message.skip_attention_factor()) {
    return InvalidField("skip_attention_factor", "true with rows",
                        "false: rows contain the factor they were made with");
  }
  ROPE_ASSIGN_OR_RETURN(const RowArrays rows, FindRows(message.rows(), source, ChannelsOf(plan)));
  ROPE_RETURN_IF_ERROR(CheckOwnWindows(plan, 2 * rows.columns));
  ROPE_ASSIGN_OR_RETURN(plan.geometry, ReadGeometry(message.rope(), rows.columns));
  ROPE_RETURN_IF_ERROR(message.has_positions() ? ReadRowPositions(message, source, rows, plan)
                                               : CountRows(rows, plan));
  return ReadRows(rows, plan);
}

}  // namespace rope::server
