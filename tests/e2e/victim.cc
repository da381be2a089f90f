// rope_victim regions|ring PATH: a client of the Unix socket PATH that rotates until it is killed.
// Says "rotating" once requests of its own are under way.
#include <cstdio>
#include <string_view>

#include "tests/support/region_client.h"
#include "tests/support/ring_client.h"
#include "tests/support/rotate_stream.h"

namespace rope::testing {
namespace {

void SayRotating() {
  std::printf("rotating\n");
  std::fflush(stdout);
}

// In its memory, in place and into another part of it, on one stream.
void RotateInRegions(const char* path) {
  const Sample large = {.tokens = 8000, .heads = 64};
  RegionClient client(path, 2 * large.bytes());
  v1::RotateRequest elsewhere = large.Request(client.id(), 0);
  PlaceOutput(client.id(), large.bytes(), elsewhere);
  grpc::ClientContext context;
  const auto stream = OpenStream(client.stub(), context);
  v1::RotateResponse response;
  for (int i = 0;; ++i) {
    stream->Write(large.InPlace(client.id(), 0));
    stream->Write(elsewhere);
    if (i > 0 && !stream->Read(&response)) return;
    if (i == 2) SayRotating();
  }
}

// Keeps every slot of its ring busy.
void RotateOnRing(const char* path) {
  const Sample large = {.tokens = 400, .heads = 64};
  const RingClient client(path, large.bytes());
  const std::string message = large.InPlace(client.id(), 0).SerializeAsString();
  for (uint32_t slot = 0; slot < proto::kRingSlots; ++slot) client.ring().Send(slot, message);
  for (uint32_t i = 0;; ++i) {
    const uint32_t slot = i % proto::kRingSlots;
    if (!client.ring().Await(slot)) return;
    client.ring().Send(slot, message);
    if (i == 2) SayRotating();
  }
}

}  // namespace
}  // namespace rope::testing

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool on_ring = std::string_view(argv[1]) == "ring";
  (on_ring ? rope::testing::RotateOnRing : rope::testing::RotateInRegions)(argv[2]);
  return 1;  // the server has ended the connection
}
