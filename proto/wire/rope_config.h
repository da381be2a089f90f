// Reads and writes the schema's RopeConfig, and the enums of RopeSpec, as the structs of
// client/include/rope/config.h; writes the reply of client/include/rope/describe.h. Fields have the
// same names in both. Names dtypes in errors.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT, of the field's name in its message, or "rope." and the name in
//             RopeSpec.
#ifndef ROPE_PROTO_WIRE_ROPE_CONFIG_H_
#define ROPE_PROTO_WIRE_ROPE_CONFIG_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "rope/config.h"
#include "rope/describe.h"
#include "rope/v1/array.pb.h"
#include "rope/v1/config.pb.h"
#include "rope/v1/describe.pb.h"

namespace rope::proto {

// Exact precision, which only RopeSpec has. INVALID_ARGUMENT: an unknown rope_type or enum value,
// mrope fields that contradict each other or an mrope_section without exactly three counts,
// inv_freq other than packed numbers. The values of other fields are not checked.
absl::StatusOr<RopeConfig> ReadRopeConfig(const v1::RopeConfig& message);
v1::RopeConfig WriteRopeConfig(const RopeConfig& config);

// INVALID_ARGUMENT: an unknown enum value.
absl::StatusOr<std::optional<Pairing>> ReadPairing(v1::Pairing pairing);
absl::StatusOr<Compat> ReadCompat(v1::Compat compat);
absl::StatusOr<Precision> ReadPrecision(v1::Precision precision);

// "DTYPE_FP32"; "number 99" where the schema has no such dtype.
std::string DTypeName(v1::DType dtype);

v1::Pairing WritePairing(std::optional<Pairing> pairing);
v1::Compat WriteCompat(Compat compat);
v1::Precision WritePrecision(std::optional<Precision> precision);

v1::DescribeResponse WriteDescribeReply(const DescribeReply& reply);
void WriteRow(const Row& row, v1::Row& message);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_ROPE_CONFIG_H_
