// Positions: computes the absolute position and the sequence of every token from rope.v1.Positions.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT; OUT_OF_RANGE: a position above limits::kPositionMax.
#ifndef ROPE_SERVER_REQUEST_POSITIONS_H_
#define ROPE_SERVER_REQUEST_POSITIONS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/layout.h"
#include "server/request/plan.h"

namespace rope::server {

// An error unless `position` is 0 to limits::kPositionMax. `field` names it in the message.
absl::Status CheckPosition(int64_t position, absl::string_view field);

// An error unless a token may move by so much (Reposition.by).
absl::Status CheckMove(int64_t move);

struct TokenPositions {
  int axes = 1;                                // 3 if the request gives positions for t, h and w
  std::array<std::vector<int64_t>, 3> values;  // by axis, then by token in memory order
  std::vector<int64_t> sequence;               // by token: the sequence's index, from 0
  std::vector<int64_t> seq_len;  // by sequence: the caller's, or the largest position + 1
};

// `multimodal`: the config has mrope_section, so that three axes are legal. `path` is the message's
// field path in errors, for example "positions".
absl::StatusOr<TokenPositions> ReadPositions(const v1::Positions& message, ArraySource& source,
                                             const Layout& layout, bool multimodal,
                                             absl::string_view path);

// The positions of tensors on a device: start or starts, or position_ids in memory of the device,
// which nothing here reads. UNIMPLEMENTED: others.
absl::Status ReadDevicePositions(const v1::Positions& message, ArraySource& source,
                                 const Layout& layout, DevicePositions& positions);

// The moves of Reposition.by, by token: positions before and after, of which the smaller one is 0.
struct TokenMoves {
  std::vector<int64_t> from;
  std::vector<int64_t> to;
  bool is_uniform = false;  // all tokens move alike
};

// `first`: the plan's first tensor, whose pages may have a move each.
absl::StatusOr<TokenMoves> ReadMoves(const v1::Array& by, ArraySource& source,
                                     const TensorPlan& first);

// A warning if a position is past the model's own length. `positions` are by axis and token.
std::optional<std::string> WarningPastLength(std::optional<int64_t> max_position_embeddings,
                                             const std::array<std::vector<int64_t>, 3>& positions);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_POSITIONS_H_
