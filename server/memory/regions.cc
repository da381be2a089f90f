#include "server/memory/regions.h"

#include <sys/random.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"

namespace rope::server {
namespace {

// A random number other than 0, which stands for "none".
uint64_t Unguessable() {
  uint64_t number = 0;
  while (number == 0) {
    ROPE_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
  }
  return number;
}

absl::Status TooManyBytes(uint64_t bytes, absl::string_view flag) {
  return MakeError(Reason::kLimitExceeded, "region", absl::StrCat("a file of ", bytes, " bytes"),
                   absl::StrCat("at most what is left of ", flag));
}

absl::Status Off(absl::string_view field) {
  return MakeError(Reason::kSharedMemoryOff, field, "a region on a server without shared memory",
                   "--enable_shared_memory");
}

absl::Status SameFileTwice() {
  return MakeError(Reason::kRegionExists, "shm_name",
                   "an object that this connection has registered",
                   "each once: requests may use any part of it");
}

absl::Status NoSuchRegion(uint64_t id) {
  return MakeError(Reason::kRegionNotFound, "region_id", id, "a region of this connection");
}

// Makes a name of the region, if the session's budget of names has room for it.
absl::StatusOr<std::shared_ptr<RegionName>> NewName(std::shared_ptr<const Region> region,
                                                    const std::shared_ptr<Budget>& names) {
  if (names->TryAcquire(1)) return std::make_shared<RegionName>(std::move(region), names);
  return MakeError(
      Reason::kLimitExceeded, "region", absl::StrCat("number ", names->held() + 1),
      absl::StrCat("at most ", names->max(), " on a connection, with those still in use"));
}

}  // namespace

// The lock: mutex_ guards the maps, and nothing slow happens under it. Opening and mapping a file
// happens before it is taken. Destroying a region (munmap, close) or a name (its callback) happens
// after it is released: each function below moves what it removes into locals that are declared
// BEFORE the lock, so that they are destroyed after it.
//
// Registration therefore runs in three steps, of which only 1 and 3 take the lock:
//
//   1. FindAccount  copies the session's token, peer and budgets (reader lock)
//   2. Region::*    opens and checks the file (no lock)
//   3. Insert       charges the bytes, then adds the id if the session still has the same token
//                   (writer lock); otherwise the connection closed during step 2
//
// A token is compared and not the session's number, because the kernel reuses descriptor numbers.

RegionTable::RegionTable(Options options, std::shared_ptr<kernels::HostMemory> announced_to)
    : options_(std::move(options)),
      budget_(std::make_shared<Budget>(static_cast<uint64_t>(options_.bytes_max))),
      announced_to_(std::move(announced_to)) {}

uint64_t RegionTable::OpenSession(uint64_t session, const Peer& peer) {
  Session opened;
  opened.token = Unguessable();
  opened.peer = peer;
  opened.budget = std::make_shared<Budget>(static_cast<uint64_t>(options_.session_bytes_max));
  opened.names = std::make_shared<Budget>(static_cast<uint64_t>(options_.regions_max));
  const uint64_t token = opened.token;
  Session closed;  // destroyed after the lock is released
  proto::WriterMutexLock lock(&mutex_);
  closed = std::exchange(sessions_[session], std::move(opened));
  by_token_.erase(closed.token);
  by_token_[token] = session;
  return token;
}

void RegionTable::CloseSession(uint64_t token) {
  Session closed;  // destroyed after the lock is released
  proto::WriterMutexLock lock(&mutex_);
  const auto found = by_token_.find(token);
  if (found == by_token_.end()) return;
  const auto session = sessions_.find(found->second);
  closed = std::move(session->second);
  sessions_.erase(session);
  by_token_.erase(found);
}

absl::StatusOr<uint64_t> RegionTable::RegisterMemfd(uint64_t session, proto::FileDescriptor file,
                                                    uint64_t bytes) {
  const auto attempt = [&]() -> absl::StatusOr<uint64_t> {
    ROPE_ASSIGN_OR_RETURN(const Account account, FindAccount(session));
    ROPE_ASSIGN_OR_RETURN(auto region, Region::MapMemfd(std::move(file), bytes));
    return Insert(session, account, std::move(region));
  };
  return Counted(attempt());
}

absl::StatusOr<uint64_t> RegionTable::RegisterPosix(uint64_t session, const std::string& name,
                                                    uint64_t offset, uint64_t bytes) {
  const auto attempt = [&]() -> absl::StatusOr<uint64_t> {
    ROPE_ASSIGN_OR_RETURN(const Account account, FindAccount(session));
    // A TCP socket does not identify the client's user. Only objects of the server's own user are
    // then certain to be meant for it.
    const uid_t owner = account.peer.uid.value_or(geteuid());
    ROPE_ASSIGN_OR_RETURN(auto region,
                          Region::OpenPosix({name, options_.prefix, owner}, offset, bytes));
    return Insert(session, account, std::move(region));
  };
  return Counted(attempt());
}

absl::StatusOr<uint64_t> RegionTable::AddId(uint64_t session, uint64_t id) {
  proto::WriterMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return NoSuchRegion(id);
  auto& regions = found->second.regions;
  const auto region = regions.find(id);
  if (region == regions.end()) return NoSuchRegion(id);
  uint64_t& other_id = region->second.other_id;
  if (regions.contains(other_id)) return other_id;
  ROPE_ASSIGN_OR_RETURN(auto name, NewName(region->second.name->region(), found->second.names));
  other_id = Unguessable();
  regions[other_id].name = std::move(name);
  return other_id;
}

// How a fence works. The table drops its reference to the name; each request that named the id
// still holds one. The last of these runs `released`, in ~RegionName, outside any lock.
//
// Requests that hold an id which was unregistered EARLIER may still write to the same file. Each
// such name therefore keeps the removed name alive (KeepsBack): the chain is released in order, and
// `released` waits for all of them. Expired entries of `unregistered` are erased on the way.
absl::Status RegionTable::Unregister(uint64_t session, uint64_t id, Released released) {
  // Destroyed after the lock is released: dropping the last reference runs a callback.
  std::shared_ptr<RegionName> removed;
  std::vector<std::shared_ptr<RegionName>> earlier;
  proto::WriterMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return NoSuchRegion(id);
  const auto region = found->second.regions.find(id);
  if (region == found->second.regions.end()) return NoSuchRegion(id);
  removed = std::move(region->second.name);
  found->second.regions.erase(region);
  auto& unregistered = found->second.unregistered;
  std::erase_if(unregistered, [&earlier](const std::weak_ptr<RegionName>& name) {
    if (auto held = name.lock(); held != nullptr) earlier.push_back(std::move(held));
    return name.expired();
  });
  if (released) {
    for (const std::shared_ptr<RegionName>& name : earlier) {
      if (name->region()->SameFile(*removed->region())) name->KeepsBack(removed);
    }
    removed->set_released(std::move(released));
  }
  unregistered.push_back(removed);
  return absl::OkStatus();
}

std::vector<RegionTable::Listed> RegionTable::List(uint64_t session) const {
  std::vector<Listed> listed;
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return listed;
  for (const auto& [id, registered] : found->second.regions) {
    const Region& region = *registered.name->region();
    listed.push_back({id, region.bytes(), region.kind()});
  }
  return listed;
}

absl::StatusOr<std::shared_ptr<const Region>> RegionTable::Find(uint64_t session, uint64_t id,
                                                                absl::string_view field) const {
  if (!options_.enabled) return Off(field);
  {
    proto::ReaderMutexLock lock(&mutex_);
    const auto found = sessions_.find(session);
    if (found != sessions_.end()) {
      const auto region = found->second.regions.find(id);
      if (region != found->second.regions.end()) return RegionName::Hold(region->second.name);
    }
  }
  return MakeError(Reason::kRegionNotFound, field, id, "a region of this connection");
}

RegionTable::Statistics RegionTable::statistics() const {
  Statistics statistics;
  statistics.bytes = static_cast<int64_t>(budget_->held());
  statistics.rejected = rejected_.load();
  proto::ReaderMutexLock lock(&mutex_);
  for (const auto& [session, state] : sessions_) {
    statistics.regions += static_cast<int64_t>(state.regions.size());
  }
  return statistics;
}

absl::StatusOr<RegionTable::Account> RegionTable::FindAccount(uint64_t session) const {
  if (!options_.enabled) {
    return Off("region");
  }
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return MakeError(Reason::kWrongState, "region",
                     "a connection that is closing or cannot be watched", "an open one");
  }
  if (!found->second.peer.local) {
    return MakeError(Reason::kPermission, "region", "a client on another host",
                     "a client on the server's host");
  }
  const Session& open = found->second;
  return Account{open.token, open.peer, open.budget, open.names};
}

absl::StatusOr<uint64_t> RegionTable::Counted(absl::StatusOr<uint64_t> id) {
  // With shared memory off every registration fails by configuration, which is not worth counting.
  if (!id.ok() && options_.enabled) rejected_.fetch_add(1, std::memory_order_relaxed);
  return id;
}

// Takes no lock: budgets are atomic counters. The session's is acquired first and given back if the
// server's is full.
absl::StatusOr<std::shared_ptr<const Region>> RegionTable::Charge(
    const Account& account, std::unique_ptr<Region> region) const {
  const uint64_t bytes = region->file_bytes();
  if (!account.budget->TryAcquire(bytes)) return TooManyBytes(bytes, "--session_memory_bytes");
  if (!budget_->TryAcquire(bytes)) {
    account.budget->Give(bytes);
    return TooManyBytes(bytes, "--shared_memory_bytes");
  }
  std::shared_ptr<kernels::HostMemory> announced_to;
  if (region->mapped() != nullptr && region->populated()) announced_to = announced_to_;
  if (announced_to != nullptr) announced_to->Add(region->mapped(), static_cast<int64_t>(bytes));
  // The deleter runs when the last reference is dropped, which may be after the session has closed.
  // It unmaps the region, once the device has let go of it, and then returns the bytes to both
  // budgets.
  return std::shared_ptr<const Region>(
      region.release(),
      [bytes, mine = account.budget, all = budget_, announced_to](const Region* dropped) {
        const auto destroy = [dropped, bytes, mine, all] {
          delete dropped;  // owned by the last reference
          mine->Give(bytes);
          all->Give(bytes);
        };
        if (announced_to == nullptr) {
          destroy();
        } else {
          announced_to->Remove(dropped->mapped(), destroy);
        }
      });
}

absl::StatusOr<uint64_t> RegionTable::Insert(uint64_t session, const Account& account,
                                             std::unique_ptr<Region> region) {
  // Created before the lock, so that a refused region is destroyed after it.
  ROPE_ASSIGN_OR_RETURN(std::shared_ptr<const Region> charged, Charge(account, std::move(region)));
  ROPE_ASSIGN_OR_RETURN(const std::shared_ptr<RegionName> name,
                        NewName(std::move(charged), account.names));
  proto::WriterMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.token != account.token) {
    return MakeError(Reason::kWrongState, "region", "a connection that has closed", "an open one");
  }
  auto& regions = found->second.regions;
  for (const auto& [id, other] : regions) {
    if (other.name->region()->SameFile(*name->region())) return SameFileTwice();
  }
  const uint64_t id = Unguessable();
  regions[id].name = name;
  return id;
}

}  // namespace rope::server
