// A client that calls Rotate through a ring, as its protocol says and without the client library;
// its tensors are those of region_client.h.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_RING_CLIENT_H_
#define ROPE_TESTS_SUPPORT_RING_CLIENT_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "tests/support/raw_ring.h"
#include "tests/support/region_client.h"

namespace rope::testing {

// A connection whose memfd is registered and whose ring is served.
class RingClient {
 public:
  explicit RingClient(const std::string& path, size_t bytes = 1 << 20)
      : region_(path, SharedMemory::Memfd(bytes), &ring_.memory()) {
    proto::FileDescriptor doorbell = region_.TakeDoorbell();
    EXPECT_TRUE(doorbell.ok()) << "the ring is not served";
    ring_.set_doorbell(std::move(doorbell));
  }

  const RawRing& ring() const { return ring_; }
  const SharedMemory& memory() const { return region_.memory(); }
  uint64_t id() const { return region_.id(); }
  v1::RopeService::Stub& stub() { return region_.stub(); }

  // One call; as Text() of one over gRPC, or "closed".
  std::string Call(const std::string& message, uint32_t slot = 0,
                   v1::RotateResponse* response = nullptr) const {
    ring_.Send(slot, message);
    return Await(slot, response);
  }
  std::string Rotate(const v1::RotateRequest& request, uint32_t slot = 0,
                     v1::RotateResponse* response = nullptr) const {
    return Call(request.SerializeAsString(), slot, response);
  }
  std::string Await(uint32_t slot, v1::RotateResponse* response = nullptr) const {
    if (!ring_.Await(slot)) return "closed";
    v1::RotateResponse ignored;
    v1::RotateResponse& reply = response != nullptr ? *response : ignored;
    EXPECT_TRUE(reply.ParseFromString(ring_.MessageIn(slot)));
    const uint32_t code = ring_.CodeIn(slot);
    EXPECT_EQ(static_cast<uint32_t>(reply.error().code()), code);
    return code == 0 ? "OK" : absl::StrCat(code, " ", reply.error().message());
  }

  // Rotates `sample` in place at `offset` and says whether that was right.
  bool RotatesRight(const Sample& sample = {}, uint64_t offset = 0, uint32_t slot = 0) const {
    sample.Fill(memory().As<float>(offset));
    const std::string answer = Rotate(sample.InPlace(id(), offset), slot);
    EXPECT_EQ(answer, "OK");
    return answer == "OK" && sample.Error(memory().As<float>(offset)) < 2e-6;
  }

 private:
  RawRing ring_;
  RegionClient region_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_RING_CLIENT_H_
