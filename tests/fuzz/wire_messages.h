// Random messages of any type, encoded in every legal form of the wire format: fields in any order,
// numbers packed or single or both, varints with extra bytes. Optionally damaged.
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

  // A message of the type of `prototype` with random fields set, at every level.
  std::unique_ptr<google::protobuf::Message> RandomMessage(
      const google::protobuf::Message& prototype);
  // Encodes a message in one of the many legal forms. `flawed`: sometimes adds a repeated field, an
  // unknown field, or a field of another wire type.
  std::string Write(const google::protobuf::Message& message, bool flawed);

 private:
  void Fill(google::protobuf::Message& message, int depth);
  void SetField(const google::protobuf::FieldDescriptor& field, google::protobuf::Message& message,
                int depth);
  // Appends the encoded pieces of one field; pieces of other fields may lie between them.
  void WriteField(const google::protobuf::FieldDescriptor& field,
                  const google::protobuf::Message& message, bool flawed,
                  std::vector<std::string>& pieces);
  void WriteNumbers(const google::protobuf::FieldDescriptor& field,
                    const google::protobuf::Message& message, std::vector<std::string>& pieces);
  // Adds a flaw to the `pieces` of a message of `type`.
  void AddFlaw(const google::protobuf::Descriptor& type, std::vector<std::string>& pieces);
  // Encodes one number without its tag.
  std::string Number(const google::protobuf::FieldDescriptor& field,
                     const google::protobuf::Message& message, int index);
  // At most `bytes_max` long, and sometimes longer than necessary.
  std::string Varint(uint64_t value, size_t bytes_max);
  std::string Tag(int number, int type);
  std::string Delimited(int number, const std::string& value);
  std::string RandomText();
};

// The reason for which the strict decoder must reject a message that the generated parser accepts:
// the beginning of its error, for example "rope.config: got unknown field number 77". Empty: the
// strict decoder must accept it too. REQUIRES: the generated parser accepts it.
std::string ReasonToRefuse(const google::protobuf::Descriptor& type, std::string_view bytes,
                           bool skips_unknown_fields);

// Appends every array that is set in `message`, which may itself be an array.
void CollectArrays(google::protobuf::Message& message, std::vector<v1::Array*>& arrays);

}  // namespace rope::testing

#endif  // ROPE_TESTS_FUZZ_WIRE_MESSAGES_H_
