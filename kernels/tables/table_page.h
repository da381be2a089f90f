// TablePage: cos and sin of kPageRows consecutive positions (or of rows built for one request), as
// float32.
//
// Row layout: `columns` cosines, then `columns` sines, the multiplier included.
// Threading:  Immutable once built; any thread.
// Ownership:  Shared; a RowRef is a view, and whoever holds one holds the page too.
#ifndef ROPE_KERNELS_TABLES_TABLE_PAGE_H_
#define ROPE_KERNELS_TABLES_TABLE_PAGE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace rope::kernels {

class TablePage {
 public:
  // `values` is [rows][2 * columns].
  TablePage(int64_t rows, int64_t columns, std::vector<float> values)
      : id_(NextId()), rows_(rows), columns_(columns), values_(std::move(values)) {}

  // Of these values, in this process: no other page ever has it, while addresses are used again.
  uint64_t id() const { return id_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  const float* Cos(int64_t row) const { return values_.data() + row * 2 * columns_; }
  const float* Sin(int64_t row) const { return Cos(row) + columns_; }
  int64_t bytes() const { return static_cast<int64_t>(values_.size() * sizeof(float)); }

 private:
  static uint64_t NextId();

  uint64_t id_;
  int64_t rows_;
  int64_t columns_;
  std::vector<float> values_;
};

// The row of one token.
struct RowRef {
  const TablePage* page = nullptr;
  int64_t index = 0;
};

// The rows of a run of tokens, and the pages that they live in.
struct TokenRows {
  std::vector<RowRef> rows;                             // one for each token
  std::vector<std::shared_ptr<const TablePage>> pages;  // keeps every row alive
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_TABLE_PAGE_H_
