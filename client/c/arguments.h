// What C gives, as values of the C++ library: the arguments of rope_rotate, and options.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_C_ARGUMENTS_H_
#define ROPE_CLIENT_C_ARGUMENTS_H_

#include <cstddef>
#include <optional>

#include "rope/client.h"
#include "rope/device.h"
#include "rope/embedded.h"
#include "rope/rope.h"

namespace rope::c {

// Fills `call`, which borrows the memory of the arguments, and, if one of them lies on a GPU,
// `queue`, but for its stream. INVALID_ARGUMENT: as rope_rotate.
Status ReadArguments(const client::PreparedRotation& rotation, const rope_argument* arguments,
                     size_t count, client::RotateRequest* call, std::optional<DeviceQueue>* queue);

// These read a JSON object with the names of the C++ options (rope/options.h and rope/embedded.h).
// Null is the defaults. INVALID_ARGUMENT, of "options" or "options.NAME": malformed JSON, another
// name, a value of another kind, a number that is negative or not whole.
Status ReadOptions(const char* json, client::ConnectOptions* options);
Status ReadOptions(const char* json, client::CallOptions* options);
Status ReadOptions(const char* json, embedded::Options* engine, client::ConnectOptions* options);

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_ARGUMENTS_H_
