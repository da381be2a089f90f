// ByteSource: bytes that are read at offsets, from a file or from memory, so that a reader of a
// large file touches only the parts that it needs.
//
// Threading:  const access from any thread.
// Ownership:  A MemorySource is a view; its bytes must outlive it. A FileSource owns its
//             descriptor.
// Errors:     FileSource: the status of the failed system call (NOT_FOUND, PERMISSION_DENIED, ...)
//             with the path; INVALID_ARGUMENT if the path is not a regular file.
#ifndef ROPE_KERNELS_CONFIG_BYTE_SOURCE_H_
#define ROPE_KERNELS_CONFIG_BYTE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace rope::kernels {

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  // Number of bytes.
  virtual uint64_t size() const = 0;
  // Copies the bytes from `offset` on into `bytes`. REQUIRES: offset + bytes.size() <= size().
  virtual absl::Status Read(uint64_t offset, absl::Span<char> bytes) const = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}

  uint64_t size() const override { return bytes_.size(); }
  absl::Status Read(uint64_t offset, absl::Span<char> bytes) const override;

 private:
  std::string_view bytes_;
};

class FileSource final : public ByteSource {
 public:
  static absl::StatusOr<std::unique_ptr<FileSource>> Open(const std::string& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  uint64_t size() const override { return size_; }
  // INVALID_ARGUMENT if the file has become shorter since Open.
  absl::Status Read(uint64_t offset, absl::Span<char> bytes) const override;

 private:
  FileSource(std::string path, int descriptor);

  std::string path_;
  int descriptor_;
  uint64_t size_ = 0;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_BYTE_SOURCE_H_
