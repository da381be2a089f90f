#include "server/models/spec_cache.h"

#include <utility>

#include "server/limits.h"

namespace rope::server {
namespace {

// The value with its key, which is kept twice, and its places in the tables.
int64_t CostOf(const std::string& key, const SpecCache::Value& value) {
  constexpr size_t kPlacesBytes = 256;
  return value.bytes + static_cast<int64_t>(2 * key.size() + kPlacesBytes);
}

}  // namespace

const SpecCache::Value* SpecCache::Find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::shared_ptr<const RopeEntry> SpecCache::FindId(const std::string& config_id) const {
  const auto found = by_config_id_.find(config_id);
  return found == by_config_id_.end() ? nullptr : found->second.entry;
}

SpecCache::Value SpecCache::Add(const std::string& key, Value value) {
  if (CostOf(key, value) > bytes_max_) return value;  // it would evict all others
  const auto [kept, is_new] = values_.try_emplace(key, std::move(value));
  Value result = kept->second;
  if (!is_new) return result;
  if (result.entry != nullptr) {
    Named& named = by_config_id_[result.entry->config_id()];
    if (named.specs++ == 0) named.entry = result.entry;
  }
  oldest_first_.push_back(key);
  bytes_ += CostOf(key, result);
  while (static_cast<int64_t>(oldest_first_.size()) > limits::kSpecsMax || bytes_ > bytes_max_) {
    Drop(oldest_first_.front());
    oldest_first_.pop_front();
  }
  return result;
}

void SpecCache::Forget(int64_t generation) {
  std::erase_if(oldest_first_, [&](const std::string& key) {
    if (values_.find(key)->second.generation != generation) return false;
    Drop(key);
    return true;
  });
}

void SpecCache::Drop(const std::string& key) {
  const auto kept = values_.find(key);
  if (kept->second.entry != nullptr) {
    const auto named = by_config_id_.find(kept->second.entry->config_id());
    if (--named->second.specs == 0) by_config_id_.erase(named);
  }
  bytes_ -= CostOf(key, kept->second);
  values_.erase(kept);
}

}  // namespace rope::server
