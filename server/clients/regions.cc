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
#include <utility>

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

std::unique_ptr<Region> Region::OfProcess() {
  return std::unique_ptr<Region>(new Region(  // owned by the result
      Kind::kProcess, proto::kProcessMemoryBytes, proto::ProcessMemory()));
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

// The lock: mutex_ guards the maps, and nothing slow happens under it. Mapping a file happens
// before it is taken. Destroying a region (munmap) or a name (its callback) happens after it is
// released: each function below moves what it removes into locals that are declared BEFORE the
// lock, so that they are destroyed after it. The thread that opens a session also registers its
// memory, before the session can close.

RegionTable::RegionTable(Options options)
    : options_(std::move(options)),
      budget_(std::make_shared<Budget>(static_cast<uint64_t>(options_.bytes_max))) {}

uint64_t RegionTable::OpenSession(uint64_t session, bool is_proxy) {
  Session opened;
  opened.token = Unguessable();
  opened.is_proxy = is_proxy;
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
  // Then every registration fails by configuration, which is not worth counting.
  if (!options_.enabled) return Off("region");
  const auto attempt = [&]() -> absl::StatusOr<uint64_t> {
    ROPE_ASSIGN_OR_RETURN(auto region, Region::MapMemfd(std::move(file), bytes));
    return Insert(session, std::move(region));
  };
  absl::StatusOr<uint64_t> id = attempt();
  if (!id.ok()) rejected_.fetch_add(1, std::memory_order_relaxed);
  return id;
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
// Requests that hold an id which was unregistered EARLIER may still write to the same region. Each
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
    for (const std::shared_ptr<RegionName>& name : earlier) name->KeepsBack(removed);
    removed->set_released(std::move(released));
  }
  unregistered.push_back(removed);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RegionTable::RegisterProcess(uint64_t session) {
  return Insert(session, Region::OfProcess());
}

std::vector<RegionTable::Listed> RegionTable::List(uint64_t session) const {
  std::vector<Listed> listed;
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return listed;
  for (const auto& [id, registered] : found->second.regions) {
    const Region& region = *registered.name->region();
    if (region.kind() == Region::Kind::kProcess) continue;
    listed.push_back({id, region.bytes()});
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

absl::StatusOr<uint64_t> RegionTable::Insert(uint64_t session, std::unique_ptr<Region> region) {
  const uint64_t bytes = region->kind() == Region::Kind::kProcess ? 0 : region->bytes();
  if (bytes > static_cast<uint64_t>(options_.session_bytes_max)) {
    return TooManyBytes(bytes, "--session_memory_bytes");
  }
  if (!budget_->TryAcquire(bytes)) return TooManyBytes(bytes, "--shared_memory_bytes");
  // The deleter runs when the last reference is dropped, which may be after the session has closed.
  // Created before the lock, so that a refused region is destroyed after it.
  const std::shared_ptr<const Region> charged(region.release(),
                                              [bytes, all = budget_](const Region* dropped) {
                                                delete dropped;  // owned by the last reference
                                                all->Give(bytes);
                                              });
  proto::WriterMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return MakeError(Reason::kWrongState, "region", "a connection that has closed", "an open one");
  }
  Session& open = found->second;
  if (open.is_proxy) {
    return MakeError(Reason::kPermission, "region", "a client of a proxy",
                     "a connection of the client's own");
  }
  ROPE_ASSIGN_OR_RETURN(auto name, NewName(charged, open.names));
  const uint64_t id = Unguessable();
  open.regions[id].name = std::move(name);
  return id;
}

}  // namespace rope::server
