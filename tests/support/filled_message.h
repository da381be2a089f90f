// Messages with a value in every field, so that a converter that leaves one out is found.
#ifndef ROPE_TESTS_SUPPORT_FILLED_MESSAGE_H_
#define ROPE_TESTS_SUPPORT_FILLED_MESSAGE_H_

#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <string>

namespace rope::testing {

// Sets a field, or adds an element to a list: `value` as a number or a text, true, the last value
// of an enum, an empty message.
inline void SetField(google::protobuf::Message& message,
                     const google::protobuf::FieldDescriptor* field, int value) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& to = *message.GetReflection();
  const bool list = field->is_repeated();
  if (field->cpp_type() == Field::CPPTYPE_MESSAGE) {
    list ? to.AddMessage(&message, field) : to.MutableMessage(&message, field);
  } else if (field->cpp_type() == Field::CPPTYPE_ENUM) {
    const int number = field->enum_type()->value(field->enum_type()->value_count() - 1)->number();
    list ? to.AddEnumValue(&message, field, number) : to.SetEnumValue(&message, field, number);
  } else if (field->cpp_type() == Field::CPPTYPE_BOOL) {
    list ? to.AddBool(&message, field, true) : to.SetBool(&message, field, true);
  } else if (field->cpp_type() == Field::CPPTYPE_STRING) {
    const std::string text = std::to_string(value);
    list ? to.AddString(&message, field, text) : to.SetString(&message, field, text);
  } else if (field->cpp_type() == Field::CPPTYPE_DOUBLE) {
    list ? to.AddDouble(&message, field, value) : to.SetDouble(&message, field, value);
  } else if (field->cpp_type() == Field::CPPTYPE_INT64) {
    list ? to.AddInt64(&message, field, value) : to.SetInt64(&message, field, value);
  } else if (field->cpp_type() == Field::CPPTYPE_INT32) {
    list ? to.AddInt32(&message, field, value) : to.SetInt32(&message, field, value);
  } else if (field->cpp_type() == Field::CPPTYPE_UINT64) {
    const auto number = static_cast<uint64_t>(value);
    list ? to.AddUInt64(&message, field, number) : to.SetUInt64(&message, field, number);
  } else {
    ADD_FAILURE() << "a type that no field had: " << field->full_name();
  }
}

// Sets every field to a different value. Lists get two elements. Messages inside are filled too.
inline void Fill(google::protobuf::Message& message, int first = 1) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const auto* const field = message.GetDescriptor()->field(i);
    for (int element = 0; element < (field->is_repeated() ? 2 : 1); ++element) {
      const int value = first + 2 * i + element;
      SetField(message, field, value);
      if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
      const auto& to = *message.GetReflection();
      Fill(field->is_repeated() ? *to.MutableRepeatedMessage(&message, field, element)
                                : *to.MutableMessage(&message, field),
           10 * value);
    }
  }
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FILLED_MESSAGE_H_
