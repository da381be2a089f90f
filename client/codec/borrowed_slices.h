// BorrowedSlices: gRPC slices that refer to the caller's tensor memory instead of copying it. It
// counts the slices that gRPC has not released yet.
//
// Threading:  Borrow and the destructor run on one thread; gRPC releases slices on any thread.
// Ownership:  Borrows the bytes. REQUIRES: AllReturned() before the bytes or this object go.
#ifndef ROPE_CLIENT_CODEC_BORROWED_SLICES_H_
#define ROPE_CLIENT_CODEC_BORROWED_SLICES_H_

#include <grpcpp/support/slice.h>

#include <atomic>
#include <string_view>

namespace rope::client {

class BorrowedSlices {
 public:
  BorrowedSlices() = default;
  BorrowedSlices(const BorrowedSlices&) = delete;
  BorrowedSlices& operator=(const BorrowedSlices&) = delete;

  grpc::Slice Borrow(std::string_view bytes) {
    outstanding_.fetch_add(1, std::memory_order_relaxed);
    return grpc::Slice(const_cast<char*>(bytes.data()), bytes.size(), &BorrowedSlices::Return,
                       this);
  }

  bool AllReturned() const { return outstanding_.load(std::memory_order_acquire) == 0; }

 private:
  static void Return(void* borrowed) {
    static_cast<BorrowedSlices*>(borrowed)->outstanding_.fetch_sub(1, std::memory_order_release);
  }

  std::atomic<int> outstanding_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_BORROWED_SLICES_H_
