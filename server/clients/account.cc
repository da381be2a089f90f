#include "server/clients/account.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/clients/limits.h"
#include "server/error.h"

namespace rope::server {
namespace {

// What one owner may have of a budget.
enum class Share { kHalf, kHalfUnlessAlone, kAll };

struct Rule {
  Reason reason;
  absl::string_view field;  // empty: the caller's
  absl::string_view thing;  // counted one by one; empty: bytes
  absl::string_view flag;
  Share share;
};

// By Resource.
constexpr Rule kRules[kResourceCount] = {
    {Reason::kBudgetFull, "max_connections", "connection", "", Share::kHalf},
    {Reason::kQueueFull, "queue", "request", "", Share::kHalfUnlessAlone},
    {Reason::kBudgetFull, "", "", " (--memory_bytes)", Share::kHalfUnlessAlone},
    {Reason::kLimitExceeded, "region", "", " (--shared_memory_bytes)", Share::kAll},
    {Reason::kQueueFull, "queue", "call that takes long, number", "", Share::kHalf},
    {Reason::kBudgetFull, "stream", "Watch", "", Share::kHalf},
};

absl::Status Refused(const Rule& rule, absl::string_view field, int64_t amount, int64_t held,
                     absl::string_view of, const std::string& want) {
  const std::string got = rule.thing.empty()
                              ? absl::StrCat(amount, " bytes beside ", held, " of ", of)
                              : absl::StrCat(rule.thing, " ", held + 1, " of ", of);
  if (rule.reason == Reason::kLimitExceeded) return MakeError(rule.reason, field, got, want);
  return RetryLater(rule.reason, field, got, want);
}

}  // namespace

// The owner's count comes first, so that an owner beyond its bound never touches the budget that
// all owners share.
absl::Status Account::Take(Resource what, int64_t amount, absl::string_view field,
                           int64_t held_by_request) {
  const auto index = static_cast<size_t>(what);
  const Rule& rule = kRules[index];
  Budget& budget = accounts_.BudgetOf(what);
  auto& refused = accounts_.refused_[index];
  if (field.empty()) field = rule.field;
  if (what == Resource::kRequests) accounts_.NoteAsker(*this);
  const int64_t half = rule.share == Share::kAll ? budget.max() : (budget.max() + 1) / 2;
  proto::MutexLock lock(&mutex_);
  int64_t& held = held_[index];
  int64_t most = std::min(limits_[index], rule.share == Share::kHalf ? half : budget.max());
  if (amount > most - held_by_request) {
    refused.too_large.Add();
    return MakeError(Reason::kLimitExceeded, field,
                     absl::StrCat(amount, rule.thing.empty() ? " bytes to hold" : " ", rule.thing),
                     absl::StrCat("at most ", most - held_by_request, " for ", owner_,
                                  most == budget.max() ? rule.flag : ""));
  }
  if (amount > half - held && !accounts_.IsAlone()) most = std::min(most, half);
  if (most < budget.max() && amount > most - held) {
    refused.owner_share.Add();
    return Refused(rule, field, amount, held, owner_, absl::StrCat("at most ", most));
  }
  if (!budget.TryAcquire(amount)) {
    refused.full.Add();
    return Refused(rule, field, amount, budget.held(), "all clients",
                   absl::StrCat("at most ", budget.max(), rule.flag));
  }
  held += amount;
  return absl::OkStatus();
}

void Account::Give(Resource what, int64_t amount) {
  accounts_.BudgetOf(what).Give(amount);
  proto::MutexLock lock(&mutex_);
  held_[static_cast<size_t>(what)] -= amount;
}

void Account::SetLimits(int64_t requests, int64_t bytes) {
  proto::MutexLock lock(&mutex_);
  limits_[static_cast<size_t>(Resource::kRequests)] = requests;
  limits_[static_cast<size_t>(Resource::kRequestBytes)] = bytes;
}

Account::~Account() {
  accounts_.Forget(owner_);
}

absl::StatusOr<Place> TakePlace(const std::shared_ptr<Account>& account, Resource what) {
  ROPE_RETURN_IF_ERROR(account->Take(what, 1));
  return Place(nullptr, [account, what](const void*) { account->Give(what, 1); });
}

Accounts::Accounts(const Budgets& budgets, const Clock& clock)
    : clock_(clock), budgets_{Budget(budgets.connections),      Budget(budgets.requests),
                              Budget(budgets.request_bytes),    Budget(budgets.region_bytes),
                              Budget(limits::kControlCallsMax), Budget(limits::kWatchesMax)} {}

std::shared_ptr<Account> Accounts::Of(const std::string& owner) {
  proto::MutexLock lock(&mutex_);
  std::weak_ptr<Account>& known = accounts_[owner];
  std::shared_ptr<Account> account = known.lock();
  if (account == nullptr) known = account = std::make_shared<Account>(owner, *this);
  return account;
}

// Another account of the owner may have come since.
void Accounts::Forget(const std::string& owner) {
  proto::MutexLock lock(&mutex_);
  const auto found = accounts_.find(owner);
  if (found != accounts_.end() && found->second.expired()) accounts_.erase(found);
}

void Accounts::NoteAsker(const Account& asker) {
  if (last_asker_.load(std::memory_order_relaxed) == &asker) return;
  if (last_asker_.exchange(&asker) == nullptr) return;
  shared_until_ns_.store(absl::ToUnixNanos(clock_.Now() + kSharedFor));
}

BudgetUse Accounts::UseOf(Resource what, std::string_view name) const {
  const Refusals of = refusals(what);
  BudgetUse use = {
      name, BudgetOf(what).max(), held(what), {{"full", of.full}, {"owner_share", of.owner_share}}};
  if (what == Resource::kRequestBytes) use.refusals.push_back({"too_large", of.too_large});
  return use;
}

Permit::~Permit() {
  if (account_ == nullptr) return;
  if (!answered_) account_->Give(Resource::kRequests, 1);
  account_->Give(Resource::kRequestBytes, bytes_);
}

absl::Status Permit::Grow(int64_t bytes, absl::string_view what) {
  if (bytes <= 0) return absl::OkStatus();
  ROPE_RETURN_IF_ERROR(account_->Take(Resource::kRequestBytes, bytes, what, bytes_));
  bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Permit::Admit(Account& account, int64_t bytes, absl::string_view what) {
  if (admitted()) return Grow(bytes, what);
  ROPE_RETURN_IF_ERROR(account.Take(Resource::kRequests, 1));
  account_ = &account;
  absl::Status status = Grow(bytes, what);
  if (!status.ok()) *this = Permit();
  return status;
}

void Permit::Shrink(int64_t bytes) {
  if (bytes >= bytes_) return;
  account_->Give(Resource::kRequestBytes, bytes_ - bytes);
  bytes_ = bytes;
}

void Permit::KeepReply(int64_t bytes) {
  if (account_ == nullptr) return;
  account_->Give(Resource::kRequests, 1);
  answered_ = true;
  Shrink(bytes);
}

}  // namespace rope::server
