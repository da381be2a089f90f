// Account: what one client holds of the server, over all its connections. Accounts: the accounts of
// all clients, and the budgets that they share. They reject; they never block.
//
//   Accounts::Of(owner) -> Account: Take, within the owner's bound and the budget -> Give
//
// A client is known by its owner: the peer of its connection (peers.h), what a trusted proxy says,
// or its identity (access.h). Of each budget, one owner may have half, so that others find room. Of
// requests and their bytes it may have all while no other owner has asked for kSharedFor. Bytes of
// regions have no bound for one owner.
//
// A request owns one Permit, which grows before each step that allocates memory. When the request
// is answered, the permit keeps only the bytes of the reply, until the client has taken it:
//
//   Admit -> admitted ---------- KeepReply -> answered -------- ~Permit -> nothing is held
//            1 request, n bytes               the reply's bytes
//            Grow: n increases
//
// Threading:  Thread-safe. An account has one lock, which guards all its counts. Budgets are
//             atomic. A Permit is confined to its owner.
// Ownership:  Accounts must outlive each Account, and an Account its Permits. An account that
//             nobody holds goes; a place holds its account.
// Errors:     RESOURCE_EXHAUSTED with the owner and the bound. With a retry delay: the bound is
//             reached now. Without: waiting cannot help.
#ifndef ROPE_SERVER_CLIENTS_ACCOUNT_H_
#define ROPE_SERVER_CLIENTS_ACCOUNT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clock.h"
#include "server/telemetry/metrics.h"

namespace rope::server {

// Budget: a counter with an upper bound, without a lock.
//
// Threading:  Thread-safe. A refusal is exact: at that moment the amount did not fit.
class Budget {
 public:
  explicit Budget(int64_t max) : max_(max) {}

  // False: less than `amount` is left; nothing is acquired.
  bool TryAcquire(int64_t amount) {
    int64_t held = held_.load();
    do {
      if (amount > max_ - held) return false;
    } while (!held_.compare_exchange_weak(held, held + amount));
    return true;
  }
  // REQUIRES: `amount` was acquired.
  void Give(int64_t amount) { held_.fetch_sub(amount); }

  int64_t held() const { return held_.load(); }
  int64_t max() const { return max_; }

 private:
  const int64_t max_;
  std::atomic<int64_t> held_ = 0;  // at most max_
};

// What an account counts.
enum class Resource {
  kConnections,
  kRequests,      // admitted and not yet answered
  kRequestBytes,  // of requests, and of replies that are not taken
  kRegionBytes,
  kLongCalls,  // of the control plane, on the side thread
  kWatches,    // of health
};
inline constexpr size_t kResourceCount = 6;

class Accounts;

class Account {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Accounts::Of makes accounts.
  Account(std::string owner, Accounts& accounts) : owner_(std::move(owner)), accounts_(accounts) {
    limits_.fill(kNoLimit);
  }
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  const std::string& owner() const { return owner_; }
  // Bounds of this owner, which apply in addition to those of every owner.
  void SetLimits(int64_t requests, int64_t bytes);

  // `field` names what asks for bytes in the error. `held_by_request`: what the same request holds
  // already, which waiting cannot free.
  absl::Status Take(Resource what, int64_t amount, absl::string_view field = {},
                    int64_t held_by_request = 0);
  // REQUIRES: `amount` was taken.
  void Give(Resource what, int64_t amount);

 private:
  using Amounts = std::array<int64_t, kResourceCount>;

  const std::string owner_;
  Accounts& accounts_;
  mutable proto::Mutex mutex_;
  Amounts held_ ABSL_GUARDED_BY(mutex_) = {};
  Amounts limits_ ABSL_GUARDED_BY(mutex_);
};

// One of a resource, until the last copy ends. Null: none.
using Place = std::shared_ptr<const void>;
absl::StatusOr<Place> TakePlace(const std::shared_ptr<Account>& account, Resource what);

class Accounts {
 public:
  // How long an owner's request bounds what others have.
  static constexpr absl::Duration kSharedFor = absl::Seconds(1);

  struct Budgets {
    int64_t connections = 0;
    int64_t requests = 0;
    int64_t request_bytes = 0;
    int64_t region_bytes = 0;
  };
  // The number of refusals, by reason.
  struct Refusals {
    Count full;         // the budget was used up
    Count owner_share;  // the owner had used its bound
    Count too_large;    // never admissible
  };

  // `clock` must outlive it.
  Accounts(const Budgets& budgets, const Clock& clock);

  std::shared_ptr<Account> Of(const std::string& owner);

  // What all owners hold.
  int64_t held(Resource what) const { return BudgetOf(what).held(); }
  Refusals refusals(Resource what) const { return refused_[static_cast<size_t>(what)]; }
  // The same with its limit and refusals, for metrics and GetServerInfo.
  BudgetUse UseOf(Resource what, std::string_view name) const;

 private:
  friend class Account;

  const Budget& BudgetOf(Resource what) const { return budgets_[static_cast<size_t>(what)]; }
  Budget& BudgetOf(Resource what) { return budgets_[static_cast<size_t>(what)]; }
  void Forget(const std::string& owner);
  // An owner asks for a request.
  void NoteAsker(const Account& asker);
  // Whether no other owner than the one that asks has asked for kSharedFor.
  bool IsAlone() const { return absl::ToUnixNanos(clock_.Now()) >= shared_until_ns_.load(); }

  const Clock& clock_;
  std::array<Budget, kResourceCount> budgets_;
  std::array<Refusals, kResourceCount> refused_;
  std::atomic<const Account*> last_asker_ = nullptr;  // to compare alone: it may have gone
  std::atomic<int64_t> shared_until_ns_ = std::numeric_limits<int64_t>::min();
  mutable proto::Mutex mutex_;
  absl::flat_hash_map<std::string, std::weak_ptr<Account>> accounts_
      ABSL_GUARDED_BY(mutex_);  // by owner
};

class Permit {
 public:
  Permit() = default;
  Permit(Permit&& other) noexcept { *this = std::move(other); }
  Permit& operator=(Permit&& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(bytes_, other.bytes_);
    std::swap(answered_, other.answered_);
    return *this;
  }
  ~Permit();

  // Adds `bytes` to the permit. If it holds nothing yet, takes a place for one request first.
  // `what` names the request's field in the error. If the bytes are refused, nothing changes.
  absl::Status Admit(Account& account, int64_t bytes, absl::string_view what);
  // The same. REQUIRES: admitted().
  absl::Status Grow(int64_t bytes, absl::string_view what);
  // Gives back all bytes beyond `bytes`.
  void Shrink(int64_t bytes);
  // The request is answered: returns its place, and all bytes beyond the `bytes` of its reply.
  // REQUIRES: called at most once.
  void KeepReply(int64_t bytes);

  bool admitted() const { return account_ != nullptr; }
  int64_t bytes() const { return bytes_; }

 private:
  Account* account_ = nullptr;
  int64_t bytes_ = 0;
  bool answered_ = false;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_ACCOUNT_H_
