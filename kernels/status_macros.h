// Early return on error, for functions that return absl::Status or absl::StatusOr, or rope::Status
// or rope::Result.
#ifndef ROPE_KERNELS_STATUS_MACROS_H_
#define ROPE_KERNELS_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expr` from the enclosing function unless it is OK.
#define ROPE_RETURN_IF_ERROR(expr)                                        \
  do {                                                                    \
    if (auto rope_status = (expr); !rope_status.ok()) return rope_status; \
  } while (false)

// Assigns the value of the StatusOr or Result `expr` to `lhs`, or returns its status.
#define ROPE_ASSIGN_OR_RETURN(lhs, expr) \
  ROPE_ASSIGN_OR_RETURN_IMPL_(ROPE_STATUS_CONCAT_(rope_statusor_, __LINE__), lhs, expr)
#define ROPE_STATUS_CONCAT_INNER_(a, b) a##b
#define ROPE_STATUS_CONCAT_(a, b) ROPE_STATUS_CONCAT_INNER_(a, b)
#define ROPE_ASSIGN_OR_RETURN_IMPL_(result, lhs, expr) \
  auto result = (expr);                                \
  if (!result.ok()) return std::move(result).status(); \
  lhs = *std::move(result)

#endif  // ROPE_KERNELS_STATUS_MACROS_H_
