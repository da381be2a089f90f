#include "server/models/registered_counts.h"

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {
namespace {

absl::Status TooManyModels(int64_t number, int64_t max, absl::string_view whose) {
  return MakeError(Reason::kLimitExceeded, "name",
                   absl::StrCat("registered model number ", number, whose),
                   absl::StrCat("at most ", max));
}

absl::Status TooManyBytes(int64_t bytes, int64_t beside, int64_t max, absl::string_view whose) {
  return MakeError(Reason::kLimitExceeded, "rope",
                   absl::StrCat(bytes, " bytes of memory in addition to ", beside,
                                " of registered models", whose),
                   absl::StrCat("at most ", max));
}

}  // namespace

absl::Status RegisteredCounts::Add(const std::string& owner, int64_t bytes) {
  const auto found = by_owner_.find(owner);
  const Count own = found == by_owner_.end() ? Count() : found->second;
  constexpr char kOwn[] = " of this client";
  if (all_.models >= limits::kRegisteredModelsMax) {
    return TooManyModels(all_.models + 1, limits::kRegisteredModelsMax, "");
  }
  if (own.models >= limits::kOwnersModelsMax) {
    return TooManyModels(own.models + 1, limits::kOwnersModelsMax, kOwn);
  }
  if (bytes > bytes_max_ - all_.bytes) {
    return TooManyBytes(bytes, all_.bytes, bytes_max_, "");
  }
  if (bytes > bytes_max_ / 2 - own.bytes) {
    return TooManyBytes(bytes, own.bytes, bytes_max_ / 2, kOwn);
  }
  all_ = {all_.models + 1, all_.bytes + bytes};
  by_owner_[owner] = {own.models + 1, own.bytes + bytes};
  return absl::OkStatus();
}

void RegisteredCounts::Remove(const std::string& owner, int64_t bytes) {
  all_ = {all_.models - 1, all_.bytes - bytes};
  const auto found = by_owner_.find(owner);
  Count& own = found->second;
  own = {own.models - 1, own.bytes - bytes};
  if (own.models == 0) by_owner_.erase(found);
}

}  // namespace rope::server
