// TablePage: cos and sin as float32, for kPageRows consecutive positions or for rows that were
// built for one request.
//
// Row layout: `columns` cosines, then `columns` sines, both multiplied by the multiplier.
// Threading:  Immutable once shared; any thread.
// Ownership:  Shared. A RowRef is a view; the holder of a RowRef must also hold its page.
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
      : rows_(rows), columns_(columns), values_(std::move(values)) {}

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  const float* Cos(int64_t row) const { return values_.data() + row * 2 * columns_; }
  const float* Sin(int64_t row) const { return Cos(row) + columns_; }
  int64_t bytes() const { return static_cast<int64_t>(values_.size() * sizeof(float)); }

 private:
  int64_t rows_;
  int64_t columns_;
  std::vector<float> values_;
};

// The row of one token.
struct RowRef {
  const TablePage* page = nullptr;
  int64_t index = 0;
};

// The rows of some tokens, and the pages that hold these rows.
struct TokenRows {
  std::vector<RowRef> rows;                             // one for each token
  std::vector<std::shared_ptr<const TablePage>> pages;  // keeps every row alive
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_TABLE_PAGE_H_
