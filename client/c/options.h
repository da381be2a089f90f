// Options of the C API: JSON objects with the names of the C++ options (rope/options.h and
// rope/embedded.h). Null is the defaults.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT, of "options" or "options.NAME": malformed JSON, another name, a
//             value of another kind, a number that is negative or not whole.
#ifndef ROPE_CLIENT_C_OPTIONS_H_
#define ROPE_CLIENT_C_OPTIONS_H_

#include "rope/embedded.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::c {

Status ReadOptions(const char* json, client::ConnectOptions* options);
Status ReadOptions(const char* json, client::CallOptions* options);
Status ReadOptions(const char* json, embedded::Options* engine, client::ConnectOptions* options);

}  // namespace rope::c

#endif  // ROPE_CLIENT_C_OPTIONS_H_
