// A rotation for tests: tensors with guard bytes, rows, and the exact answer.
#ifndef ROPE_TESTS_CONFORMANCE_ROTATION_H_
#define ROPE_TESTS_CONFORMANCE_ROTATION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend/rotate_job.h"
#include "kernels/dtype/element.h"

namespace rope::testing {

// Half the distance between neighbouring numbers of `dtype` at `value`. 0 for fp32, whose rounding
// is part of the arithmetic's tolerance.
double HalfUnit(double value, kernels::DType dtype);

// The tolerance of an element of a pair (a, b) around `exact`. `scale`: length of (cos, sin).
double Tolerance(double exact, double a, double b, double scale, kernels::DType dtype);

struct RotationSpec {
  int64_t tokens = 3;
  int64_t heads = 2;
  int64_t head_dim = 64;
  kernels::DType dtype = kernels::DType::kFloat32;
  kernels::PairGeometry geometry = {};
  enum class Layout { kTokenMajor, kHeadMajor, kPadded } layout = Layout::kTokenMajor;
  bool in_place = false;
  bool streams = false;
  bool conjugate = false;
  kernels::PairArithmetic arithmetic = kernels::PairArithmetic::kTurn;
  enum class Norm { kNone, kPlain, kWeighted } norm = Norm::kNone;
  float scale = 1;
  bool token_scales = false;
  std::optional<kernels::DType> output_dtype = {};
  float output_scale = 1;
  int64_t misalignment = 0;  // bytes past a multiple of 64, of input and output
  uint32_t seed = 1;

  kernels::DType stored() const { return output_dtype.value_or(dtype); }
  bool OnlyPairs() const;  // true: no fused operation
  std::string Describe() const;
};

// All channels of a head form pairs.
kernels::PairGeometry WholeHead(kernels::Pairing pairing, int64_t head_dim);

// Owns what its job points to. Movable, not copyable.
class Rotation {
 public:
  explicit Rotation(const RotationSpec& spec);

  const RotationSpec& spec() const { return spec_; }
  kernels::RotateJob job() const;

  // Changes the input before the rotation: `channel` of every head becomes `value`, rounded to the
  // dtype.
  void SetChannel(int64_t channel, double value);
  void SetElement(int64_t token, int64_t head, int64_t channel, double value);
  // The same with the bits of an 8-bit dtype, which may be an infinity.
  void SetCode(int64_t token, int64_t head, int64_t channel, uint8_t code);
  // Changes the rows: cos and sin of `pair` of every token.
  void SetRow(int64_t pair, float cos, float sin);
  // Uses the output of `other` as the input.
  void TakeInput(const Rotation& other);

  double Input(int64_t token, int64_t head,
               int64_t channel) const;  // as it was before the rotation
  double Output(int64_t token, int64_t head, int64_t channel) const;

  // The output's bits, from the first element to the last.
  std::vector<uint8_t> OutputBytes() const {
    return {output().bytes.begin() + output().begin, output().bytes.end()};
  }

  // Describes the error in the output; empty: none. Errors are an element off by more than the
  // tolerance, a changed byte outside of the heads and, without fused operations, a channel outside
  // of the pairs that is not bit-equal to the input.
  std::string Check() const;
  // The same of the number of elements that saturated, which may differ where an element is within
  // its tolerance of the largest number.
  std::string CheckSaturated() const;
  int64_t saturated() const { return *saturated_; }

 private:
  struct Buffer {
    std::vector<uint8_t> bytes;
    int64_t begin = 0;  // offset of element 0
  };

  int64_t Index(int64_t token, int64_t head, int64_t channel) const;   // in elements
  int64_t Offset(int64_t token, int64_t head, int64_t channel) const;  // of the input, in bytes
  int64_t OutputOffset(int64_t token, int64_t head, int64_t channel) const;
  Buffer MakeBuffer(int64_t extent) const;
  const Buffer& output() const { return spec_.in_place ? input_ : output_; }
  // The channels of a head before the rotation.
  kernels::TablePage MakePage() const;
  std::vector<double> NormedHead(int64_t token, int64_t head) const;
  // The two channels of a pair, and their tolerance.
  struct Pair {
    double a;
    double b;
    double error;
  };
  Pair Expected(double a, double b, double c, double s, double norm_units) const;
  // A channel before it is rounded. The error: what the arithmetic may add.
  struct Channel {
    double exact;
    double error;
    bool copied;
  };
  std::vector<Channel> ExpectedHead(int64_t token, int64_t head) const;
  std::string CheckChannel(int64_t token, int64_t head, int64_t channel,
                           const Channel& expected) const;
  std::string CheckHead(int64_t token, int64_t head) const;
  std::string CheckCopies(int64_t token, int64_t head) const;
  std::string CheckGuards() const;

  RotationSpec spec_;
  kernels::Strides strides_;
  int64_t extent_ = 0;  // elements from the first to the end of the last
  Buffer input_;
  Buffer output_;                    // if not in place
  std::vector<uint8_t> original_;    // input_.bytes before the rotation
  std::vector<uint8_t> untouched_;   // output bytes before the rotation
  std::vector<float> weights_;       // of the norm
  std::vector<float> token_scales_;  // of each token, 1 where the job has none
  std::vector<float> values_;
  std::unique_ptr<kernels::TablePage> page_;
  std::vector<kernels::RowRef> rows_;
  std::unique_ptr<std::atomic<int64_t>> saturated_ = std::make_unique<std::atomic<int64_t>>(0);
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_CONFORMANCE_ROTATION_H_
