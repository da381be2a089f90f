// A LocalEngine with a client that shares memory with it.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_SUPPORT_REGION_ENGINE_H_
#define ROPE_TESTS_SUPPORT_REGION_ENGINE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/local_engine.h"
#include "tests/support/shared_memory.h"
#include "tests/support/wire_answer.h"

namespace rope::testing {

class RegionEngine {
 public:
  RegionEngine(uint64_t bytes, std::unique_ptr<kernels::Backend> backend,
               const server::Batcher::Options& options = {})
      : memory_(SharedMemory::Memfd(bytes)), engine_(std::move(backend), options) {
    id_ = engine_.clients().Of(kSession).regions().RegisterMemfd(memory_.Dup(), bytes).value();
  }

  uint64_t id() const { return id_; }
  WireAnswer Send(const v1::RotateRequest& request) {
    const std::string bytes = request.SerializeAsString();
    return Answer(engine_, std::vector<std::string_view>{bytes}, kSession);
  }
  void Write(const std::string& contents) {
    std::memcpy(memory_.data(), contents.data(), contents.size());
  }
  // Whether the region begins with `contents`.
  bool Has(const std::string& contents) const {
    return std::string_view(memory_.data(), contents.size()) == contents;
  }

 private:
  static constexpr uint64_t kSession = 7;
  const SharedMemory memory_;
  LocalEngine engine_;
  uint64_t id_ = 0;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_REGION_ENGINE_H_
