#include "server/clients/regions.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/ipc/process_memory.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

absl::Status WrongMemfd(absl::string_view got) {
  return MakeError(Reason::kWrongState, "hello", got,
                   "a memfd of the stated size, sealed with F_SEAL_SHRINK");
}

void LogSystemError(const char* what) {
  LogLimited(LogKind::kRegion, spdlog::level::info,
             LogLine(absl::StrCat("region: ", what, ": ", std::strerror(errno))));
}

// Accepts only a memfd (tmpfs) that can never become shorter. Access to a mapped page behind the
// new end of a file, or to a huge page when no huge page is free, raises SIGBUS and would end the
// process.
absl::Status CheckMemfd(int file, uint64_t bytes) {
  struct stat about {};
  struct statfs system {};
  if (fstat(file, &about) != 0 || fstatfs(file, &system) != 0) {
    LogSystemError("fstat");
    return WrongMemfd("another kind of descriptor");
  }
  if (!S_ISREG(about.st_mode) || system.f_type != TMPFS_MAGIC) {
    return WrongMemfd("another kind of file");
  }
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return WrongMemfd("one that can shrink");
  if (bytes == 0 || static_cast<uint64_t>(about.st_size) != bytes) {
    return WrongMemfd(absl::StrCat(bytes, " bytes for one of ", about.st_size));
  }
  return absl::OkStatus();
}

// With strict overcommit (vm.overcommit_memory=2) the first access to a page may fail, and a client
// can always punch pages out of the middle of its file.
bool TouchingMayFail() {
  const proto::FileDescriptor mode(open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC));
  char first = 0;
  return read(mode.get(), &first, 1) == 1 && first == '2';
}

// A random number other than 0, which stands for "none".
uint64_t Unguessable() {
  uint64_t number = 0;
  while (number == 0) {
    ROPE_CHECK(getrandom(&number, sizeof(number), 0) == sizeof(number));
  }
  return number;
}

absl::Status Off(absl::string_view field) {
  return MakeError(Reason::kSharedMemoryOff, field, "a region on a server without shared memory",
                   "--enable_shared_memory");
}

absl::Status NoSuchRegion(absl::string_view field, uint64_t id) {
  return MakeError(Reason::kRegionNotFound, field, id, "a region of this connection");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Region>> Region::MapMemfd(proto::FileDescriptor file,
                                                         uint64_t bytes) {
  if (TouchingMayFail()) {
    return MakeError(Reason::kWrongState, "hello",
                     "a memfd on a system with vm.overcommit_memory=2", "one with 0 or 1");
  }
  ROPE_RETURN_IF_ERROR(CheckMemfd(file.get(), bytes));
  // The mapping is not populated: the kernel charges a page to the process that touches it first,
  // which is the client if it has written its memory.
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    LogSystemError("mmap");
    return WrongMemfd("one that cannot be mapped to read and write");
  }
  return std::unique_ptr<Region>(
      new Region(Kind::kMemfd, bytes, static_cast<char*>(mapped)));  // owned by the result
}

std::unique_ptr<Region> Region::OfProcess(Kind kind) {
  char* const mapped = kind == Kind::kProcess ? proto::ProcessMemory() : nullptr;
  return std::unique_ptr<Region>(  // owned by the result
      new Region(kind, proto::kProcessMemoryBytes, mapped));
}

Region::~Region() {
  if (kind_ == Kind::kMemfd) munmap(mapped_, bytes_);
}

absl::Status Region::CheckSpan(uint64_t offset, uint64_t count, absl::string_view field) const {
  if (offset <= bytes_ && count <= bytes_ - offset) return absl::OkStatus();
  return MakeError(Reason::kRegionOutOfRange, field,
                   absl::StrCat(count, " bytes from offset ", offset),
                   absl::StrCat("an end of at most ", bytes_));
}

// The lock: mutex_ guards the maps, and nothing slow happens under it. Mapping a file happens
// before it is taken. Destroying a region (munmap) or a name (its callback) happens after it is
// released: each function below moves what it removes into locals that are declared BEFORE the
// lock, so that they are destroyed after it.

void Regions::Close() {
  std::map<uint64_t, Registered> closed;  // destroyed after the lock is released
  proto::MutexLock lock(&mutex_);
  closed.swap(regions_);
  totals_.regions.Add(-static_cast<int64_t>(closed.size()));
}

absl::StatusOr<uint64_t> Regions::RegisterMemfd(proto::FileDescriptor file, uint64_t bytes) {
  // Then every registration fails by configuration, which is not worth counting.
  if (!enabled()) return Off("region");
  const auto attempt = [&]() -> absl::StatusOr<uint64_t> {
    ROPE_ASSIGN_OR_RETURN(auto region, Region::MapMemfd(std::move(file), bytes));
    return Insert(std::move(region));
  };
  absl::StatusOr<uint64_t> id = attempt();
  if (!id.ok()) totals_.rejected.Add();
  return id;
}

absl::StatusOr<uint64_t> Regions::AddId(uint64_t id) {
  proto::MutexLock lock(&mutex_);
  const auto region = regions_.find(id);
  if (region == regions_.end()) return NoSuchRegion("region_id", id);
  if (regions_.contains(region->second.other_id)) return region->second.other_id;
  ROPE_ASSIGN_OR_RETURN(region->second.other_id, NewId(region->second.name->region));
  return region->second.other_id;
}

// How a fence works. Unregister drops its reference to the name; each request that named the id
// still holds one. The last of these runs `released`, in ~RegionName, outside any lock.
//
// Requests that hold an id which was unregistered EARLIER may still write to the same region. Each
// such name therefore keeps the removed name alive (`later`): the chain is released in order, and
// `released` waits for all of them. Expired entries of `unregistered_` are erased on the way.
absl::Status Regions::Unregister(uint64_t id, Released released) {
  // Destroyed after the lock is released: dropping the last reference runs a callback.
  std::shared_ptr<RegionName> removed;
  std::vector<std::shared_ptr<RegionName>> earlier;
  proto::MutexLock lock(&mutex_);
  const auto region = regions_.find(id);
  if (region == regions_.end()) return NoSuchRegion("region_id", id);
  removed = std::move(region->second.name);
  regions_.erase(region);
  totals_.regions.Add(-1);
  std::erase_if(unregistered_, [&earlier](const std::weak_ptr<RegionName>& name) {
    if (auto held = name.lock(); held != nullptr) earlier.push_back(std::move(held));
    return name.expired();
  });
  if (released) {
    for (const std::shared_ptr<RegionName>& name : earlier) name->later.push_back(removed);
    removed->released = std::move(released);
  }
  unregistered_.push_back(removed);
  return absl::OkStatus();
}

std::vector<Regions::Listed> Regions::List() const {
  std::vector<Listed> listed;
  proto::MutexLock lock(&mutex_);
  for (const auto& [id, registered] : regions_) {
    const Region& region = *registered.name->region;
    if (region.kind() == Region::Kind::kMemfd) listed.push_back({id, region.bytes()});
  }
  return listed;
}

absl::StatusOr<std::shared_ptr<const Region>> Regions::Find(uint64_t id,
                                                            absl::string_view field) const {
  if (!enabled()) return Off(field);
  proto::MutexLock lock(&mutex_);
  const auto region = regions_.find(id);
  if (region == regions_.end()) return NoSuchRegion(field, id);
  const std::shared_ptr<RegionName>& name = region->second.name;
  return std::shared_ptr<const Region>(name, name->region.get());  // keeps the name alive
}

absl::StatusOr<uint64_t> Regions::Insert(std::unique_ptr<Region> region) {
  const auto bytes =
      static_cast<int64_t>(region->kind() == Region::Kind::kMemfd ? region->bytes() : 0);
  if (is_proxy_) {
    return MakeError(Reason::kPermission, "region", "a client of a proxy",
                     "a connection of the client's own");
  }
  ROPE_RETURN_IF_ERROR(CheckAtMost(bytes, totals_.options.session_bytes_max, "region",
                                   " bytes of a file", " (--session_memory_bytes)"));
  ROPE_RETURN_IF_ERROR(account_->Take(Resource::kRegionBytes, bytes));
  // The deleter runs when the last reference is dropped, which may be after the connection has
  // ended. Created before the lock, so that a refused region is destroyed after it.
  const std::shared_ptr<const Region> counted(region.release(),
                                              [bytes, account = account_](const Region* dropped) {
                                                delete dropped;  // owned by the last reference
                                                account->Give(Resource::kRegionBytes, bytes);
                                              });
  proto::MutexLock lock(&mutex_);
  return NewId(counted);
}

absl::StatusOr<uint64_t> Regions::NewId(std::shared_ptr<const Region> region) {
  std::erase_if(unregistered_, [](const auto& name) { return name.expired(); });
  const auto ids = static_cast<int64_t>(regions_.size() + unregistered_.size());
  if (ids >= totals_.options.regions_max) {
    return MakeError(Reason::kLimitExceeded, "region", absl::StrCat("number ", ids + 1),
                     absl::StrCat("at most ", totals_.options.regions_max,
                                  " on a connection, with those still in use"));
  }
  const uint64_t id = Unguessable();
  regions_[id].name = std::make_shared<RegionName>(std::move(region));
  totals_.regions.Add();
  return id;
}

}  // namespace rope::server
