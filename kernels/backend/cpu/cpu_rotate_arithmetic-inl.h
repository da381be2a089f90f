// The arithmetics on pairs of floats (PairArithmetic), for one instruction set. Each has two forms.
// Split takes a vector of first channels and a vector of second channels. Neighbours takes whole
// pairs in one vector; `signed_sin` is -s in the lanes of first channels and s in the others.
#if defined(ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ARITHMETIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ARITHMETIC_INL_H_
#undef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ARITHMETIC_INL_H_
#else
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ARITHMETIC_INL_H_
#endif

#include "hwy/highway.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;

// a * c - b * s and b * c + a * s.
HWY_INLINE void Turn(VF a, VF b, VF c, VF s, VF& turned_a, VF& turned_b) {
  turned_a = hn::NegMulAdd(b, s, hn::Mul(a, c));
  turned_b = hn::MulAdd(a, s, hn::Mul(b, c));
}

struct FusedTurn {
  static HWY_INLINE void Split(VF a, VF b, VF c, VF s, VF& to_a, VF& to_b) {
    Turn(a, b, c, s, to_a, to_b);
  }
  static HWY_INLINE VF Neighbours(VF x, VF c, VF signed_sin) {
    return hn::MulAdd(hn::Reverse2(F32(), x), signed_sin, hn::Mul(x, c));
  }
};

// Elements::Rounded returns the nearest value of the element type, as a float. For fp32 it does
// nothing, so only -ffp-contract=off keeps the compiler from fusing the products.
template <class Elements>
struct StepwiseTurn {
  static HWY_INLINE void Split(VF a, VF b, VF c, VF s, VF& to_a, VF& to_b) {
    to_a = Elements::Rounded(hn::Sub(Product(a, c), Product(b, s)));
    to_b = Elements::Rounded(hn::Add(Product(b, c), Product(a, s)));
  }
  static HWY_INLINE VF Neighbours(VF x, VF c, VF signed_sin) {
    const VF swapped = hn::Reverse2(F32(), x);
    return Elements::Rounded(hn::Add(Product(x, c), Product(swapped, signed_sin)));
  }

 private:
  static HWY_INLINE VF Product(VF x, VF y) { return Elements::Rounded(hn::Mul(x, y)); }
};

struct Addition {
  static HWY_INLINE void Split(VF a, VF b, VF c, VF s, VF& to_a, VF& to_b) {
    to_a = hn::Add(a, s);
    to_b = hn::Add(b, c);
  }
  static HWY_INLINE VF Neighbours(VF x, VF c, VF signed_sin) {
    return hn::Add(x, hn::OddEven(c, hn::Neg(signed_sin)));
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ARITHMETIC_INL_H_
