#include "server/request/prepared_rotations.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/error.h"

namespace rope::server {

absl::Status PreparedRotations::Keep(std::shared_ptr<const PreparedRotation> prepared,
                                     uint64_t session) {
  const Size share = {options_.entries_max / 2, options_.bytes_max / 2};
  if (prepared->bytes > share.bytes) {
    return MakeError(Reason::kLimitExceeded, "rotate",
                     absl::StrCat(prepared->bytes, " bytes of memory to keep it prepared"),
                     absl::StrCat("at most ", share.bytes, ", or the whole request in each call"));
  }
  proto::WriterMutexLock lock(&mutex_);
  Entry& entry = entries_[prepared->id];
  all_.entries += entry.prepared == nullptr ? 1 : 0;
  all_.bytes += prepared->bytes - (entry.prepared == nullptr ? 0 : entry.prepared->bytes);
  entry.session = session;
  entry.used.store(clock_.fetch_add(1) + 1);
  entry.prepared = std::move(prepared);
  Shrink(session, share);
  Shrink(std::nullopt, {options_.entries_max, options_.bytes_max});
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const PreparedRotation>> PreparedRotations::Find(
    absl::string_view id) {
  {
    proto::ReaderMutexLock lock(&mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end()) {
      Entry& entry = found->second;
      const std::optional<int64_t>& version = entry.prepared->registry_version;
      entry.used.store(clock_.fetch_add(1, std::memory_order_relaxed) + 1,
                       std::memory_order_relaxed);
      if (version.value_or(registry_.version()) == registry_.version()) return entry.prepared;
    }
  }
  return MakeError(Reason::kPreparedNotFound, "prepared_id", absl::StrCat("\"", id, "\""),
                   "one from Prepare, or the whole request");
}

PreparedRotations::Size PreparedRotations::size() const {
  proto::ReaderMutexLock lock(&mutex_);
  return all_;
}

PreparedRotations::Size PreparedRotations::SizeOf(std::optional<uint64_t> session) const {
  if (!session.has_value()) return all_;
  Size size;
  for (const auto& [id, entry] : entries_) {
    if (entry.session != *session) continue;
    ++size.entries;
    size.bytes += entry.prepared->bytes;
  }
  return size;
}

// Goes through the entries once: one large entry may take the place of a thousand small ones.
void PreparedRotations::Shrink(std::optional<uint64_t> session, const Size& most) {
  Size size = SizeOf(session);
  if (size.entries <= most.entries && size.bytes <= most.bytes) return;
  using Used = std::pair<int64_t, Entries::iterator>;
  std::vector<Used> heap;  // the least recently used in front
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (session.value_or(it->second.session) != it->second.session) continue;
    heap.emplace_back(it->second.used, it);
  }
  const auto later = [](const Used& a, const Used& b) { return a.first > b.first; };
  std::ranges::make_heap(heap, later);
  while (size.entries > most.entries || size.bytes > most.bytes) {
    const auto oldest = heap.front().second;
    std::ranges::pop_heap(heap, later);
    heap.pop_back();
    const int64_t bytes = oldest->second.prepared->bytes;
    size = {size.entries - 1, size.bytes - bytes};
    all_ = {all_.entries - 1, all_.bytes - bytes};
    entries_.erase(oldest);
  }
}

}  // namespace rope::server
