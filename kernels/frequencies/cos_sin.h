// CosSin: cos and sin of one angle. The function that returns it says which factor is included.
//
// Threading:  A value.
#ifndef ROPE_KERNELS_FREQUENCIES_COS_SIN_H_
#define ROPE_KERNELS_FREQUENCIES_COS_SIN_H_

namespace rope::kernels {

struct CosSin {
  double cos = 1;
  double sin = 0;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_COS_SIN_H_
