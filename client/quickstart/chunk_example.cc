// The example of client/README.md: a cached chunk of K, moved by 1000 positions in the memory that
// the program has.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "rope/client.h"

int main(int argc, char** argv) {
  auto client = rope::client::Client::Connect(argc > 1 ? argv[1] : "unix:/run/rope/rope.sock");
  if (!client.ok()) return std::puts(client.status().ToString().c_str()), 1;

  // The program's pool of K: a memfd that cannot shrink. The server then maps the same pages.
  constexpr int64_t kTokens = 512, kHeads = 8, kHeadDim = 128;
  constexpr int64_t kBytes = kTokens * kHeads * kHeadDim * sizeof(float);
  const int fd = memfd_create("k_pool", MFD_ALLOW_SEALING);
  if (ftruncate(fd, kBytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) return 1;
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return 1;
  auto* k = static_cast<float*>(mapped);
  std::fill_n(k, kBytes / sizeof(float), 1.0f);  // as if rotated at positions 0 to 511
  const auto pool = client->ImportMemory({.fd = fd, .bytes = kBytes, .mapped = k});
  if (!pool.ok()) return std::puts(pool.status().ToString().c_str()), 1;
  std::printf("%s %s\n", Name(pool->transport().transport), pool->transport().reason.c_str());

  rope::client::RotateRequest request{.rope = {.model = "llama-3.1-8b"},
                                      .positions = {.start = 1000},
                                      .operation = rope::client::Operation::kReposition,
                                      .reposition = {{.from = {.start = 0}}}};
  request.tensors = {{.role = rope::client::Role::kK,
                      .layout = "SHD",
                      .shape = {kTokens, kHeads, kHeadDim},
                      .data = k,
                      .output = k}};
  const auto reply = client->Rotate(request);
  if (!reply.ok()) return std::puts(reply.status().ToString().c_str()), 1;
  std::printf("%.7f\n", k[0]);  // cos 1000 - sin 1000
}
