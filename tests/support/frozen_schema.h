// The schema as text, one line an element. The frozen text is proto/frozen_schema.txt;
// proto/README.md, Compatibility, says what may change.
//
//   enum rope.v1.DType
//   enum_value rope.v1.DType.DTYPE_FP32 = 1
//   field rope.v1.Positions.start = 1 int64 oneof source
//   field rope.v1.Positions.seq_lens = 5 repeated packed int64
//   message rope.v1.Positions
//   method rope.v1.RopeService.Rotate (rope.v1.RotateRequest) returns (rope.v1.RotateResponse)
//   reserved rope.v1.Positions 9 to 11
//   service rope.v1.RopeService
//
// `json NAME` follows where a field has another JSON name than its own in camel case; `planned`
// ends the line of a planned field.
//
// Threading:  Functions only.
#ifndef ROPE_TESTS_SUPPORT_FROZEN_SCHEMA_H_
#define ROPE_TESTS_SUPPORT_FROZEN_SCHEMA_H_

#include <google/protobuf/descriptor.h>

#include <set>
#include <string>
#include <vector>

namespace rope::testing {

using SchemaLines = std::set<std::string>;

// These files, and all that they import whose package is that of the first.
std::set<const google::protobuf::FileDescriptor*> FilesOfPackage(
    const std::vector<const google::protobuf::FileDescriptor*>& roots);

// A line for each element of a file. Extensions are fields of their package.
SchemaLines LinesOf(const google::protobuf::FileDescriptor& file);

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FROZEN_SCHEMA_H_
