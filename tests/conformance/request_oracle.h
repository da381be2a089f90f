// What a RotateRequest asks for, computed from its text alone and as plainly as can be: element by
// element, in long double. Shares no code with server/, and with kernels/ only how an element lies
// in memory.
#ifndef ROPE_TESTS_CONFORMANCE_REQUEST_ORACLE_H_
#define ROPE_TESTS_CONFORMANCE_REQUEST_ORACLE_H_

#include <cstdint>
#include <vector>

#include "kernels/dtype/dtype.h"
#include "rope/v1/rotate.pb.h"

namespace rope::testing {

// A tensor of the answer, its elements as they lie there.
struct ExactTensor {
  kernels::DType dtype = kernels::DType::kFloat32;
  std::vector<double> values;
  std::vector<double> tolerances;  // 0: a copy
};

// One for each tensor. Knows of scaling: default, linear, dynamic, llama3 and explicit inv_freq; of
// mrope_section every layout. Not: rows, xPos, models, config.json.
// REQUIRES: a legal request, elements as raw bytes or numbers that their dtype holds.
std::vector<ExactTensor> ExactAnswer(const v1::RotateRequest& request);

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_REQUEST_ORACLE_H_
