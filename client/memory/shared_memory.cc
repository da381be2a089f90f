#include "client/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

Status Unavailable(const char* call) {
  const int error = errno;
  const bool is_full = error == ENOMEM || error == ENOSPC || error == EFBIG || error == EMFILE;
  return MakeError(is_full ? Reason::kLimitExceeded : Reason::kWrongState,
                   absl::StrCat("memory to share: ", call), absl::StrCat("error ", error),
                   "memory");
}

int64_t PageBytes() {
  return sysconf(_SC_PAGESIZE);
}

// The memory of the machine or, if smaller, of the control group. A memfd is not bounded by the
// size of a file system: without this check the kernel would kill processes.
int64_t MemoryBytesMax() {
  const int64_t machine = sysconf(_SC_PHYS_PAGES) * PageBytes();
  std::ifstream file("/sys/fs/cgroup/memory.max");
  int64_t group = 0;
  return (file >> group) ? std::min(machine, group) : machine;  // "max" is not a number: no limit
}

}  // namespace

Result<std::unique_ptr<SharedMemory>> SharedMemory::CreateMemfd(int64_t bytes, Use use) {
  const char* const field = use == Use::kArena ? "arena_bytes" : "staged_bytes";
  if (bytes <= 0) {
    return InvalidField(field, bytes, "a number of bytes > 0");
  }
  if (bytes > MemoryBytesMax()) {
    return MakeError(Reason::kLimitExceeded, field, bytes,
                     absl::StrCat("at most ", MemoryBytesMax(), ", all memory that there is"));
  }
  proto::FileDescriptor file(memfd_create("rope_arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.ok()) return Unavailable("memfd_create");
  std::unique_ptr<SharedMemory> memory(new SharedMemory(std::move(file)));  // owned by memory
  const int64_t page = PageBytes();
  memory->bytes_ = (bytes + page - 1) / page * page;
  if (use == Use::kStaging) {
    if (ftruncate(memory->fd(), memory->bytes_) != 0) return Unavailable("ftruncate");
  } else if (const int error = posix_fallocate(memory->fd(), 0, memory->bytes_); error != 0) {
    // A file can be larger than the free space of its file system. Without allocated pages a later
    // write would then end the process with SIGBUS.
    errno = error;
    return Unavailable("posix_fallocate");
  }
  ROPE_RETURN_IF_ERROR(memory->Map(page, use == Use::kArena ? MAP_POPULATE : 0));
  if (fcntl(memory->fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Unavailable("F_ADD_SEALS");
  }
  return memory;
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::Import(const MemoryFile& file) {
  struct stat about {};
  if (fstat(file.fd, &about) != 0) return InvalidField("fd", file.fd, "an open file");
  if (file.offset < 0) return InvalidField("offset", file.offset, "0 or more");
  if (file.bytes <= 0) return InvalidField("bytes", file.bytes, "more than 0");
  if (file.offset > about.st_size || file.bytes > about.st_size - file.offset) {
    return InvalidField("bytes", absl::StrCat(file.bytes, " from ", file.offset),
                        absl::StrCat("an end within the file's ", about.st_size));
  }
  std::unique_ptr<SharedMemory> memory(  // owned by memory
      new SharedMemory(proto::FileDescriptor(fcntl(file.fd, F_DUPFD_CLOEXEC, 0))));
  if (!memory->file_.ok()) return Unavailable("F_DUPFD_CLOEXEC");
  memory->offset_ = file.offset;
  memory->bytes_ = file.bytes;
  memory->data_ = static_cast<std::byte*>(file.mapped);
  if (file.mapped != nullptr) return memory;
  // A file of huge pages is mapped from the start of one; st_blksize is their size.
  ROPE_RETURN_IF_ERROR(memory->Map(std::max<int64_t>(PageBytes(), about.st_blksize), 0));
  return memory;
}

SharedMemory::~SharedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

int64_t SharedMemory::file_bytes() const {
  struct stat about {};
  return fstat(fd(), &about) == 0 ? about.st_size : 0;
}

bool SharedMemory::is_sealed() const {
  const int seals = fcntl(fd(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

Status SharedMemory::Map(int64_t page, int populate) {
  const int64_t begin = offset_ / page * page;
  const int64_t skipped = offset_ - begin;
  mapping_bytes_ = static_cast<size_t>((skipped + bytes_ + page - 1) / page * page);
  void* const mapped =
      mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | populate, fd(), begin);
  if (mapped == MAP_FAILED) return Unavailable("mmap");
  mapping_ = mapped;
  data_ = static_cast<std::byte*>(mapped) + skipped;
  return {};
}

}  // namespace rope::client
