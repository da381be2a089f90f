// Fingerprint: identifies the rotation of K, and compares two of them.
//
// It takes one step: kernels/identity bounds the columns.
//
// Threading:  A function only; the registry is thread-safe.
#ifndef ROPE_SERVER_CONTROL_FINGERPRINT_H_
#define ROPE_SERVER_CONTROL_FINGERPRINT_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "rope/v1/fingerprint.pb.h"
#include "server/models/model_registry.h"

namespace rope::server {

// Acquires memory for the answer.
using AdmitFingerprint = absl::FunctionRef<absl::Status(int64_t bytes)>;

// INVALID_ARGUMENT, NOT_FOUND: as ModelRegistry::CopyOf and kernels::IdentifyKey; the path of the
// field begins with "key." or "other.". Errors of `admit`.
absl::StatusOr<v1::FingerprintResponse> Fingerprint(const v1::FingerprintRequest& request,
                                                    ModelRegistry& registry,
                                                    AdmitFingerprint admit);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_FINGERPRINT_H_
