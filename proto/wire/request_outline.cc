#include "proto/wire/request_outline.h"

#include <algorithm>

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::proto {
namespace {

// The messages that gaps lie in.
enum class Place {
  kRequest,
  kPositions,
  kPositionsArray,
  kTensor,
  kTensorArray,
  kInputSpan,
  kOutput,
  kOutputSpan,
};

// What the field of a message at `place` leads to; nullopt: no gaps below it.
std::optional<Place> Below(Place place, uint32_t number) {
  switch (place) {
    case Place::kRequest:
      if (number == v1::RotateRequest::kPositionsFieldNumber) return Place::kPositions;
      if (number == v1::RotateRequest::kTensorsFieldNumber) return Place::kTensor;
      if (number == v1::RotateRequest::kOutputFieldNumber) return Place::kOutput;
      return std::nullopt;
    case Place::kPositions:
      if (number == v1::Positions::kStartsFieldNumber ||
          number == v1::Positions::kPositionIdsFieldNumber ||
          number == v1::Positions::kCuSeqlensFieldNumber) {
        return Place::kPositionsArray;
      }
      return std::nullopt;
    case Place::kTensor:
      if (number == v1::Tensor::kArrayFieldNumber) return Place::kTensorArray;
      return std::nullopt;
    case Place::kTensorArray:
      if (number == v1::Array::kRegionFieldNumber) return Place::kInputSpan;
      return std::nullopt;
    case Place::kOutput:
      if (number == v1::Output::kRegionsFieldNumber) return Place::kOutputSpan;
      return std::nullopt;
    case Place::kPositionsArray:
    case Place::kInputSpan:
    case Place::kOutputSpan:
      return std::nullopt;
  }
  return std::nullopt;
}

bool IsArray(Place place) {
  return place == Place::kTensorArray || place == Place::kPositionsArray;
}

bool IsSpan(Place place) {
  return place == Place::kInputSpan || place == Place::kOutputSpan;
}

bool IsAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

// Walks a message and notes its gaps.
class RequestOutline::Finder {
 public:
  Finder(absl::Span<const std::string_view> fragments, absl::InlinedVector<Gap, 4>& gaps)
      : cursor_(fragments), gaps_(gaps) {}

  absl::Status Run() { return Walk(Place::kRequest, cursor_.size()); }

 private:
  absl::Status Walk(Place place, int64_t end) {
    if (IsSpan(place)) {
      const bool is_input = place == Place::kInputSpan;
      gaps_.push_back({is_input ? Kind::kInputSpan : Kind::kOutputSpan, cursor_.position(), 0});
    }
    while (cursor_.position() < end) {
      const auto tag = cursor_.ReadTag();
      if (!tag.ok()) return tag.status();
      if (absl::Status status = Field(place, *tag); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Field(Place place, uint32_t tag) {
    const uint32_t number = tag >> 3;
    const auto type = static_cast<WireType>(tag & 7);
    if (type != WireType::kLength) {
      const int64_t begin = cursor_.position();
      absl::Status status = cursor_.SkipScalar(type);
      if (const auto kind = KindOfScalar(place, number); kind.has_value()) {
        gaps_.push_back({*kind, begin, cursor_.position() - begin});
      }
      return status;
    }
    const auto length = cursor_.ReadLength();
    if (!length.ok()) return length.status();
    const auto below = Below(place, number);
    if (below.has_value()) return Walk(*below, cursor_.position() + *length);
    if (place == Place::kRequest && number == v1::RotateRequest::kRequestIdFieldNumber) {
      gaps_.push_back({Kind::kRequestId, cursor_.position(), *length});
    } else if (IsArray(place) && number == v1::Array::kRawFieldNumber) {
      gaps_.push_back({Kind::kPayload, cursor_.position(), *length});
    }
    return cursor_.ReadView(*length).status();
  }

  // nullopt: the scalar is compared.
  static std::optional<Kind> KindOfScalar(Place place, uint32_t number) {
    if (place == Place::kPositions && number == v1::Positions::kStartFieldNumber) {
      return Kind::kStart;
    }
    if (!IsSpan(place)) return std::nullopt;
    if (number == v1::RegionSpan::kRegionIdFieldNumber) return Kind::kRegionId;
    if (number == v1::RegionSpan::kOffsetFieldNumber) return Kind::kOffset;
    return std::nullopt;
  }

  WireCursor cursor_;
  absl::InlinedVector<Gap, 4>& gaps_;
};

std::optional<RequestOutline> RequestOutline::Of(absl::Span<const std::string_view> fragments) {
  RequestOutline outline;
  if (!Finder(fragments, outline.gaps_).Run().ok()) return std::nullopt;
  WireCursor cursor(fragments);
  outline.message_bytes_ = cursor.size();
  int64_t text_bytes = cursor.size();
  for (const Gap& gap : outline.gaps_) text_bytes -= gap.bytes;
  if (text_bytes > kBytesMax) return std::nullopt;
  for (const Gap& gap : outline.gaps_) {
    const bool copied = cursor.ReadBytes(gap.position - cursor.position(), outline.text_).ok();
    if (!copied || !cursor.ReadView(gap.bytes).ok()) return std::nullopt;
    outline.payloads_ += gap.kind == Kind::kPayload ? 1 : 0;
    outline.spans_ += gap.kind == Kind::kInputSpan || gap.kind == Kind::kOutputSpan ? 1 : 0;
  }
  if (!cursor.ReadBytes(cursor.size() - cursor.position(), outline.text_).ok()) return std::nullopt;
  Values values;
  if (!outline.Matches(fragments, values)) return std::nullopt;  // its request_id is not ASCII
  return outline;
}

bool RequestOutline::Matches(absl::Span<const std::string_view> fragments, Values& values) const {
  WireCursor cursor(fragments);
  if (cursor.size() != message_bytes_) return false;
  values = {};
  values.payloads.reserve(static_cast<size_t>(payloads_));
  values.spans.reserve(static_cast<size_t>(spans_));
  const std::string_view text = text_;
  size_t compared = 0;
  for (const Gap& gap : gaps_) {
    const auto before = static_cast<size_t>(gap.position - cursor.position());
    if (!cursor.Consume(text.substr(compared, before))) return false;
    if (!ReadGap(gap, cursor, values)) return false;
    compared += before;
  }
  return cursor.Consume(text.substr(compared));
}

// Whether the bytes of a gap are a value of its kind, and exactly that.
bool RequestOutline::ReadGap(const Gap& gap, WireCursor& cursor, Values& values) {
  switch (gap.kind) {
    case Kind::kRequestId:
      return cursor.ReadBytes(gap.bytes, values.request_id).ok() && IsAscii(values.request_id);
    case Kind::kInputSpan:
    case Kind::kOutputSpan:
      values.spans.push_back({.is_output = gap.kind == Kind::kOutputSpan});
      return true;
    case Kind::kStart:
    case Kind::kRegionId:
    case Kind::kOffset: {
      const auto value = cursor.ReadVarint();
      if (!value.ok() || cursor.position() != gap.position + gap.bytes) return false;
      if (gap.kind == Kind::kStart) {
        values.start = static_cast<int64_t>(*value);
      } else {
        Span& span = values.spans.back();
        (gap.kind == Kind::kRegionId ? span.region_id : span.offset) = *value;
      }
      return true;
    }
    case Kind::kPayload: {
      auto payload = cursor.ReadView(gap.bytes);
      if (!payload.ok()) return false;
      values.payloads.push_back(*std::move(payload));
      return true;
    }
  }
  return false;
}

}  // namespace rope::proto
