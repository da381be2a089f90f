#include "server/positions.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"
#include "server/array_reader.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {
namespace {

std::string Brackets(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckAll(absl::Span<const int64_t> positions, absl::string_view field) {
  for (const int64_t position : positions) ROPE_RETURN_IF_ERROR(CheckPosition(position, field));
  return absl::OkStatus();
}

absl::Status CheckAlternatives(const v1::Positions& message) {
  std::vector<std::string> given;
  if (message.has_start()) given.push_back("start");
  if (message.has_starts()) given.push_back("starts");
  if (message.has_position_ids()) given.push_back("position_ids");
  if (given.size() == 1) return absl::OkStatus();
  return InvalidField("positions", given.empty() ? "nothing" : absl::StrJoin(given, " and "),
                      "exactly one of start, starts and position_ids");
}

// Offsets of the packed sequences of a T axis, the total at the end.
absl::StatusOr<std::vector<int64_t>> ReadCuSeqlens(const v1::Positions& message,
                                                   const proto::SplitMessage& split,
                                                   const Layout& layout) {
  constexpr char kField[] = "positions.cu_seqlens";
  if (!message.has_cu_seqlens()) return std::vector<int64_t>{0, layout.Length('T')};
  if (!layout.Has('T')) return InvalidField(kField, "it without a T axis", "it unset");
  ROPE_ASSIGN_OR_RETURN(const IntegerArray array,
                        ReadIntegers(message.cu_seqlens(), split, kField));
  const std::vector<int64_t>& offsets = array.values;
  if (array.shape.size() != 1 || offsets.size() < 2) {
    return InvalidField(kField, Brackets(array.shape), "one axis of sequences + 1");
  }
  if (offsets.front() != 0) return InvalidField(kField, offsets.front(), "0 first");
  if (!std::is_sorted(offsets.begin(), offsets.end())) {
    return InvalidField(kField, "a falling offset", "offsets that never fall");
  }
  if (offsets.back() != layout.Length('T')) {
    return InvalidField(kField, offsets.back(), absl::StrCat(layout.Length('T'), " last, as T"));
  }
  return array.values;
}

// Sequence, and index within it, of each element along T.
struct PackedTokens {
  std::vector<int64_t> sequence;
  std::vector<int64_t> index;
};

PackedTokens Unpack(const std::vector<int64_t>& offsets) {
  PackedTokens tokens;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    for (int64_t t = offsets[i]; t < offsets[i + 1]; ++t) {
      tokens.sequence.push_back(static_cast<int64_t>(i));
      tokens.index.push_back(t - offsets[i]);
    }
  }
  return tokens;
}

// Positions that follow each sequence's first one. REQUIRES: result.sequence is filled.
absl::Status FillFromStarts(const v1::Positions& message, const proto::SplitMessage& split,
                            const Layout& layout, const PackedTokens& packed, int64_t sequences,
                            TokenPositions& result) {
  std::vector<int64_t> starts(static_cast<size_t>(sequences), message.start());
  if (message.has_start()) ROPE_RETURN_IF_ERROR(CheckPosition(message.start(), "positions.start"));
  if (message.has_starts()) {
    ROPE_ASSIGN_OR_RETURN(const IntegerArray array,
                          ReadIntegers(message.starts(), split, "positions.starts"));
    if (array.shape != std::vector<int64_t>{sequences}) {
      return InvalidField("positions.starts.shape", Brackets(array.shape),
                          absl::StrCat("[", sequences, "], one start for each sequence"));
    }
    starts = array.values;
    ROPE_RETURN_IF_ERROR(CheckAll(starts, "positions.starts"));
  }
  const bool has_t = layout.Has('T');
  ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
    const auto t = static_cast<size_t>(i.t);
    const auto sequence = static_cast<size_t>(result.sequence[static_cast<size_t>(token)]);
    const int64_t index = has_t ? packed.index[t] : i.s;
    result.values[0][static_cast<size_t>(token)] = starts[sequence] + index;
  });
  return CheckAll(result.values[0], message.has_start() ? "positions.start" : "positions.starts");
}

// How position_ids lie: [S], [B, S] or [T], behind an optional axis of 3.
struct IdShape {
  int axes = 1;
  bool by_batch = false;  // [B, S]
};

absl::StatusOr<IdShape> MatchIdShape(absl::Span<const int64_t> shape, const Layout& layout,
                                     bool multimodal) {
  std::vector<std::vector<int64_t>> legal;
  if (layout.Has('T')) {
    legal = {{layout.Length('T')}};
  } else {
    legal = {{layout.Length('S')}, {layout.Length('B'), layout.Length('S')}};
  }
  const size_t plain = legal.size();
  for (size_t i = 0; multimodal && i < plain; ++i) {
    std::vector<int64_t> with_axes = {3};
    with_axes.insert(with_axes.end(), legal[i].begin(), legal[i].end());
    legal.push_back(with_axes);
  }
  std::vector<size_t> matches;
  for (size_t i = 0; i < legal.size(); ++i) {
    if (absl::Span<const int64_t>(legal[i]) == shape) matches.push_back(i);
  }
  // [3, S] could mean three axes or three sequences: the longer form says which.
  if (matches.size() == 1) return IdShape{matches[0] < plain ? 1 : 3, matches[0] % plain == 1};
  std::vector<std::string> wanted;
  wanted.reserve(legal.size());
  for (const auto& candidate : legal) wanted.push_back(Brackets(candidate));
  return InvalidField("positions.position_ids.shape", Brackets(shape),
                      matches.empty() ? absl::StrJoin(wanted, " or ")
                                      : absl::StrCat(wanted.back(), ", which is not ambiguous"));
}

absl::Status FillFromIds(const v1::Positions& message, const proto::SplitMessage& split,
                         const Layout& layout, bool multimodal, TokenPositions& result) {
  constexpr char kField[] = "positions.position_ids";
  ROPE_ASSIGN_OR_RETURN(const IntegerArray array,
                        ReadIntegers(message.position_ids(), split, kField));
  ROPE_ASSIGN_OR_RETURN(const IdShape shape, MatchIdShape(array.shape, layout, multimodal));
  ROPE_RETURN_IF_ERROR(CheckAll(array.values, kField));
  result.axes = shape.axes;
  const int64_t s_length = layout.Length('S');
  const int64_t per_axis = static_cast<int64_t>(array.values.size()) / shape.axes;
  for (int axis = 0; axis < shape.axes; ++axis) {
    std::vector<int64_t>& values = result.values[static_cast<size_t>(axis)];
    values.resize(static_cast<size_t>(layout.tokens()));
    ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
      const int64_t within = i.t + i.s + (shape.by_batch ? i.b * s_length : 0);
      values[static_cast<size_t>(token)] =
          array.values[static_cast<size_t>(axis * per_axis + within)];
    });
  }
  return absl::OkStatus();
}

absl::Status FillSeqLens(const v1::Positions& message, int64_t sequences, TokenPositions& result) {
  const int64_t given = message.seq_len_size();
  for (const int64_t length : message.seq_len()) {
    if (length < 1 || length > limits::kSeqLenMax) {
      return InvalidField("positions.seq_len", length,
                          absl::StrCat("lengths from 1 to ", limits::kSeqLenMax));
    }
  }
  if (given == 1) {
    result.seq_len.assign(static_cast<size_t>(sequences), message.seq_len(0));
    return absl::OkStatus();
  }
  if (given != 0) {
    if (given != sequences) {
      return InvalidField("positions.seq_len", absl::StrCat(given, " lengths"),
                          absl::StrCat("one, or ", sequences, ", one for each sequence"));
    }
    result.seq_len.assign(message.seq_len().begin(), message.seq_len().end());
    return absl::OkStatus();
  }
  result.seq_len.assign(static_cast<size_t>(sequences), 1);
  for (int axis = 0; axis < result.axes; ++axis) {
    const std::vector<int64_t>& values = result.values[static_cast<size_t>(axis)];
    for (size_t token = 0; token < values.size(); ++token) {
      int64_t& length = result.seq_len[static_cast<size_t>(result.sequence[token])];
      length = std::max(length, values[token] + 1);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPosition(int64_t position, absl::string_view field) {
  if (position < 0) return InvalidField(field, position, "positions >= 0");
  if (position > limits::kPositionMax) {
    return absl::OutOfRangeError(
        absl::StrCat(field, ": got ", position, ", want at most ", limits::kPositionMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenPositions> ReadPositions(const v1::Positions& message,
                                             const proto::SplitMessage& split, const Layout& layout,
                                             bool multimodal) {
  ROPE_RETURN_IF_ERROR(CheckAlternatives(message));
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, ReadCuSeqlens(message, split, layout));
  const PackedTokens packed = layout.Has('T') ? Unpack(offsets) : PackedTokens();
  const int64_t sequences =
      layout.Has('T') ? static_cast<int64_t>(offsets.size()) - 1 : layout.Length('B');
  const auto tokens = static_cast<size_t>(layout.tokens());

  TokenPositions result;
  result.sequence.resize(tokens);
  ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
    result.sequence[static_cast<size_t>(token)] =
        layout.Has('T') ? packed.sequence[static_cast<size_t>(i.t)] : i.b;
  });
  if (message.has_position_ids()) {
    ROPE_RETURN_IF_ERROR(FillFromIds(message, split, layout, multimodal, result));
  } else {
    result.values[0].resize(tokens);
    ROPE_RETURN_IF_ERROR(FillFromStarts(message, split, layout, packed, sequences, result));
  }
  ROPE_RETURN_IF_ERROR(FillSeqLens(message, sequences, result));
  return result;
}

}  // namespace rope::server
