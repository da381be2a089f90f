// RegionTable: the memory regions of every session. A session is a connection: it opens when the
// listener hands the socket on and closes when the socket has closed, and its regions go with it.
//
// Regions have unguessable ids and belong to one session: nobody else finds, lists or removes them.
// A region that a request holds lives until that request is done, also when it was unregistered
// or its session has closed. A region may have several ids; a request holds the one that it names
// (region_name.h), so that who unregisters an id can hear when the last request that named it is
// done. Requests that are still on their way then name an id that nobody knows.
//
// Threading:  Thread-safe. Files are opened, mapped and given back outside the lock.
// Ownership:  Shares regions with whoever found them.
// Errors:     FAILED_PRECONDITION: shared memory is off, or a connection that cannot have any.
//             PERMISSION_DENIED: a client on another host. ALREADY_EXISTS: the session has
//             registered that object before. NOT_FOUND: no such region in this session.
//             RESOURCE_EXHAUSTED: too many regions or bytes. As Region.
// Limits:     Options; bytes count whole files, and both count what is still in use.
#ifndef ROPE_SERVER_MEMORY_REGIONS_H_
#define ROPE_SERVER_MEMORY_REGIONS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "proto/mutex.h"
#include "server/limits.h"
#include "server/memory/budget.h"
#include "server/memory/peers.h"
#include "server/memory/region.h"
#include "server/memory/region_name.h"

namespace rope::server {

class RegionTable {
 public:
  struct Options {
    bool enabled = false;
    std::string prefix = "/rope_";  // of the names of POSIX objects
    int64_t bytes_max = limits::kSharedMemoryBytesMax;
    int64_t session_bytes_max = limits::kSessionMemoryBytesMax;
    int64_t regions_max = limits::kRegionsMax;  // ids of one session
  };
  using Released = RegionName::Released;
  struct Listed {
    uint64_t id = 0;
    uint64_t bytes = 0;
    Region::Kind kind = Region::Kind::kMemfd;
  };
  struct Statistics {
    int64_t regions = 0;   // ids
    int64_t bytes = 0;     // of whole files, those still in use too
    int64_t rejected = 0;  // by a table that is enabled
  };

  explicit RegionTable(Options options);

  const Options& options() const { return options_; }

  // The session of a connection that is being handed on, by the number that its requests name it
  // with (Request::session). Ends the one that had this number before: its connection is gone.
  // Returns a token that no other session ever has.
  uint64_t OpenSession(uint64_t session, const Peer& peer);
  // Closes the session of that token, if it is still open.
  void CloseSession(uint64_t token);

  // All of them return the region's id.
  absl::StatusOr<uint64_t> RegisterMemfd(uint64_t session, proto::FileDescriptor file,
                                         uint64_t bytes);
  absl::StatusOr<uint64_t> RegisterPosix(uint64_t session, const std::string& name, uint64_t offset,
                                         uint64_t bytes);

  // Another id of a region, beside `id`; the same one each time, for as long as it is registered.
  absl::StatusOr<uint64_t> AddId(uint64_t session, uint64_t id);

  // OK: nobody finds the region by that id any more; and `released`, if any, runs once no request
  // uses the memory that named this id or one that was unregistered before. That may be at once, on
  // this thread, or later on any other. Each request ends, so `released` always runs.
  absl::Status Unregister(uint64_t session, uint64_t id, Released released = nullptr);
  // By id; nothing for a session that does not exist.
  std::vector<Listed> List(uint64_t session) const;
  // `field` names the id in errors.
  absl::StatusOr<std::shared_ptr<const Region>> Find(uint64_t session, uint64_t id,
                                                     absl::string_view field) const;

  Statistics statistics() const;

 private:
  // A region under one id.
  struct Registered {
    std::shared_ptr<RegionName> name;
    uint64_t other_id = 0;  // that AddId has given; 0: none
  };
  struct Session {
    uint64_t token = 0;
    Peer peer;
    std::shared_ptr<Budget> budget;
    std::shared_ptr<Budget> names;  // ids that are registered or still in use
    std::map<uint64_t, Registered> regions;
    std::vector<std::weak_ptr<RegionName>> unregistered;  // some of them gone
  };

  // Who may register: the peer and the budgets of an open session.
  struct Account {
    uint64_t token = 0;
    Peer peer;
    std::shared_ptr<Budget> budget;
    std::shared_ptr<Budget> names;
  };
  absl::StatusOr<Account> FindAccount(uint64_t session) const;
  absl::StatusOr<uint64_t> Insert(uint64_t session, const Account& account,
                                  std::unique_ptr<Region> region);
  // Counts a refusal.
  absl::StatusOr<uint64_t> Counted(absl::StatusOr<uint64_t> id);
  absl::StatusOr<std::shared_ptr<const Region>> Charge(const Account& account,
                                                       std::unique_ptr<Region> region) const;

  const Options options_;
  const std::shared_ptr<Budget> budget_;
  std::atomic<int64_t> rejected_ = 0;

  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<uint64_t, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, uint64_t> by_token_ ABSL_GUARDED_BY(mutex_);  // token -> session
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_REGIONS_H_
