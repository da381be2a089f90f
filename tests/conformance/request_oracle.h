// Computes the answer to a RotateRequest from its text alone, element by element, in long double.
// Shares no code with server/; of kernels/ it uses only the memory format of elements.
#ifndef ROPE_TESTS_CONFORMANCE_REQUEST_ORACLE_H_
#define ROPE_TESTS_CONFORMANCE_REQUEST_ORACLE_H_

#include <cstdint>
#include <vector>

#include "kernels/dtype/dtype.h"
#include "rope/v1/rotate.pb.h"

namespace rope::testing {

// A tensor of the answer; elements are in memory order.
struct ExactTensor {
  kernels::DType dtype = kernels::DType::kFloat32;
  std::vector<double> values;
  std::vector<double> tolerances;  // 0: the element is a copy
};

// One result for each tensor. Supports the scaling types default, linear, dynamic, llama3 and
// explicit inv_freq, and every layout of mrope_section. Does not support rows, xPos, models and
// config.json. REQUIRES: a legal request; elements as raw bytes, or as numbers that their dtype
// represents.
std::vector<ExactTensor> ExactAnswer(const v1::RotateRequest& request);

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_REQUEST_ORACLE_H_
