// librope.so in a program that has a Protobuf of its own, linked into it, with a schema of the same
// name: as Python packages have one. RTLD_LOCAL keeps the two apart.
// Usage: other_protobuf LIBROPE.so
#include <dlfcn.h>
#include <google/protobuf/descriptor.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "rope/rope.h"
#include "rope/v1/rotate.pb.h"

namespace {

[[noreturn]] void Fail(const std::string& text) {
  std::fprintf(stderr, "other_protobuf: %s\n", text.c_str());
  std::exit(1);
}

// The program's own messages and their schema.
void UseOwnProtobuf() {
  rope::v1::RotateRequest request;
  request.set_request_id("own");
  rope::v1::RotateRequest copy;
  if (!copy.ParseFromString(request.SerializeAsString()) || copy.request_id() != "own") {
    Fail("the program's own message is broken");
  }
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  if (pool->FindFileByName("rope/v1/rotate.proto") == nullptr) Fail("no schema in its own pool");
}

bool IsMapped(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

template <typename Function>
Function* Find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) Fail(std::string("no ") + name);
  return reinterpret_cast<Function*>(found);
}

// The pair (1, 0) at position 1.
void Rotate(void* library) {
  const auto check = [&](rope_error* error) {
    if (error == nullptr) return;
    Fail(Find<decltype(rope_error_message)>(library, "rope_error_message")(error));
  };
  rope_client* client = nullptr;
  check(Find<decltype(rope_connect)>(library, "rope_connect")("inproc:", nullptr, &client));
  rope_prepared* prepared = nullptr;
  check(Find<decltype(rope_prepare)>(library, "rope_prepare")(
      client,
      R"({"rotate": {"rope": {"config": {"head_dim": 2}, "pairing": "PAIRING_HALF"}, "tensors": [
          {"role": "ROLE_Q", "layout": "SD",
           "array": {"dtype": "DTYPE_FP32", "shape": [1, 2]}}]}})",
      nullptr, &prepared));
  int64_t shape[] = {1, 2};
  int64_t position = 1;
  float pair[] = {1, 0};
  const DLTensor q = {pair, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0};
  const DLTensor start = {&position, {kDLCPU, 0}, 0, {kDLInt, 64, 1}, nullptr, nullptr, 0};
  const rope_argument arguments[] = {{"q", &q}, {"positions", &start}};
  check(Find<decltype(rope_rotate)>(library, "rope_rotate")(prepared, arguments, 2, nullptr));
  Find<decltype(rope_prepared_free)>(library, "rope_prepared_free")(prepared);
  Find<decltype(rope_close)>(library, "rope_close")(client);
  if (std::abs(pair[0] - std::cos(1.0)) > 1e-6 || std::abs(pair[1] - std::sin(1.0)) > 1e-6) {
    Fail("got " + std::to_string(pair[0]) + " " + std::to_string(pair[1]) + ", want cos 1 sin 1");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) Fail("want LIBROPE.so");
  if (IsMapped("libprotobuf")) Fail("the program's Protobuf is not its own");
  UseOwnProtobuf();
  for (int round = 0; round < 2; ++round) {  // the second time after a dlclose
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) Fail(dlerror());
    if (!IsMapped("libprotobuf")) Fail("the library brought no Protobuf");
    Rotate(library);
    dlclose(library);
  }
  UseOwnProtobuf();
}
