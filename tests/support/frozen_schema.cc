#include "tests/support/frozen_schema.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rope/v1/options.pb.h"

namespace rope::testing {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;
using ::google::protobuf::MethodDescriptor;
using ::google::protobuf::ServiceDescriptor;

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_map()) {
    return absl::StrCat("map<", TypeOf(*field.message_type()->map_key()), ", ",
                        TypeOf(*field.message_type()->map_value()), ">");
  }
  if (field.type() == FieldDescriptor::TYPE_MESSAGE) return field.message_type()->full_name();
  if (field.type() == FieldDescriptor::TYPE_ENUM) {
    return absl::StrCat("enum ", field.enum_type()->full_name());
  }
  return field.type_name();
}

absl::string_view LabelOf(const FieldDescriptor& field) {
  if (field.is_map()) return "";
  if (field.is_repeated()) return field.is_packed() ? "repeated packed " : "repeated ";
  const bool message = field.type() == FieldDescriptor::TYPE_MESSAGE;
  const bool tracked = field.has_presence() && field.real_containing_oneof() == nullptr;
  return tracked && !message ? "optional " : "";
}

std::string LineOf(const FieldDescriptor& field) {
  std::string line = absl::StrCat("field ", field.full_name(), " = ", field.number(), " ",
                                  LabelOf(field), TypeOf(field));
  if (field.is_extension()) absl::StrAppend(&line, " of ", field.containing_type()->full_name());
  if (field.real_containing_oneof() != nullptr) {
    absl::StrAppend(&line, " oneof ", field.real_containing_oneof()->name());
  }
  if (!field.is_extension() && field.json_name() != field.camelcase_name()) {
    absl::StrAppend(&line, " json ", field.json_name());
  }
  if (field.options().GetExtension(v1::planned)) absl::StrAppend(&line, " planned");
  return line;
}

// A range from `first` to `last`, both reserved, or a reserved name.
std::string ReservedLine(const std::string& type, int first, int last) {
  return absl::StrCat("reserved ", type, " ", first, " to ", last);
}
std::string ReservedLine(const std::string& type, const std::string& name) {
  return absl::StrCat("reserved ", type, " \"", name, "\"");
}

void AddEnum(const EnumDescriptor& type, SchemaLines& lines) {
  lines.insert(absl::StrCat("enum ", type.full_name()));
  for (int i = 0; i < type.value_count(); ++i) {
    lines.insert(absl::StrCat("enum_value ", type.full_name(), ".", type.value(i)->name(), " = ",
                              type.value(i)->number()));
  }
  for (int i = 0; i < type.reserved_range_count(); ++i) {
    const auto* range = type.reserved_range(i);
    lines.insert(ReservedLine(type.full_name(), range->start, range->end));
  }
  for (int i = 0; i < type.reserved_name_count(); ++i) {
    lines.insert(ReservedLine(type.full_name(), type.reserved_name(i)));
  }
}

void AddMessage(const Descriptor& type, SchemaLines& lines) {
  if (type.options().map_entry()) return;  // its field's line says all
  lines.insert(absl::StrCat("message ", type.full_name()));
  for (int i = 0; i < type.field_count(); ++i) lines.insert(LineOf(*type.field(i)));
  for (int i = 0; i < type.extension_count(); ++i) lines.insert(LineOf(*type.extension(i)));
  for (int i = 0; i < type.reserved_range_count(); ++i) {
    const auto* range = type.reserved_range(i);
    lines.insert(ReservedLine(type.full_name(), range->start, range->end - 1));  // end: exclusive
  }
  for (int i = 0; i < type.reserved_name_count(); ++i) {
    lines.insert(ReservedLine(type.full_name(), type.reserved_name(i)));
  }
  for (int i = 0; i < type.enum_type_count(); ++i) AddEnum(*type.enum_type(i), lines);
  for (int i = 0; i < type.nested_type_count(); ++i) AddMessage(*type.nested_type(i), lines);
}

std::string LineOf(const MethodDescriptor& method) {
  return absl::StrCat("method ", method.full_name(), " (",
                      method.client_streaming() ? "stream " : "", method.input_type()->full_name(),
                      ") returns (", method.server_streaming() ? "stream " : "",
                      method.output_type()->full_name(), ")");
}

void AddService(const ServiceDescriptor& service, SchemaLines& lines) {
  lines.insert(absl::StrCat("service ", service.full_name()));
  for (int i = 0; i < service.method_count(); ++i) lines.insert(LineOf(*service.method(i)));
}

void AddFiles(const FileDescriptor* file, const std::string& package,
              std::set<const FileDescriptor*>& files) {
  if (file->package() != package || !files.insert(file).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) AddFiles(file->dependency(i), package, files);
}

}  // namespace

std::set<const FileDescriptor*> FilesOfPackage(const std::vector<const FileDescriptor*>& roots) {
  std::set<const FileDescriptor*> files;
  for (const FileDescriptor* root : roots) AddFiles(root, roots.front()->package(), files);
  return files;
}

SchemaLines LinesOf(const FileDescriptor& file) {
  SchemaLines lines;
  for (int i = 0; i < file.message_type_count(); ++i) AddMessage(*file.message_type(i), lines);
  for (int i = 0; i < file.enum_type_count(); ++i) AddEnum(*file.enum_type(i), lines);
  for (int i = 0; i < file.extension_count(); ++i) lines.insert(LineOf(*file.extension(i)));
  for (int i = 0; i < file.service_count(); ++i) AddService(*file.service(i), lines);
  return lines;
}

}  // namespace rope::testing
