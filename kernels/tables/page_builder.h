// BuildPage: builds a page, the cos/sin rows of kPageRows consecutive positions.
//
// Threading:  Pure function; any thread.
// Precision:  Each row is within 1e-14 of ExactCosSin before it is rounded once to float32. With
//             precision hf each row equals EagerCosSin.
#ifndef ROPE_KERNELS_TABLES_PAGE_BUILDER_H_
#define ROPE_KERNELS_TABLES_PAGE_BUILDER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

// Positions in a page.
inline constexpr int64_t kPageRows = 64;

// Rows that count for a row computed from its position, which takes a quarter of a page's time.
inline constexpr int64_t kExactRowRows = 16;

// What building `rows` rows costs: their bytes, and more if they take longer than their bytes say.
int64_t BuildBytes(const Frequencies& frequencies, int64_t rows);

// Builds the page of positions [first, first + kPageRows). `first` is a multiple of kPageRows.
// Tests pass other builders to the table cache.
using PageBuilder =
    std::function<absl::StatusOr<std::shared_ptr<TablePage>>(const Frequencies&, int64_t first)>;

// The rows of single positions, each computed from its position.
std::shared_ptr<TablePage> BuildRows(const Frequencies& frequencies,
                                     absl::Span<const int64_t> positions);

// The server's PageBuilder. Fails only by std::bad_alloc.
absl::StatusOr<std::shared_ptr<TablePage>> BuildPage(const Frequencies& frequencies, int64_t first);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_PAGE_BUILDER_H_
