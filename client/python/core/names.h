// Names of Python, which a caller keeps in a static variable: a look-up takes less time then.
//
// Threading:  With the GIL.
#ifndef ROPE_CLIENT_PYTHON_CORE_NAMES_H_
#define ROPE_CLIENT_PYTHON_CORE_NAMES_H_

#include <nanobind/nanobind.h>

namespace rope::python {

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

#endif  // ROPE_CLIENT_PYTHON_CORE_NAMES_H_
