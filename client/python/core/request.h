// Request: a RotateRequest and the arrays that it borrows. Prepared: a prepared rotation and the
// arrays that its calls take.
//
// Threading:  With the GIL; a request may be read without it while nothing changes it.
// Errors:     InvalidField: what Array says; an array of another shape or dtype than the result's,
//             or than was prepared; a tensor of float64.
#ifndef ROPE_CLIENT_PYTHON_CORE_REQUEST_H_
#define ROPE_CLIENT_PYTHON_CORE_REQUEST_H_

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/codec/preparation.h"
#include "client/python/core/arrays.h"
#include "rope/rotate.h"

namespace rope::python {

// "(2, 3)".
std::string TextOf(const std::vector<int64_t>& shape);

void CheckDType(const Array& array, client::DType want);
// InvalidField: the array is float64, which no tensor may be. `wanted`: what it may be.
void CheckIsNoFloat64(const Array& array, const std::string& wanted);

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
  // Adds `view` with the memory of an array and of its result, which has the layout, dtype and
  // shape of `result`. An `output` of None: in place.
  void AddMemory(const Array& array, nanobind::handle output, const std::string& layout,
                 const client::WantedTensor& result, c::OpenAxis& open, client::TensorView view);

 private:
  // An array without strides, which the request borrows from now on.
  client::ArrayView Packed(nanobind::handle values, const std::string& name);
};

class Prepared {
 public:
  // `names`: of the tensors, for errors.
  Prepared(client::PreparedRotation rotation, std::vector<std::string> names)
      : rotation_(std::move(rotation)), names_(std::move(names)) {}

  const client::PreparedRotation& rotation() const { return rotation_; }
  // Of each tensor, and of its result; an empty one is the tensor's.
  std::vector<std::pair<std::string, std::string>> Layouts() const;
  // The request of one call. An output that is its input: in place.
  Request Values(const nanobind::tuple& inputs, const nanobind::tuple& outputs,
                 client::Positions positions, std::optional<client::Positions> from) const;

 private:
  const client::Preparation& preparation() const {
    return *client::PreparedState::Of(rotation_)->preparation;
  }

  client::PreparedRotation rotation_;
  std::vector<std::string> names_;
};

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_REQUEST_H_
