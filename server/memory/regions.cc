#include "server/memory/regions.h"

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

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "proto/ipc/process_memory.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr char kFolder[] = "/dev/shm";
constexpr size_t kNameBytesMax = 200;

absl::Status WrongMemfd(absl::string_view got) {
  return MakeError(Reason::kWrongState, "hello", got,
                   "a memfd of the stated size, sealed with F_SEAL_SHRINK");
}

absl::Status Shrank() {
  return MakeError(Reason::kWrongState, "region", "a shared memory object that was truncated",
                   "its registered size");
}

void LogSystemError(const char* what) {
  LogLimited(LogKind::kRegion, spdlog::level::info, "region: {}: {}", what, std::strerror(errno));
}

// Accepts only a memfd (tmpfs) that can never become shorter. Access to a mapped page behind the
// new end of a file, or to a huge page when no huge page is free, raises SIGBUS and would end the
// process.
absl::Status CheckMemfd(int file, uint64_t bytes, struct stat& about) {
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

absl::Status CheckName(const Region::PosixName& name) {
  bool legal = name.name.size() > 1 && name.name.size() <= kNameBytesMax && name.name[0] == '/' &&
               absl::StartsWith(name.name, name.prefix);
  for (size_t i = 1; legal && i < name.name.size(); ++i) {
    const char c = name.name[i];
    legal = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  }
  if (legal && name.name.find("..") == std::string::npos) return absl::OkStatus();
  return InvalidField("shm_name", "another name",
                      absl::StrCat("\"", name.prefix, "\" and up to ", kNameBytesMax,
                                   " bytes of a-z A-Z 0-9 . _ - in all, without \"..\""));
}

absl::StatusOr<proto::FileDescriptor> OpenObject(const Region::PosixName& name) {
  const proto::FileDescriptor folder(open(kFolder, O_PATH | O_DIRECTORY | O_CLOEXEC));
  proto::FileDescriptor file(openat(folder.get(), name.name.c_str() + 1,
                                    O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.ok()) return file;
  const int error = errno;
  LogSystemError("openat");
  if (error == ENOENT) {
    return MakeError(Reason::kRegionNotFound, "shm_name", "a name without an object",
                     "an existing object");
  }
  if (error == EMFILE || error == ENFILE) {
    return MakeError(Reason::kLimitExceeded, "shm_name", "one file more than the server may open",
                     "");
  }
  return MakeError(Reason::kPermission, "shm_name", "an object that the server may not open",
                   "one that it may");
}

absl::Status CheckObject(const struct stat& about, const Region::PosixName& name) {
  if (S_ISREG(about.st_mode) && about.st_nlink == 1 && about.st_uid == name.owner) {
    return absl::OkStatus();
  }
  LogLimited(LogKind::kRegion, spdlog::level::info,
             "region: object of uid {}, mode {:o}, {} links for a client of uid {}", about.st_uid,
             about.st_mode, about.st_nlink, name.owner);
  return MakeError(Reason::kPermission, "shm_name", "another file",
                   "a shared memory object that the caller owns, linked once");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Region>> Region::MapMemfd(proto::FileDescriptor file,
                                                         uint64_t bytes) {
  if (TouchingMayFail()) {
    return MakeError(Reason::kWrongState, "hello",
                     "a memfd on a system with vm.overcommit_memory=2", "one with 0 or 1");
  }
  struct stat about {};
  ROPE_RETURN_IF_ERROR(CheckMemfd(file.get(), bytes, about));
  // The mapping is not populated: the kernel charges a page to the process that touches it first,
  // which is the client if it has written its memory.
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    LogSystemError("mmap");
    return WrongMemfd("one that cannot be mapped to read and write");
  }
  std::unique_ptr<Region> region(new Region);  // owned by region
  region->kind_ = Kind::kMemfd;
  region->bytes_ = bytes;
  region->file_bytes_ = bytes;
  region->device_ = about.st_dev;
  region->inode_ = about.st_ino;
  region->mapped_ = static_cast<char*>(mapped);
  return region;
}

absl::StatusOr<std::unique_ptr<Region>> Region::OpenPosix(const PosixName& name, uint64_t offset,
                                                          uint64_t bytes) {
  ROPE_RETURN_IF_ERROR(CheckName(name));
  if (bytes == 0) return InvalidField("byte_size", 0, "more than 0 bytes");
  ROPE_ASSIGN_OR_RETURN(proto::FileDescriptor file, OpenObject(name));
  struct stat about {};
  if (fstat(file.get(), &about) != 0) {
    LogSystemError("fstat");
    return MakeError(Reason::kWrongState, "shm_name", "a file that cannot be read", "another");
  }
  ROPE_RETURN_IF_ERROR(CheckObject(about, name));
  const auto size = static_cast<uint64_t>(about.st_size);
  if (offset > size || bytes > size - offset) {
    return MakeError(Reason::kRegionOutOfRange, "byte_size",
                     absl::StrCat(bytes, " bytes from offset ", offset),
                     absl::StrCat("an end of at most ", size));
  }
  std::unique_ptr<Region> region(new Region);  // owned by region
  region->kind_ = Kind::kPosix;
  region->bytes_ = bytes;
  region->file_bytes_ = size;
  region->device_ = about.st_dev;
  region->inode_ = about.st_ino;
  region->file_ = std::move(file);
  region->begin_ = offset;
  return region;
}

std::unique_ptr<Region> Region::OfProcess() {
  std::unique_ptr<Region> region(new Region);  // owned by region
  region->kind_ = Kind::kProcess;
  region->bytes_ = proto::kProcessMemoryBytes;
  region->mapped_ = proto::ProcessMemory();
  return region;
}

Region::~Region() {
  if (kind_ == Kind::kMemfd && mapped_ != nullptr) munmap(mapped_, bytes_);
}

absl::Status Region::CheckSpan(uint64_t offset, uint64_t count, absl::string_view field) const {
  if (offset <= bytes_ && count <= bytes_ - offset) return absl::OkStatus();
  return MakeError(Reason::kRegionOutOfRange, field,
                   absl::StrCat(count, " bytes from offset ", offset),
                   absl::StrCat("an end of at most ", bytes_));
}

absl::Status Region::Read(uint64_t offset, absl::Span<char> out) const {
  if (mapped_ != nullptr) {
    std::memcpy(out.data(), mapped_ + offset, out.size());
    return absl::OkStatus();
  }
  auto at = static_cast<off_t>(begin_ + offset);
  while (!out.empty()) {
    const ssize_t got = pread(file_.get(), out.data(), out.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) LogSystemError("pread");
    if (got <= 0) return Shrank();
    out.remove_prefix(static_cast<size_t>(got));
    at += got;
  }
  return absl::OkStatus();
}

absl::Status Region::Write(uint64_t offset, absl::Span<const char> bytes) const {
  if (mapped_ != nullptr) {
    std::memcpy(mapped_ + offset, bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  // A write past the end would extend the object, and the kernel would charge the server for it.
  struct stat about {};
  const uint64_t end = begin_ + offset + bytes.size();
  if (fstat(file_.get(), &about) != 0 || static_cast<uint64_t>(about.st_size) < end) {
    return Shrank();
  }
  auto at = static_cast<off_t>(begin_ + offset);
  while (!bytes.empty()) {
    const ssize_t got = pwrite(file_.get(), bytes.data(), bytes.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) LogSystemError("pwrite");
    if (got <= 0) return Shrank();
    bytes.remove_prefix(static_cast<size_t>(got));
    at += got;
  }
  return absl::OkStatus();
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

RegionTable::RegionTable(Options options)
    : options_(std::move(options)),
      budget_(std::make_shared<Budget>(static_cast<uint64_t>(options_.bytes_max))) {}

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

absl::StatusOr<uint64_t> RegionTable::RegisterProcess(uint64_t session) {
  ROPE_ASSIGN_OR_RETURN(const Account account, FindAccount(session));
  return Insert(session, account, Region::OfProcess());
}

std::vector<RegionTable::Listed> RegionTable::List(uint64_t session) const {
  std::vector<Listed> listed;
  proto::ReaderMutexLock lock(&mutex_);
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return listed;
  for (const auto& [id, registered] : found->second.regions) {
    const Region& region = *registered.name->region();
    if (region.kind() == Region::Kind::kProcess) continue;
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
    return MakeError(Reason::kWrongState, "region", "a connection that is closing", "an open one");
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
  // The deleter runs when the last reference is dropped, which may be after the session has closed.
  // It unmaps the region and then returns the bytes to both budgets.
  return std::shared_ptr<const Region>(
      region.release(), [bytes, mine = account.budget, all = budget_](const Region* dropped) {
        delete dropped;  // owned by the last reference
        mine->Give(bytes);
        all->Give(bytes);
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
