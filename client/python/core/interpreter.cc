#include "client/python/core/interpreter.h"

#include "client/error.h"

namespace rope::python {

namespace nb = nanobind;

namespace {

// A message may end in the middle of a character.
nb::object StringOf(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace

nb::object ErrorOf(const Status& status) {
  const ErrorDetail& detail = status.detail();
  return Imported("ropeserve.errors", "_of")(
      Name(status.code()), Name(detail.reason), StringOf(status.message()), StringOf(detail.field),
      StringOf(detail.got), StringOf(detail.want), detail.retry_delay_ms, detail.may_have_executed);
}

void Raise(const Status& status) {
  const nb::object error = ErrorOf(status);
  PyErr_SetObject(error.type().ptr(), error.ptr());
  nb::raise_python_error();
}

void RaiseInvalid(const std::string& field, const std::string& got, const std::string& want) {
  Raise(client::InvalidField(field, got, want));
}

}  // namespace rope::python
