#include "server/request/positions.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_join.h"
#include "kernels/status_macros.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/request/array_reader.h"

namespace rope::server {
namespace {

// How positions are read. A tensor holds its sequences in one of two ways:
//
//   B and S axes   sequence b has the S elements [b][0..S), padded to one length
//   T axis         sequences are packed one behind the other; cu_seqlens holds their offsets
//
// L axes (layers) share positions: tokens that differ only in L get the same value.
//
// Elements are copied before they are checked, because the client may write to shared memory while
// the request runs.

// The error names the field `path` + `field`.
absl::Status CheckAll(absl::Span<const int64_t> positions, absl::string_view path,
                      absl::string_view field) {
  for (const int64_t position : positions) {
    if (position >= 0 && position <= limits::kPositionMax) continue;
    return CheckPosition(position, absl::StrCat(path, field));
  }
  return absl::OkStatus();
}

absl::Status CheckAlternatives(const v1::Positions& message, absl::string_view path) {
  if (message.source_case() != v1::Positions::SOURCE_NOT_SET) return absl::OkStatus();
  return InvalidField(path, "nothing", "exactly one of start, starts, position_ids");
}

// Context parallelism: each sequence is divided into 2 * size chunks, and rank r holds chunks r and
// 2 * size - 1 - r. This pairing of an early with a late chunk balances causal attention.
struct ContextParallel {
  int64_t size = 1;
  int64_t rank = 0;

  // The index in the whole sequence of local element `index`. The rank holds `length` elements of
  // the sequence; the first half is chunk `rank`, the second half chunk 2 * size - 1 - rank.
  int64_t Global(int64_t index, int64_t length) const {
    if (size == 1) return index;
    const int64_t chunk = length / 2;
    return index < chunk ? rank * chunk + index : (2 * size - 1 - rank) * chunk + index - chunk;
  }
};

absl::StatusOr<ContextParallel> ReadContextParallel(const v1::Positions& message,
                                                    absl::string_view path) {
  ContextParallel result;
  if (!message.has_cp_size() && !message.has_cp_rank()) return result;
  const std::string size_field = absl::StrCat(path, ".cp_size");
  const std::string rank_field = absl::StrCat(path, ".cp_rank");
  if (!message.has_cp_size()) return InvalidField(size_field, "nothing", "a size with cp_rank");
  result.size = message.cp_size();
  result.rank = message.cp_rank();
  if (result.size < 1) return InvalidField(size_field, result.size, "a size >= 1");
  if (!message.has_cp_rank() || result.rank < 0 || result.rank >= result.size) {
    return InvalidField(rank_field,
                        message.has_cp_rank() ? absl::StrCat(result.rank) : std::string("nothing"),
                        absl::StrCat("0 to ", result.size - 1));
  }
  if (message.has_position_ids()) {
    return InvalidField(size_field, "it together with position_ids", "it with start or starts");
  }
  return result;
}

// The sequences of a tensor.
struct Sequences {
  // Of each sequence: the number of its elements in the tensor.
  absl::InlinedVector<int64_t, 4> length;
  // By element along T: its sequence, and its index within the sequence. Empty without cu_seqlens.
  std::vector<int64_t> sequence;
  std::vector<int64_t> index;

  int64_t count() const { return static_cast<int64_t>(length.size()); }
  int64_t SequenceOf(const TokenIndex& i) const {
    return sequence.empty() ? i.b : sequence[static_cast<size_t>(i.t)];
  }
  int64_t IndexOf(const TokenIndex& i) const {
    return index.empty() ? i.t + i.s : index[static_cast<size_t>(i.t)];
  }
};

// The offsets of the packed sequences along T; the last one is the length of T.
// REQUIRES: layout.Has('T').
absl::StatusOr<std::vector<int64_t>> ReadCuSeqlens(const v1::Positions& message,
                                                   ArraySource& source, const Layout& layout,
                                                   absl::string_view path) {
  const std::string field = absl::StrCat(path, ".cu_seqlens");
  const int64_t most = std::max(layout.Length('T'), limits::kSequencesMin) + 1;
  const auto check = [&](absl::Span<const int64_t> shape) {
    if (shape.size() == 1 && shape[0] >= 2 && shape[0] <= most) return absl::OkStatus();
    return InvalidField(field, Brackets(shape),
                        absl::StrCat("one axis of sequences + 1, at most ", most));
  };
  ROPE_ASSIGN_OR_RETURN(IntegerArray array,
                        ReadIntegers(message.cu_seqlens(), source, field, check));
  std::vector<int64_t>& offsets = array.values;
  if (offsets.front() != 0) return InvalidField(field, offsets.front(), "0 first");
  if (!std::is_sorted(offsets.begin(), offsets.end())) {
    return InvalidField(field, "a falling offset", "offsets that never fall");
  }
  if (offsets.back() != layout.Length('T')) {
    return InvalidField(field, offsets.back(), absl::StrCat(layout.Length('T'), " last, as T"));
  }
  return std::move(offsets);
}

absl::StatusOr<Sequences> ReadSequences(const v1::Positions& message, ArraySource& source,
                                        const Layout& layout, absl::string_view path) {
  Sequences sequences;
  if (!layout.Has('T')) {
    if (message.has_cu_seqlens()) {
      return InvalidField(absl::StrCat(path, ".cu_seqlens"), "it without a T axis", "it unset");
    }
    sequences.length.assign(static_cast<size_t>(layout.Length('B')), layout.Length('S'));
    return sequences;
  }
  if (!message.has_cu_seqlens()) {  // T is one sequence
    sequences.length.push_back(layout.Length('T'));
    return sequences;
  }
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                        ReadCuSeqlens(message, source, layout, path));
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    sequences.length.push_back(offsets[i + 1] - offsets[i]);
    for (int64_t t = offsets[i]; t < offsets[i + 1]; ++t) {
      sequences.sequence.push_back(static_cast<int64_t>(i));
      sequences.index.push_back(t - offsets[i]);
    }
  }
  return sequences;
}

// The position of each sequence's first token.
absl::StatusOr<std::vector<int64_t>> ReadStarts(const v1::Positions& message, ArraySource& source,
                                                int64_t sequences, absl::string_view path) {
  if (message.has_start()) {
    const int64_t start = message.start();
    ROPE_RETURN_IF_ERROR(CheckAll({&start, 1}, path, ".start"));
    return std::vector<int64_t>(static_cast<size_t>(sequences), message.start());
  }
  const std::string field = absl::StrCat(path, ".starts");
  const auto check = [&](absl::Span<const int64_t> shape) {
    if (shape.size() == 1 && shape[0] == sequences) return absl::OkStatus();
    return InvalidField(field + ".shape", Brackets(shape),
                        absl::StrCat("[", sequences, "], one start for each sequence"));
  };
  ROPE_ASSIGN_OR_RETURN(IntegerArray array, ReadIntegers(message.starts(), source, field, check));
  ROPE_RETURN_IF_ERROR(CheckAll(array.values, path, ".starts"));
  return std::move(array.values);
}

// Counts up from each sequence's first position. REQUIRES: result.sequence is filled.
absl::Status FillFromStarts(const v1::Positions& message, ArraySource& source, const Layout& layout,
                            const Sequences& sequences, const ContextParallel& parallel,
                            absl::string_view path, TokenPositions& result) {
  ROPE_ASSIGN_OR_RETURN(const std::vector<int64_t> starts,
                        ReadStarts(message, source, sequences.count(), path));
  for (const int64_t length : sequences.length) {
    if (parallel.size == 1 || length % 2 == 0) continue;
    return InvalidField(absl::StrCat(path, ".cp_size"),
                        absl::StrCat(parallel.size, " and a sequence of ", length, " tokens here"),
                        "an even number of tokens here: two chunks of each sequence");
  }
  result.values[0].resize(static_cast<size_t>(layout.tokens()));
  ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
    const auto sequence = static_cast<size_t>(result.sequence[static_cast<size_t>(token)]);
    result.values[0][static_cast<size_t>(token)] =
        starts[sequence] + parallel.Global(sequences.IndexOf(i), sequences.length[sequence]);
  });
  // Other ranks hold the rest of each sequence. All ranks must compute the same length, or
  // frequencies that depend on it would differ between them.
  for (size_t i = 0; i < starts.size(); ++i) {
    const bool is_empty = parallel.size == 1 && sequences.length[i] == 0;
    result.seq_len.push_back(
        is_empty ? 1 : std::max<int64_t>(1, starts[i] + sequences.length[i] * parallel.size));
  }
  return CheckAll(result.values[0], path, message.has_start() ? ".start" : ".starts");
}

// The shape of position_ids: [S], [B, S] or [T], optionally with a leading axis of 3.
struct IdShape {
  int axes = 1;           // the length of the leading axis, or 1
  bool by_batch = false;  // [B, S]: each sequence has its own positions
};

// Compares `shape` with every legal shape. Legal shapes with the leading axis of 3 come after those
// without it, so that an index from `plain` on means three axes.
absl::StatusOr<IdShape> MatchIdShape(absl::Span<const int64_t> shape, const Layout& layout,
                                     bool multimodal, absl::string_view field) {
  using Shape = absl::InlinedVector<int64_t, 3>;
  absl::InlinedVector<Shape, 4> legal;
  if (layout.Has('T')) {
    legal = {{layout.Length('T')}};
  } else {
    legal = {{layout.Length('S')}, {layout.Length('B'), layout.Length('S')}};
  }
  const size_t plain = legal.size();
  for (size_t i = 0; multimodal && i < plain; ++i) {
    Shape with_axes = {3};
    with_axes.insert(with_axes.end(), legal[i].begin(), legal[i].end());
    legal.push_back(with_axes);
  }
  absl::InlinedVector<size_t, 4> matches;
  for (size_t i = 0; i < legal.size(); ++i) {
    if (absl::Span<const int64_t>(legal[i]) == shape) matches.push_back(i);
  }
  // If B is 3, [3, S] matches both [3][S] (three axes) and [B, S]. The error asks for [3, B, S].
  if (matches.size() == 1) return IdShape{matches[0] < plain ? 1 : 3, matches[0] % plain == 1};
  std::vector<std::string> wanted;
  wanted.reserve(legal.size());
  for (const auto& candidate : legal) wanted.push_back(Brackets(candidate));
  return InvalidField(absl::StrCat(field, ".shape"), Brackets(shape),
                      matches.empty() ? absl::StrJoin(wanted, " or ")
                                      : absl::StrCat(wanted.back(), ", which is not ambiguous"));
}

absl::Status FillFromIds(const v1::Positions& message, ArraySource& source, const Layout& layout,
                         bool multimodal, absl::string_view path, TokenPositions& result) {
  IdShape shape;
  const auto check = [&](absl::Span<const int64_t> lengths) -> absl::Status {
    ROPE_ASSIGN_OR_RETURN(shape, MatchIdShape(lengths, layout, multimodal, "position_ids"));
    return absl::OkStatus();
  };
  const absl::StatusOr<IntegerArray> read =
      ReadIntegers(message.position_ids(), source, "position_ids", check);
  if (!read.ok()) return Prefixed(absl::StrCat(path, "."), read.status());
  const IntegerArray& array = *read;
  ROPE_RETURN_IF_ERROR(CheckAll(array.values, path, ".position_ids"));
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

// The length of each sequence: seq_lens of the message (one value for all sequences, or one each).
// Without it what FillFromStarts has set, or the largest position + 1.
absl::Status FillSeqLens(const v1::Positions& message, int64_t sequences, absl::string_view path,
                         TokenPositions& result) {
  const auto field = [path] { return absl::StrCat(path, ".seq_lens"); };
  const int64_t given = message.seq_lens_size();
  for (const int64_t length : message.seq_lens()) {
    if (length >= 1 && length <= limits::kSeqLenMax) continue;
    return InvalidField(field(), length, absl::StrCat("lengths from 1 to ", limits::kSeqLenMax));
  }
  if (given == 1) {
    result.seq_len.assign(static_cast<size_t>(sequences), message.seq_lens(0));
    return absl::OkStatus();
  }
  if (given != 0) {
    if (given != sequences) {
      return InvalidField(field(), absl::StrCat(given, " lengths"),
                          absl::StrCat("one, or ", sequences, ", one for each sequence"));
    }
    result.seq_len.assign(message.seq_lens().begin(), message.seq_lens().end());
    return absl::OkStatus();
  }
  if (!message.has_position_ids()) return absl::OkStatus();
  result.seq_len.resize(static_cast<size_t>(sequences), 1);
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

absl::StatusOr<TokenMoves> ReadMoves(const v1::Array& by, ArraySource& source,
                                     const TensorPlan& first) {
  constexpr absl::string_view kField = "reposition.by";
  const Layout& layout = first.layout;
  static const PagedPlan kNoPages;
  const PagedPlan& paged = first.paged.has_value() ? *first.paged : kNoPages;
  TokenMoves result;
  bool by_page = false;
  IdShape ids;
  const auto check = [&](absl::Span<const int64_t> shape) -> absl::Status {
    if (shape.empty() || (shape.size() == 1 && shape[0] == 1)) {
      result.is_uniform = true;
    } else if (!paged.pages_shape.empty() &&
               shape == absl::Span<const int64_t>(paged.pages_shape)) {
      by_page = true;
    } else {
      ROPE_ASSIGN_OR_RETURN(ids, MatchIdShape(shape, layout, /*multimodal=*/false, kField));
    }
    return absl::OkStatus();
  };
  ROPE_ASSIGN_OR_RETURN(const IntegerArray moves, ReadIntegers(by, source, kField, check));
  for (const int64_t move : moves.values) ROPE_RETURN_IF_ERROR(CheckMove(move));
  const auto tokens = static_cast<size_t>(layout.tokens());
  if (result.is_uniform) {
    const int64_t move = moves.values.front();
    result.from.assign(tokens, std::max<int64_t>(-move, 0));
    result.to.assign(tokens, std::max<int64_t>(move, 0));
    return result;
  }
  result.from.resize(tokens);
  result.to.resize(tokens);
  const int64_t pages_each = paged.pages_shape.empty() ? 0 : paged.pages_shape.back();
  ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
    const int64_t within = i.t + i.s;
    const int64_t index = by_page ? i.b * pages_each + within / paged.block_size
                                  : within + (ids.by_batch ? i.b * layout.Length('S') : 0);
    const int64_t move = moves.values[static_cast<size_t>(index)];
    result.from[static_cast<size_t>(token)] = std::max<int64_t>(-move, 0);
    result.to[static_cast<size_t>(token)] = std::max<int64_t>(move, 0);
  });
  return result;
}

absl::Status ReadDevicePositions(const v1::Positions& message, ArraySource& source,
                                 const Layout& layout, DevicePositions& positions) {
  constexpr absl::string_view kPath = "positions";
  ROPE_RETURN_IF_ERROR(CheckAlternatives(message, kPath));
  for (const auto& [is_set, field] :
       {std::pair(message.has_cu_seqlens(), "cu_seqlens"),
        std::pair(message.has_cp_size(), "cp_size"), std::pair(message.has_cp_rank(), "cp_rank")}) {
    if (!is_set) continue;
    return RefuseOnDevice(absl::StrCat(kPath, ".", field), "it",
                          "position_ids in memory of the device");
  }
  if (!message.has_position_ids()) {
    const int64_t sequences = layout.Has('T') ? 1 : layout.Length('B');
    ROPE_ASSIGN_OR_RETURN(positions.starts, ReadStarts(message, source, sequences, kPath));
    return absl::OkStatus();
  }
  const v1::Array& ids = message.position_ids();
  const std::string field = absl::StrCat(kPath, ".position_ids");
  positions.wide = ids.dtype() == v1::DTYPE_INT64;
  if (!ids.has_region()) {
    return RefuseOnDevice(field, "ids in host memory",
                          "start, starts, or ids in memory of the device");
  }
  if (!positions.wide && ids.dtype() != v1::DTYPE_INT32) {
    return InvalidField(field + ".dtype", proto::DTypeName(ids.dtype()),
                        "DTYPE_INT32 or DTYPE_INT64");
  }
  ROPE_ASSIGN_OR_RETURN(const IdShape shape,
                        MatchIdShape(ids.shape(), layout, /*multimodal=*/false, field));
  positions.by_batch = shape.by_batch;
  const int64_t each = layout.Has('T') ? layout.Length('T') : layout.Length('S');
  const int64_t count = shape.by_batch ? each * layout.Length('B') : each;
  positions.ids = {nullptr, ids.region().region_id(), ids.region().offset(),
                   count * (positions.wide ? 8 : 4), /*may_lie_on_device=*/true};
  ROPE_RETURN_IF_ERROR(source.Find(positions.ids, field).status());
  if (positions.ids.IsOnDevice()) return absl::OkStatus();
  return InvalidField(field, "a region in host memory", "memory of the device");
}

absl::Status CheckMove(int64_t move) {
  if (move >= -limits::kPositionMax && move <= limits::kPositionMax) return absl::OkStatus();
  return MakeError(Reason::kPositionOutOfRange, "reposition.by", move,
                   absl::StrCat("at most ", limits::kPositionMax, " forwards or back"));
}

absl::Status CheckPosition(int64_t position, absl::string_view field) {
  if (position < 0) return InvalidField(field, position, "positions >= 0");
  if (position > limits::kPositionMax) {
    return MakeError(Reason::kPositionOutOfRange, field, position,
                     absl::StrCat("at most ", limits::kPositionMax));
  }
  return absl::OkStatus();
}

std::optional<std::string> WarningPastLength(std::optional<int64_t> max_position_embeddings,
                                             const std::array<std::vector<int64_t>, 3>& positions) {
  if (!max_position_embeddings.has_value()) return std::nullopt;
  int64_t largest = -1;
  for (const std::vector<int64_t>& values : positions) {
    for (const int64_t position : values) largest = std::max(largest, position);
  }
  if (largest < *max_position_embeddings) return std::nullopt;
  return absl::StrCat("positions: up to ", largest, ", past the model's ",
                      *max_position_embeddings);
}

absl::StatusOr<TokenPositions> ReadPositions(const v1::Positions& message, ArraySource& source,
                                             const Layout& layout, bool multimodal,
                                             absl::string_view path) {
  ROPE_RETURN_IF_ERROR(CheckAlternatives(message, path));
  ROPE_ASSIGN_OR_RETURN(const ContextParallel parallel, ReadContextParallel(message, path));
  ROPE_ASSIGN_OR_RETURN(const Sequences sequences, ReadSequences(message, source, layout, path));

  TokenPositions result;
  result.sequence.resize(static_cast<size_t>(layout.tokens()));
  ForEachToken(layout, [&](int64_t token, const TokenIndex& i) {
    result.sequence[static_cast<size_t>(token)] = sequences.SequenceOf(i);
  });
  if (message.has_position_ids()) {
    ROPE_RETURN_IF_ERROR(FillFromIds(message, source, layout, multimodal, path, result));
  } else {
    ROPE_RETURN_IF_ERROR(
        FillFromStarts(message, source, layout, sequences, parallel, path, result));
  }
  ROPE_RETURN_IF_ERROR(FillSeqLens(message, sequences.count(), path, result));
  return result;
}

}  // namespace rope::server
