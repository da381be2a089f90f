// The memory regions that clients have registered, by session and id.
//
// Region: memory of a client on this host that requests read from and write to, in place. Two
// kinds:
//
//   memfd    sealed against shrinking, so that access through its mapping can never raise SIGBUS
//   process  all memory of this process, for a caller in it; it counts no bytes
//
// Threading:  Immutable. If the client writes to the bytes while a request uses them, values may be
//             torn; nothing else can go wrong.
// Ownership:  Owns the mapping of a memfd and releases it when destroyed. The holder of a region
//             may use it even if the region is no longer registered.
// Errors:     FAILED_PRECONDITION: a memfd without the seal, or of another kind or size.
//             OUT_OF_RANGE: past the region's end. Messages never contain the system's error text;
//             the log has that text.
#ifndef ROPE_SERVER_CLIENTS_REGIONS_H_
#define ROPE_SERVER_CLIENTS_REGIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/mutex.h"
#include "server/clients/admission.h"
#include "server/clients/limits.h"

namespace rope::server {

class Region {
 public:
  enum class Kind { kMemfd, kProcess };

  // Maps the whole `file`, whose size must be `bytes`.
  static absl::StatusOr<std::unique_ptr<Region>> MapMemfd(proto::FileDescriptor file,
                                                          uint64_t bytes);
  // Offsets are as proto/ipc/process_memory.h says.
  static std::unique_ptr<Region> OfProcess();
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Kind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }
  // The address of its first byte.
  char* mapped() const { return mapped_; }

  // OUT_OF_RANGE: [offset, offset + count) passes the end. `field` names the span in the message.
  absl::Status CheckSpan(uint64_t offset, uint64_t count, absl::string_view field) const;

 private:
  Region(Kind kind, uint64_t bytes, char* mapped) : kind_(kind), bytes_(bytes), mapped_(mapped) {}

  const Kind kind_;
  const uint64_t bytes_;
  char* const mapped_;
};

// RegionName: a region under one of its ids. Shared owners keep it alive:
//
//   registered    the table and the requests that named the id
//   unregistered  the requests that named the id, and earlier names of the region (KeepsBack)
//   destroyed     nothing uses the memory by this id or an earlier one; `released` runs
//
// Threading:  `set_released` and `KeepsBack` run under the table's lock, in Unregister. The
//             destructor runs on the thread that drops the last reference, never under a lock.
// Ownership:  Shares the region with its other names, and releases it before `released` runs.
class RegionName {
 public:
  // Runs once. Must not block.
  using Released = std::function<void()>;

  // `names` bounds the names of a session. REQUIRES: the caller acquired 1 of it for this name.
  RegionName(std::shared_ptr<const Region> region, std::shared_ptr<Budget> names)
      : region_(std::move(region)), names_(std::move(names)) {}
  ~RegionName() {
    region_.reset();
    names_->Give(1);
    if (released_) released_();
  }
  RegionName(const RegionName&) = delete;
  RegionName& operator=(const RegionName&) = delete;

  const std::shared_ptr<const Region>& region() const { return region_; }
  // A pointer to the region that keeps `name` alive.
  static std::shared_ptr<const Region> Hold(const std::shared_ptr<const RegionName>& name) {
    return {name, name->region_.get()};
  }

  // Sets the function that runs when the last owner has released this name.
  void set_released(Released released) { released_ = std::move(released); }
  // Keeps `later` alive at least as long as this name.
  void KeepsBack(std::shared_ptr<RegionName> later) { later_.push_back(std::move(later)); }

 private:
  std::shared_ptr<const Region> region_;
  const std::shared_ptr<Budget> names_;
  Released released_;
  std::vector<std::shared_ptr<RegionName>> later_;  // released after the destructor's body
};

// RegionTable: the memory regions of every session. A session is a connection of a Unix socket. It
// opens when the listener hands the socket to gRPC, it closes when the socket has closed, and its
// regions are unregistered with it.
//
// Region ids are random and belong to one session: no other session finds, lists or removes them.
// A session has one region, which lives until the last request that holds it is done, even if it
// was unregistered or its session has closed. The region may have several ids. A request holds the
// id that it names:
//
//   registered --- Unregister ---> in use ---- last request done ---> released
//   Find works                     Find fails (NOT_FOUND)             the callback has run
//
// The state belongs to an id, not to a region (RegionName, above). A request that arrives after
// Unregister names an id that no longer exists.
//
// Threading:  Thread-safe. Files are mapped and unmapped outside the lock.
// Ownership:  Shares each region with the callers of Find.
// Errors:     FAILED_PRECONDITION: shared memory is off, or the connection has no session.
//             PERMISSION_DENIED: a client of a proxy. NOT_FOUND: no such region in this session.
//             RESOURCE_EXHAUSTED: too many regions or bytes. Errors of Region.
// Limits:     Options. Regions and bytes count until the last request that uses them is done.

class RegionTable {
 public:
  struct Options {
    bool enabled = false;
    int64_t bytes_max = limits::kSharedMemoryBytesMax;
    int64_t session_bytes_max = limits::kSessionMemoryBytesMax;  // of its memfd
    int64_t regions_max = limits::kRegionsMax;                   // ids of one session
  };
  using Released = RegionName::Released;
  struct Listed {
    uint64_t id = 0;
    uint64_t bytes = 0;
  };
  struct Statistics {
    int64_t regions = 0;   // registered ids
    int64_t bytes = 0;     // including unregistered regions that are still in use
    int64_t rejected = 0;  // registrations refused while shared memory is enabled
  };

  explicit RegionTable(Options options);

  const Options& options() const { return options_; }

  // Opens the session of a connection that is about to be handed to gRPC. `session` is the number
  // that its requests carry (Request::session). `is_proxy`: its clients may be on other hosts.
  // Closes the earlier session of the same number, whose connection is gone. Returns a token that
  // is unique to this session.
  uint64_t OpenSession(uint64_t session, bool is_proxy = false);
  // Closes the session with that token, if it is still open.
  void CloseSession(uint64_t token);

  // Registers the memory that the session brings; returns the region's id.
  absl::StatusOr<uint64_t> RegisterMemfd(uint64_t session, proto::FileDescriptor file,
                                         uint64_t bytes);
  // For the session of a caller in this process. It is not listed.
  absl::StatusOr<uint64_t> RegisterProcess(uint64_t session);

  // A second id of the region `id`. Returns the same one while that one is registered.
  absl::StatusOr<uint64_t> AddId(uint64_t session, uint64_t id);

  // After OK, Find no longer returns the region for this id. `released`, if set, runs once, when no
  // request that named this id, or an id of the same region that was unregistered earlier, uses the
  // memory. It runs on this thread before the return, or later on any thread. Each request ends, so
  // that `released` always runs.
  absl::Status Unregister(uint64_t session, uint64_t id, Released released = nullptr);
  // The session's regions, ordered by id. Empty if there is no such session.
  std::vector<Listed> List(uint64_t session) const;
  // `field` names the id in errors.
  absl::StatusOr<std::shared_ptr<const Region>> Find(uint64_t session, uint64_t id,
                                                     absl::string_view field) const;

  Statistics statistics() const;

 private:
  // A region under one id.
  struct Registered {
    std::shared_ptr<RegionName> name;
    uint64_t other_id = 0;  // which AddId returned; 0: none
  };
  struct Session {
    uint64_t token = 0;
    bool is_proxy = false;
    std::shared_ptr<Budget> names;  // ids that are registered or still in use
    std::map<uint64_t, Registered> regions;
    std::vector<std::weak_ptr<RegionName>> unregistered;  // some have expired
  };

  // Gives the region to the session, under a new id. Charges its bytes to the server, until the
  // region is destroyed.
  absl::StatusOr<uint64_t> Insert(uint64_t session, std::unique_ptr<Region> region);

  const Options options_;
  const std::shared_ptr<Budget> budget_;
  std::atomic<int64_t> rejected_ = 0;

  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<uint64_t, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, uint64_t> by_token_ ABSL_GUARDED_BY(mutex_);  // token -> session
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_REGIONS_H_
