// Random messages of any type, written to wire format in every way that is legal: fields in any
// order, numbers packed or one by one or both, varints longer than they need be; and then damaged.
//
// Threading:  A WireWriter is confined to one thread.
#ifndef ROPE_TESTS_FUZZ_WIRE_MESSAGES_H_
#define ROPE_TESTS_FUZZ_WIRE_MESSAGES_H_

#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rope/v1/array.pb.h"
#include "tests/fuzz/fuzz_random.h"

namespace rope::testing {

class WireWriter : public FuzzRandom {
 public:
  using FuzzRandom::FuzzRandom;

  // A message of the type of `prototype` with some of its fields set, those below it too.
  std::unique_ptr<google::protobuf::Message> RandomMessage(
      const google::protobuf::Message& prototype);
  // Its wire format, in one of the many legal forms. `flawed`: now and then a message also has a
  // field twice, a field that its type does not have, or one of another wire type.
  std::string Write(const google::protobuf::Message& message, bool flawed);

 private:
  void Fill(google::protobuf::Message& message, int depth);
  void SetField(const google::protobuf::FieldDescriptor& field, google::protobuf::Message& message,
                int depth);
  // Appends the encoded pieces of one field, which may stand among those of others.
  void WriteField(const google::protobuf::FieldDescriptor& field,
                  const google::protobuf::Message& message, bool flawed,
                  std::vector<std::string>& pieces);
  void WriteNumbers(const google::protobuf::FieldDescriptor& field,
                    const google::protobuf::Message& message, std::vector<std::string>& pieces);
  // A flaw beside the `pieces` of a message of `type`.
  void AddFlaw(const google::protobuf::Descriptor& type, std::vector<std::string>& pieces);
  // One number without its tag.
  std::string Number(const google::protobuf::FieldDescriptor& field,
                     const google::protobuf::Message& message, int index);
  // At most `bytes_max` long, and now and then longer than it need be.
  std::string Varint(uint64_t value, size_t bytes_max);
  std::string Tag(int number, int type);
  std::string Delimited(int number, const std::string& value);
  std::string RandomText();
};

// Why the strict decoder must refuse a message that the generated parser takes: how its error
// begins, for example "rope.config: got unknown field number 77". Empty: it must take it.
// REQUIRES: the generated parser takes it.
std::string ReasonToRefuse(const google::protobuf::Descriptor& type, std::string_view bytes,
                           bool skips_unknown_fields);

// Appends every array that is set in `message`, which may be one itself.
void CollectArrays(google::protobuf::Message& message, std::vector<v1::Array*>& arrays);

}  // namespace rope::testing

#endif  // ROPE_TESTS_FUZZ_WIRE_MESSAGES_H_
