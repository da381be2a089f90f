// Errors of the library as exceptions of Python, which ropeserve/errors.py defines by reason.
//
// Threading:  With the GIL.
#ifndef ROPE_CLIENT_PYTHON_CORE_ERRORS_H_
#define ROPE_CLIENT_PYTHON_CORE_ERRORS_H_

#include <nanobind/nanobind.h>

#include <string>
#include <utility>

#include "rope/status.h"

namespace rope::python {

// An instance of the exception. REQUIRES: !status.ok().
nanobind::object ErrorOf(const Status& status);

// Throws that exception.
[[noreturn]] void Raise(const Status& status);
[[noreturn]] void RaiseInvalid(const std::string& field, const std::string& got,
                               const std::string& want);

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T Take(Result<T> result) {
  Check(result.status());
  return *std::move(result);
}

// Runs a call of the library without the GIL.
template <typename Call>
auto WithoutGil(const Call& call) {
  const nanobind::gil_scoped_release release;
  return call();
}

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_ERRORS_H_
