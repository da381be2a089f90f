// Targets as people write them, as gRPC takes them.
//
// Threading:  Functions only.
#ifndef ROPE_CLIENT_TRANSPORT_TARGET_H_
#define ROPE_CLIENT_TRANSPORT_TARGET_H_

#include <string>

#include "absl/strings/string_view.h"
#include "rope/status.h"

namespace rope::client {

// "http://" and "https://" go. An address without a port gets that of the server. Several addresses
// with commas become gRPC's "ipv4:A:PORT,B:PORT". Targets with a scheme, such as "unix:" and
// "dns:", stay. INVALID_ARGUMENT: nothing, or anything but IP addresses of one kind among several.
Result<std::string> ReadTarget(absl::string_view written);

// Whether a target as written begins with "https://".
bool AsksForTls(absl::string_view written);

// Whether a target that ReadTarget gave names several servers. "HOST:PORT" names one, whose
// addresses are tried in turn until one connects.
bool IsOfSeveral(absl::string_view target);

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_TARGET_H_
