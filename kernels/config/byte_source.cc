#include "kernels/config/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace rope::kernels {

absl::Status MemorySource::Read(uint64_t offset, absl::Span<char> bytes) const {
  if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileSource>> FileSource::Open(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, path);
  std::unique_ptr<FileSource> source(new FileSource(path, descriptor));  // closes the descriptor
  struct stat properties = {};
  if (fstat(descriptor, &properties) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(properties.st_mode)) {
    return InvalidField(path, "a directory or a device", "a regular file");
  }
  source->size_ = static_cast<uint64_t>(properties.st_size);
  return source;
}

FileSource::FileSource(std::string path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

FileSource::~FileSource() {
  close(descriptor_);
}

absl::Status FileSource::Read(uint64_t offset, absl::Span<char> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, path_);
    if (got == 0) {
      return InvalidField(path_, StrCat(offset, " bytes"),
                          StrCat(size_, ", as many as when it was opened"));
    }
    bytes.remove_prefix(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace rope::kernels
