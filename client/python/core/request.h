// Request: a RotateRequest and the arrays that it borrows. Prepared: a prepared rotation and the
// arrays that its calls take.
//
// Threading:  With the GIL; a request may be read without it while nothing changes it.
// Errors:     InvalidField: what Array says; an array of another shape or dtype than the result's,
//             or than was prepared; a tensor of float64.
#ifndef ROPE_CLIENT_PYTHON_CORE_REQUEST_H_
#define ROPE_CLIENT_PYTHON_CORE_REQUEST_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/python/core/arrays.h"
#include "rope/rotate.h"

namespace rope::python {

// "(2, 3)".
std::string TextOf(const std::vector<int64_t>& shape);

void CheckDType(const Array& array, client::DType want);

struct Request {
  client::RotateRequest request = {};
  std::vector<std::string> names = {};        // of its tensors, for errors
  std::vector<nanobind::object> arrays = {};  // that it borrows

  // `view` says all but dtype, shape, strides, memory and norm, which are the arrays'. `output` may
  // be `input` itself. `norm` is None or (weight, eps).
  void Add(client::TensorView view, const std::string& name, nanobind::handle input,
           nanobind::handle output, nanobind::handle norm);
  // The caller's own table: `name` is "cos", "sin" or "angles".
  void AddRows(const std::string& name, nanobind::handle values);

 private:
  // An array without strides, which the request borrows from now on.
  client::ArrayView Packed(nanobind::handle values, const std::string& name);
};

class Prepared {
 public:
  // Of the request that was prepared.
  Prepared(client::PreparedRotation rotation, const Request& request, const std::string& open_axis);

  const client::PreparedRotation& rotation() const { return rotation_; }
  // Of each tensor, and of its result; an empty one is the tensor's.
  std::vector<std::pair<std::string, std::string>> Layouts() const;
  // The request of one call. An output that is its input: in place.
  Request Values(const nanobind::tuple& inputs, const nanobind::tuple& outputs,
                 client::Positions positions, std::optional<client::Positions> from) const;

 private:
  // One tensor; `length` is that of the open axis, as the tensors before it had it.
  void Add(size_t index, nanobind::handle input, nanobind::handle output,
           std::optional<int64_t>& length, Request& call) const;
  void CheckShape(const Array& array, const std::string& layout, const std::vector<int64_t>& shape,
                  std::optional<int64_t>& length) const;

  client::PreparedRotation rotation_;
  std::vector<client::TensorView> tensors_;  // without memory
  std::vector<std::string> names_;
  std::optional<client::DType> output_dtype_;
  std::string open_axis_;  // empty: none
};

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_REQUEST_H_
