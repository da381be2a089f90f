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

// What calls of a prepared move have in common beside their tensors.
struct MoveConstants {
  std::optional<int64_t> rotary_offset = {};
  std::optional<int64_t> block_size = {};
  std::optional<client::DType> dtype = {};  // of all arrays; unsigned bytes stand for it
};

struct Request {
  client::RotateRequest request = {};
  client::CallOptions options = {};
  nanobind::object result = {};               // what the call gives: the arrays that it fills
  std::vector<nanobind::object> filled = {};  // these
  bool in_place = false;                      // they were there before
  std::vector<std::string> names = {};        // of its tensors, for errors
  std::vector<nanobind::object> arrays = {};  // that it borrows
  std::optional<MoveConstants> moves = {};    // of Client.move_ only
  Gpu gpu = {};                               // of a call whose place.cuda is set

  // Of Client.rotate and the like; q or k may be None, an array or a Tensor. Of a reposition `by`,
  // or `to` and `from`, with `from_rope`, a Rope or None. `to_prepare`: without positions.
  static Request OfRotation(nanobind::handle operation, nanobind::handle q, nanobind::handle k,
                            bool in_place, nanobind::handle arguments, nanobind::handle by,
                            nanobind::handle to, nanobind::handle from, nanobind::handle from_rope,
                            bool to_prepare);
  // Of Client.move_.
  static Request OfMove(nanobind::handle k, nanobind::handle arguments);
  // Sets the memory of `view`: that of an array, which is `input`'s, and of its result, which has
  // the layout of `like` and this dtype.
  void AddMemory(const nanobind::object& input, const Array& array, const client::TensorView& like,
                 client::DType dtype, client::TensorView& view);
  // Sets the result: one array, or a tuple of two.
  void SetResult();
  // An array with its strides, which the request borrows from now on.
  client::ArrayView Borrow(nanobind::handle values, const std::string& name);

 private:
  void AddDistance(const Arguments& given, nanobind::handle by, nanobind::handle to,
                   nanobind::handle from, nanobind::handle from_rope);
  void Add(const char* name, nanobind::handle given, const std::string& layout);
  // An array without strides, which the request borrows from now on.
  client::ArrayView Packed(nanobind::handle values, const std::string& name);
};

// Warns of an array in place that nothing refers to but a method of the package, whose argument it
// is, and its call of the module.
void WarnOfCopy(nanobind::handle array, const char* name);

class Prepared {
 public:
  Prepared(client::PreparedRotation rotation, const Request& like)
      : rotation_(std::move(rotation)),
        names_(like.names),
        positions_max_(like.gpu.queue.positions_max),
        move_(like.moves) {
    if (move_.has_value()) moved_ = like.request.tensors;
  }

  std::string id() const { return rotation_.id(); }
  // The request of one call: as many arrays as were prepared, or q and k by name. `positions`: a
  // dict of their arguments.
  Request Values(const nanobind::tuple& arrays, nanobind::handle q, nanobind::handle k,
                 bool in_place, nanobind::handle from, nanobind::handle timeout,
                 nanobind::handle positions) const;
  // The request of one move. `values`: a dict of MoveValues.
  Request Move(nanobind::handle k, nanobind::handle values) const;

 private:
  const client::Preparation& preparation() const {
    return *client::PreparedState::Of(rotation_)->preparation;
  }

  // InvalidField: an array is of another kind than the prepared one.
  void RemoveConstants(client::RotateRequest& request) const;

  client::PreparedRotation rotation_;
  std::vector<std::string> names_;  // of the tensors, for errors
  int64_t positions_max_;           // of the queues of its calls
  std::optional<MoveConstants> move_;
  std::vector<client::TensorView> moved_ = {};
};

}  // namespace rope::python

#endif  // ROPE_CLIENT_PYTHON_CORE_REQUEST_H_
