// PayloadLoans: slices that refer to the caller's tensor memory instead of a copy, and the count of
// those that gRPC has not let go of yet.
//
// Threading:  Lend and destruction on one thread; slices are given back from any.
// Ownership:  Borrows the bytes. REQUIRES: AllReturned() before the bytes or this object go.
#ifndef ROPE_CLIENT_CODEC_PAYLOAD_LOANS_H_
#define ROPE_CLIENT_CODEC_PAYLOAD_LOANS_H_

#include <grpcpp/support/slice.h>

#include <atomic>
#include <string_view>

namespace rope::client {

class PayloadLoans {
 public:
  PayloadLoans() = default;
  PayloadLoans(const PayloadLoans&) = delete;
  PayloadLoans& operator=(const PayloadLoans&) = delete;

  grpc::Slice Lend(std::string_view bytes) {
    outstanding_.fetch_add(1, std::memory_order_relaxed);
    return grpc::Slice(const_cast<char*>(bytes.data()), bytes.size(), &PayloadLoans::Return, this);
  }

  bool AllReturned() const { return outstanding_.load(std::memory_order_acquire) == 0; }

 private:
  static void Return(void* loans) {
    static_cast<PayloadLoans*>(loans)->outstanding_.fetch_sub(1, std::memory_order_release);
  }

  std::atomic<int> outstanding_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_PAYLOAD_LOANS_H_
