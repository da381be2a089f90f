// Compares two identities of K: whether a cache of one serves the other.
//
// Threading:  A pure function; any thread.
#ifndef ROPE_KERNELS_IDENTITY_KEY_COMPARISON_H_
#define ROPE_KERNELS_IDENTITY_KEY_COMPARISON_H_

#include "kernels/identity/key_identity.h"

namespace rope::kernels {

// Names each difference of `a` and `b` once, with the first layer that has it. One rotation
// converts a layer if both turn the same pairs of channels.
KeyComparison CompareKeys(const KeyIdentity& a, const KeyIdentity& b);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_IDENTITY_KEY_COMPARISON_H_
