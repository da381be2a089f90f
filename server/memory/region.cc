#include "server/memory/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

constexpr char kFolder[] = "/dev/shm";
constexpr size_t kNameBytesMax = 200;
constexpr uint64_t kBlockBytes = 512;  // of stat's st_blocks

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
  region->populated_ = static_cast<uint64_t>(about.st_blocks) >= bytes / kBlockBytes;
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

Region::~Region() {
  if (mapped_ != nullptr) munmap(mapped_, bytes_);
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

}  // namespace rope::server
