#include "tests/support/message_edits.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace rope::testing {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

struct Edit {
  std::string name;
  std::function<void()> make;
};

// Edits of one field of `message`: of the whole field, or of the first element of a list.
class FieldEdits {
 public:
  FieldEdits(Message& message, const FieldDescriptor* field)
      : message_(message), reflection_(*message.GetReflection()), field_(field) {}

  std::vector<Edit> All() {
    if (IsSet()) Add("cleared", [this] { reflection_.ClearField(&message_, field_); });
    if (field_->is_map()) return std::move(edits_);
    if (field_->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      AddMessage();
    } else {
      AddValues();
      if (field_->is_repeated() && IsSet()) AddLonger();
    }
    return std::move(edits_);
  }

  bool IsSet() const {
    return field_->is_repeated() ? reflection_.FieldSize(message_, field_) > 0
                                 : reflection_.HasField(message_, field_);
  }

 private:
  void Add(const std::string& name, std::function<void()> make) {
    edits_.push_back({absl::StrCat(field_->name(), "=", name), std::move(make)});
  }

  void AddMessage() {
    if (field_->is_repeated()) {
      Add("one more", [this] { reflection_.AddMessage(&message_, field_); });
    } else if (!IsSet()) {
      Add("empty", [this] { reflection_.MutableMessage(&message_, field_); });
    }
  }

  // A list that has one element more than it should.
  void AddLonger() {
    Add("longer", [this] {
      switch (field_->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT64:
          return reflection_.AddInt64(&message_, field_, 1);
        case FieldDescriptor::CPPTYPE_DOUBLE:
          return reflection_.AddDouble(&message_, field_, 1);
        case FieldDescriptor::CPPTYPE_INT32:
          return reflection_.AddInt32(&message_, field_, 1);
        default:
          return reflection_.AddString(&message_, field_, "x");
      }
    });
  }

  template <typename T>
  void AddSets(const std::vector<T>& values,
               void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
               void (Reflection::*set_element)(Message*, const FieldDescriptor*, int, T) const,
               void (Reflection::*add)(Message*, const FieldDescriptor*, T) const) {
    for (const T value : values) {
      Add(absl::StrCat(value), [this, value, set, set_element, add] {
        if (!field_->is_repeated()) {
          (reflection_.*set)(&message_, field_, value);
        } else if (IsSet()) {
          (reflection_.*set_element)(&message_, field_, 0, value);
        } else {
          (reflection_.*add)(&message_, field_, value);
        }
      });
    }
  }

  void AddText(const std::string& name, std::string value) {
    Add(name, [this, value = std::move(value)] {
      if (!field_->is_repeated()) {
        reflection_.SetString(&message_, field_, value);
      } else if (IsSet()) {
        reflection_.SetRepeatedString(&message_, field_, 0, value);
      } else {
        reflection_.AddString(&message_, field_, value);
      }
    });
  }

  void AddTexts() {
    if (field_->type() == FieldDescriptor::TYPE_BYTES && IsSet()) {
      const std::string bytes = reflection_.GetString(message_, field_);
      AddText("a byte less", bytes.substr(0, bytes.size() - 1));
      AddText("a byte more", bytes + '\1');
    }
    AddText("a text", "no such text");
  }

  void AddValues() {
    switch (field_->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64:
        return AddSets<int64_t>({-1, 0, int64_t{1} << 62}, &Reflection::SetInt64,
                                &Reflection::SetRepeatedInt64, &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_INT32:
        return AddSets<int32_t>({-1, 0}, &Reflection::SetInt32, &Reflection::SetRepeatedInt32,
                                &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return AddSets<uint64_t>({1, uint64_t{1} << 63}, &Reflection::SetUInt64,
                                 &Reflection::SetRepeatedUInt64, &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return AddSets<double>({-1, 0, 1e300, std::nan("")}, &Reflection::SetDouble,
                               &Reflection::SetRepeatedDouble, &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_BOOL:
        return AddSets<bool>({!reflection_.GetBool(message_, field_)}, &Reflection::SetBool,
                             &Reflection::SetRepeatedBool, &Reflection::AddBool);
      case FieldDescriptor::CPPTYPE_ENUM: {
        std::vector<int> numbers;
        for (int i = 0; i < field_->enum_type()->value_count(); ++i) {
          numbers.push_back(field_->enum_type()->value(i)->number());
        }
        numbers.push_back(99);
        return AddSets<int>(numbers, &Reflection::SetEnumValue, &Reflection::SetRepeatedEnumValue,
                            &Reflection::AddEnumValue);
      }
      default:
        return AddTexts();
    }
  }

  Message& message_;
  const Reflection& reflection_;
  const FieldDescriptor* const field_;
  std::vector<Edit> edits_;
};

void Visit(Message& message, const std::string& path,
           const std::function<void(const std::string&)>& visit) {
  const std::unique_ptr<Message> original(message.New());
  original->CopyFrom(message);
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message.GetDescriptor()->field(i);
    FieldEdits edits(message, field);
    for (const Edit& edit : edits.All()) {
      edit.make();
      visit(path + edit.name);
      message.CopyFrom(*original);
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || !edits.IsSet()) continue;
    if (field->is_map()) continue;
    Message& inside = field->is_repeated() ? *reflection.MutableRepeatedMessage(&message, field, 0)
                                           : *reflection.MutableMessage(&message, field);
    Visit(inside, absl::StrCat(path, field->name(), "."), visit);
  }
}

}  // namespace

void ForEachEdit(Message& message, const std::function<void(const std::string& name)>& visit) {
  Visit(message, "", visit);
}

}  // namespace rope::testing
