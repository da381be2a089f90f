// Request: a RotateRequest and the arrays that it borrows. Prepared: a prepared rotation and the
// arrays that its calls take.
//
// Threading:  With the GIL; a request may be read without it while nothing changes it.
// Errors:     InvalidField: what Array says; an array of another shape or dtype than the result's,
//             or than was prepared; a tensor of float64.
#ifndef ROPE_CLIENT_PYTHON_CORE_REQUEST_H_
#define ROPE_CLIENT_PYTHON_CORE_REQUEST_H_

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "client/codec/preparation.h"
#include "client/python/core/arguments.h"
#include "client/python/core/arrays.h"
#include "rope/options.h"
#include "rope/rotate.h"

namespace rope::python {

// "(2, 3)".
std::string TextOf(const std::vector<int64_t>& shape);

void CheckDType(const Array& array, client::DType want);
// InvalidField: the array is float64, which no tensor may be. `wanted`: what it may be.
void CheckIsNoFloat64(const Array& array, const std::string& wanted);

struct Request {
  client::RotateRequest request = {};
  client::CallOptions options = {};
  nanobind::object result = {};                // what the call gives: the arrays that it fills
  std::vector<std::string> names = {};         // of its tensors, for errors
  std::vector<nanobind::object> arrays = {};   // that it borrows
  std::vector<nanobind::object> changed = {};  // arrays in place

  // Of Client.rotate and the like; q or k may be None, an array or a Tensor. `to` and `from`, or
  // None: positions in place of those of the arguments. `from_rope`: a RopeSpec, or None.
  static Request OfRotation(client::Operation operation, nanobind::handle q, nanobind::handle k,
                            bool in_place, nanobind::handle arguments, nanobind::handle to,
                            nanobind::handle from, nanobind::handle from_rope);
  // Adds `view` with the memory of an array and of its result, which has the layout, dtype and
  // shape of `wanted`. An `output` of None: in place.
  void AddMemory(const Array& array, nanobind::handle output, const std::string& layout,
                 const client::WantedTensor& wanted, c::OpenAxis& open, client::TensorView view);
  // One array, or a tuple of two.
  void SetResult(const std::vector<nanobind::object>& results);

 private:
  // Returns the result.
  nanobind::object Add(const char* name, nanobind::handle given, const std::string& layout,
                       bool in_place);
  // An array without strides, which the request borrows from now on.
  client::ArrayView Packed(nanobind::handle values, const std::string& name);
};

class Prepared {
 public:
  // `names`: of the tensors, for errors.
  Prepared(client::PreparedRotation rotation, std::vector<std::string> names)
      : rotation_(std::move(rotation)), names_(std::move(names)) {}

  const client::PreparedRotation& rotation() const { return rotation_; }
  // The request of one call: as many arrays as were prepared. `positions`: a dict of those that
  // are no start.
  Request Values(const nanobind::tuple& arrays, bool in_place, nanobind::handle start,
                 nanobind::handle from, nanobind::handle timeout, nanobind::handle positions) const;

 private:
  const client::Preparation& preparation() const {
    return *client::PreparedState::Of(rotation_)->preparation;
  }

  client::PreparedRotation rotation_;
  std::vector<std::string> names_;
};

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_REQUEST_H_
