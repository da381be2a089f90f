#include "client/codec/prepared_requests.h"

#include <algorithm>
#include <utility>

namespace rope::client {
namespace {

constexpr int kQuestionsMax = 10;  // later ones wait no longer: 1024 requests

// Whether the same question may get another answer.
bool MayPass(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         status.code() == StatusCode::kDeadlineExceeded ||
         status.code() == StatusCode::kCancelled || status.detail().retry_delay_ms > 0;
}

}  // namespace

PreparedUse PreparedRequests::UseOf(const RotateRequest& request) {
  if (request.prepared.has_value()) return UseOfRotation(*request.prepared);
  if (!finds_repeats_ || request.rows.has_value()) return {};
  return UseOfRepeat(request);
}

// An entry that is not there, or no longer, starts with the id of the rotation: it may be right on
// this server too.
PreparedUse PreparedRequests::UseOfRotation(const PreparedRotation& rotation) {
  const std::shared_ptr<const PreparedState>& state = PreparedState::Of(rotation);
  const proto::MutexLock lock(&mu_);
  if (Entry* entry = Find(state->preparation.get()); entry != nullptr) return UseOf(*entry);
  return UseOf(Add({.preparation = state->preparation,
                    .id = std::shared_ptr<const std::string>(state, &state->id)}));
}

// A new request is copied without the lock. Another thread may have added an equal one meanwhile;
// the older of two equal entries is the one that is found, and the other goes in time.
PreparedUse PreparedRequests::UseOfRepeat(const RotateRequest& request) {
  {
    const proto::MutexLock lock(&mu_);
    if (Entry* entry = FindEqual(request); entry != nullptr) return UseOf(*entry);
  }
  auto preparation = Preparation::Create(request);
  if (!preparation.ok()) return {};  // encoding it fails, too
  const proto::MutexLock lock(&mu_);
  return UseOf(Add({.preparation = *std::move(preparation)}));
}

PreparedUse PreparedRequests::UseOf(Entry& entry) {
  entry.last_used = ++uses_;
  if (entry.id != nullptr) return {.preparation = entry.preparation, .id = entry.id};
  if (entry.is_refused) return {.preparation = entry.preparation};
  --entry.whole_until_due;
  return {.preparation = entry.preparation, .is_due = entry.whole_until_due <= 0};
}

PreparedRequests::Entry* PreparedRequests::Find(const Preparation* preparation) {
  const auto it = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.preparation.get() == preparation; });
  return it == entries_.end() ? nullptr : &*it;
}

PreparedRequests::Entry* PreparedRequests::FindEqual(const RotateRequest& request) {
  const auto it = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.preparation->Matches(request); });
  return it == entries_.end() ? nullptr : &*it;
}

PreparedRequests::Entry& PreparedRequests::Add(Entry entry) {
  if (entries_.size() < kEntriesMax) return entries_.emplace_back(std::move(entry));
  Entry& oldest = *std::ranges::min_element(entries_, {}, &Entry::last_used);
  oldest = std::move(entry);
  return oldest;
}

void PreparedRequests::Postpone(Entry& entry) {
  entry.whole_until_due = int64_t{1} << std::min(entry.questions, kQuestionsMax);
}

bool PreparedRequests::TakeTurn(const PreparedUse& use) {
  if (!use.is_due) return false;
  const proto::MutexLock lock(&mu_);
  Entry* entry = Find(use.preparation.get());
  if (entry == nullptr || entry->id != nullptr || entry->is_asking || entry->is_refused ||
      entry->whole_until_due > 0) {
    return false;
  }
  entry->is_asking = true;
  return true;
}

void PreparedRequests::NoteAnswer(const std::shared_ptr<const Preparation>& preparation,
                                  const Result<std::shared_ptr<const PreparedState>>& answer) {
  const proto::MutexLock lock(&mu_);
  Entry* entry = Find(preparation.get());
  if (entry == nullptr) return;
  entry->is_asking = false;
  ++entry->questions;
  if (answer.ok()) {
    entry->id = std::shared_ptr<const std::string>(*answer, &(*answer)->id);
  } else if (MayPass(answer.status())) {
    Postpone(*entry);
  } else {
    entry->is_refused = true;
  }
}

void PreparedRequests::NoteForgotten(const PreparedUse& use) {
  const proto::MutexLock lock(&mu_);
  Entry* entry = Find(use.preparation.get());
  if (entry == nullptr || entry->id != use.id) return;  // gone, or prepared again already
  entry->id = nullptr;
  Postpone(*entry);
}

}  // namespace rope::client
