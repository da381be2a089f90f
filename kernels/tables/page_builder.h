// BuildPage: the cos/sin rows of kPageRows consecutive positions.
//
// Threading:  Pure; any thread.
// Precision:  Each row as ExactCosSin, to 1e-14, rounded once to float32; with precision hf each
//             row as EagerCosSin.
#ifndef ROPE_KERNELS_TABLES_PAGE_BUILDER_H_
#define ROPE_KERNELS_TABLES_PAGE_BUILDER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

// Positions of a page.
inline constexpr int64_t kPageRows = 64;

// Builds the page of positions [first, first + kPageRows), the first of them a multiple of
// kPageRows. The table cache takes another one from tests.
using PageBuilder = std::function<absl::StatusOr<std::shared_ptr<const TablePage>>(
    const Frequencies&, int64_t first)>;

// The PageBuilder of the server. Never fails.
absl::StatusOr<std::shared_ptr<const TablePage>> BuildPage(const Frequencies& frequencies,
                                                           int64_t first);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_PAGE_BUILDER_H_
