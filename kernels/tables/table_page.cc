#include "kernels/tables/table_page.h"

#include <atomic>

namespace rope::kernels {

uint64_t TablePage::NextId() {
  static std::atomic<uint64_t> next = 1;
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace rope::kernels
