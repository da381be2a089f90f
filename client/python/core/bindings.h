// The parts of the extension module.
//
// Threading:  With the GIL, once.
#ifndef ROPE_CLIENT_PYTHON_CORE_BINDINGS_H_
#define ROPE_CLIENT_PYTHON_CORE_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace rope::python {

void BindClient(nanobind::module_& module);
void BindLint(nanobind::module_& module);
void BindMove(nanobind::module_& module);

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_BINDINGS_H_
