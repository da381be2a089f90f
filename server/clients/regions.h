// The memory regions that a connection has registered, by id.
//
// Region: memory of a client on this host that requests read from and write to, in place. Three
// kinds:
//
//   memfd    sealed against shrinking, so that access through its mapping can never raise SIGBUS
//   process  all memory of this process, for a caller in it; it counts no bytes
//   device   all memory of GPUs that this process can name, for a caller in it; it counts no bytes,
//            and no thread of the host reads it
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

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/mutex.h"
#include "server/clients/account.h"
#include "server/clients/limits.h"

namespace rope::server {

class Region {
 public:
  enum class Kind { kMemfd, kProcess, kDevice };

  // Maps the whole `file`, whose size must be `bytes`.
  static absl::StatusOr<std::unique_ptr<Region>> MapMemfd(proto::FileDescriptor file,
                                                          uint64_t bytes);
  // Of `kind` kProcess or kDevice. Offsets are as proto/ipc/process_memory.h says.
  static std::unique_ptr<Region> OfProcess(Kind kind = Kind::kProcess);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Kind kind() const { return kind_; }
  uint64_t bytes() const { return bytes_; }
  // The address of its first byte. Null: of a device, which no pointer of the host leads to.
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
//   registered    Regions and the requests that named the id
//   unregistered  the requests that named the id, and earlier names of the region (`later`)
//   destroyed     nothing uses the memory by this id or an earlier one; `released` runs
//
// Threading:  Unregister alone changes one, under the lock of Regions. The destructor runs on the
//             thread that drops the last reference, never under a lock.
// Ownership:  Shares the region with its other names, and releases it before `released` runs.
struct RegionName {
  explicit RegionName(std::shared_ptr<const Region> of) : region(std::move(of)) {}
  ~RegionName() {
    region.reset();
    if (released) released();
  }
  RegionName(const RegionName&) = delete;
  RegionName& operator=(const RegionName&) = delete;

  std::shared_ptr<const Region> region;
  std::function<void()> released;                  // runs once, and must not block; may be empty
  std::vector<std::shared_ptr<RegionName>> later;  // released after the destructor's body
};

// RegionTotals: what the regions of all connections have in common.
struct RegionTotals {
  struct Options {
    bool enabled = false;
    int64_t bytes_max = limits::kSharedMemoryBytesMax;           // of all clients
    int64_t session_bytes_max = limits::kSessionMemoryBytesMax;  // of the memfd of a connection
    int64_t regions_max = limits::kRegionsMax;                   // ids of a connection
  };

  explicit RegionTotals(Options opts) : options(opts) {}

  const Options options;
  Count regions;   // registered ids
  Count rejected;  // registrations refused while shared memory is enabled
};

// Regions: the memory regions of one connection, which end with it.
//
// Region ids are random: no other connection finds, lists or removes them. A connection has one
// region, which lives until the last request that holds it is done, even if it was unregistered or
// its connection has ended. The region may have several ids. A request holds the id that it names:
//
//   registered --- Unregister ---> in use ---- last request done ---> released
//   Find works                     Find fails (NOT_FOUND)             the callback has run
//
// The state belongs to an id, not to a region (RegionName, above). A request that arrives after
// Unregister names an id that no longer exists.
//
// Threading:  Thread-safe. Files are mapped and unmapped outside the lock.
// Ownership:  Shares each region with the callers of Find. The RegionTotals must outlive it.
// Errors:     FAILED_PRECONDITION: shared memory is off. PERMISSION_DENIED: a client of a proxy.
//             NOT_FOUND: no such region of this connection. RESOURCE_EXHAUSTED: too many regions or
//             bytes. Errors of Region.
// Limits:     RegionTotals::Options. Regions and bytes count until the last request that uses them
//             is done, the bytes in the account of the connection.

class Regions {
 public:
  using Released = std::function<void()>;
  struct Listed {
    uint64_t id = 0;
    uint64_t bytes = 0;
  };

  // `is_proxy`: its clients may be on other hosts.
  Regions(std::shared_ptr<Account> account, bool is_proxy, RegionTotals& totals)
      : account_(std::move(account)), is_proxy_(is_proxy), totals_(totals) {}

  bool enabled() const { return totals_.options.enabled; }

  // Registers the memory that the connection brings; returns the region's id.
  absl::StatusOr<uint64_t> RegisterMemfd(proto::FileDescriptor file, uint64_t bytes);
  // Register all memory of this process, and of its devices, for a caller in it. These regions are
  // not listed.
  absl::StatusOr<uint64_t> RegisterProcess() { return Insert(Region::OfProcess()); }
  absl::StatusOr<uint64_t> RegisterDevices() {
    return Insert(Region::OfProcess(Region::Kind::kDevice));
  }
  // Unregisters all, when the connection has ended.
  void Close();

  // A second id of the region `id`. Returns the same one while that one is registered.
  absl::StatusOr<uint64_t> AddId(uint64_t id);

  // After OK, Find no longer returns the region for this id. `released`, if set, runs once, when no
  // request that named this id, or an id of the same region that was unregistered earlier, uses the
  // memory. It runs on this thread before the return, or later on any thread. Each request ends, so
  // that `released` always runs.
  absl::Status Unregister(uint64_t id, Released released = nullptr);
  // Ordered by id.
  std::vector<Listed> List() const;
  // `field` names the id in errors.
  absl::StatusOr<std::shared_ptr<const Region>> Find(uint64_t id, absl::string_view field) const;

 private:
  // A region under one id.
  struct Registered {
    std::shared_ptr<RegionName> name;
    uint64_t other_id = 0;  // which AddId returned; 0: none
  };

  // Takes the region, under a new id. Its bytes count until it is destroyed.
  absl::StatusOr<uint64_t> Insert(std::unique_ptr<Region> region);
  // A new id of the region, if there may be one more.
  absl::StatusOr<uint64_t> NewId(std::shared_ptr<const Region> region)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Account> account_;
  const bool is_proxy_;
  RegionTotals& totals_;

  mutable proto::Mutex mutex_;
  std::map<uint64_t, Registered> regions_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<RegionName>> unregistered_
      ABSL_GUARDED_BY(mutex_);  // those still in use; some have expired
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_REGIONS_H_
