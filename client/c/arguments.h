// The arguments of rope_rotate as a request of the C++ library.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_C_ARGUMENTS_H_
#define ROPE_CLIENT_C_ARGUMENTS_H_

#include <cstddef>
#include <optional>

#include "rope/client.h"
#include "rope/device.h"
#include "rope/rope.h"

namespace rope::c {

// Fills `call`, which borrows the memory of the arguments, and, if one of them lies on a GPU,
// `queue`, but for its stream. INVALID_ARGUMENT: as rope_rotate.
Status ReadArguments(const client::PreparedRotation& rotation, const rope_argument* arguments,
                     size_t count, client::RotateRequest* call, std::optional<DeviceQueue>* queue);

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_ARGUMENTS_H_
