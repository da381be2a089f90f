// What the module uses of the interpreter: errors of the library as its exceptions, which
// ropeserve/errors.py defines by reason, and names. A caller keeps a name in a static variable,
// because a look-up takes less time then.
//
// Threading:  With the GIL.
#ifndef ROPE_CLIENT_PYTHON_CORE_INTERPRETER_H_
#define ROPE_CLIENT_PYTHON_CORE_INTERPRETER_H_

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
  if (!result.ok()) Raise(result.status());
  return *std::move(result);
}

// Runs a call of the library without the GIL.
template <typename Call>
auto WithoutGil(const Call& call) {
  const nanobind::gil_scoped_release release;
  return call();
}

// A string that is equal to others by its address. Belongs to the process.
inline nanobind::handle Interned(const char* text) {
  return PyUnicode_InternFromString(text);
}

// What a module has by this name.
inline nanobind::object Imported(const char* module, const char* name) {
  return nanobind::module_::import_(module).attr(name);
}
// The same, which belongs to the process.
inline nanobind::handle Kept(const char* module, const char* name) {
  return Imported(module, name).release();
}

inline bool Is(nanobind::handle object, nanobind::handle type) {
  return PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
}

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_INTERPRETER_H_
