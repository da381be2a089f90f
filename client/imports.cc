#include "client/imports.h"

#include <algorithm>
#include <utility>

namespace rope::client {

std::shared_ptr<void> Imports::Add(std::shared_ptr<Connector> connector) {
  const Connector* const added = connector.get();
  const std::shared_ptr<ArenaMemory> memory = connector->arena();
  {
    const proto::MutexLock lock(&mu_);
    connectors_.push_back(std::move(connector));
    any_.store(true, std::memory_order_relaxed);
  }
  // The connection may go first; the memory stays.
  return {nullptr, [imports = weak_from_this(), added, memory](void*) {
            const auto live = imports.lock();
            if (live == nullptr) return;
            std::shared_ptr<Connector> removed;  // closed after the lock is released
            const proto::MutexLock lock(&live->mu_);
            const auto found =
                std::find_if(live->connectors_.begin(), live->connectors_.end(),
                             [added](const auto& one) { return one.get() == added; });
            removed = std::move(*found);
            live->connectors_.erase(found);
            live->any_.store(!live->connectors_.empty(), std::memory_order_relaxed);
          }};
}

std::shared_ptr<Connector> Imports::Find(const RotateRequest& request) const {
  if (!any_.load(std::memory_order_relaxed) || request.tensors.empty()) return nullptr;
  const proto::MutexLock lock(&mu_);
  for (const std::shared_ptr<Connector>& connector : connectors_) {
    const auto holds = [&memory = *connector->arena()](const void* data) {
      return data == nullptr || memory.OffsetOf(data, 1).has_value();
    };
    const auto lies_there = [&holds](const TensorView& tensor) {
      return tensor.data != nullptr && holds(tensor.data) && holds(tensor.output);
    };
    if (std::all_of(request.tensors.begin(), request.tensors.end(), lies_there)) return connector;
  }
  return nullptr;
}

std::vector<std::shared_ptr<Connector>> Imports::All() const {
  const proto::MutexLock lock(&mu_);
  return connectors_;
}

}  // namespace rope::client
