#include "client/core/json.h"

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <cstdio>

#include "common/utf8.h"

namespace amem::client {
namespace {

namespace pb = google::protobuf;

void append_message(std::string& out, const pb::Message& message);

/// `index` -1: the field is not repeated.
void append_value(std::string& out, const pb::Message& message, const pb::FieldDescriptor* field,
                  int index) {
  using Field = pb::FieldDescriptor;
  const pb::Reflection& in = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case Field::CPPTYPE_INT32:
      out += std::to_string(one ? in.GetInt32(message, field)
                                : in.GetRepeatedInt32(message, field, index));
      break;
    case Field::CPPTYPE_INT64:
      out += std::to_string(one ? in.GetInt64(message, field)
                                : in.GetRepeatedInt64(message, field, index));
      break;
    case Field::CPPTYPE_UINT32:
      out += std::to_string(one ? in.GetUInt32(message, field)
                                : in.GetRepeatedUInt32(message, field, index));
      break;
    case Field::CPPTYPE_UINT64:
      out += std::to_string(one ? in.GetUInt64(message, field)
                                : in.GetRepeatedUInt64(message, field, index));
      break;
    case Field::CPPTYPE_BOOL:
      out += (one ? in.GetBool(message, field) : in.GetRepeatedBool(message, field, index))
                 ? "true"
                 : "false";
      break;
    case Field::CPPTYPE_ENUM: {
      // By number, so that a value of a newer broker that we have no name for comes through.
      const int value =
          one ? in.GetEnumValue(message, field) : in.GetRepeatedEnumValue(message, field, index);
      const auto* known = field->enum_type()->FindValueByNumber(value);
      out += known != nullptr ? json_string(known->name()) : std::to_string(value);
      break;
    }
    case Field::CPPTYPE_STRING:
      out += json_string(one ? in.GetString(message, field)
                             : in.GetRepeatedString(message, field, index));
      break;
    case Field::CPPTYPE_MESSAGE:
      append_message(
          out, one ? in.GetMessage(message, field) : in.GetRepeatedMessage(message, field, index));
      break;
    case Field::CPPTYPE_FLOAT:
    case Field::CPPTYPE_DOUBLE:
      out += "null";  // excluded by REQUIRES; still valid JSON
      break;
  }
}

void append_message(std::string& out, const pb::Message& message) {
  const pb::Descriptor& type = *message.GetDescriptor();
  out += '{';
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor* field = type.field(i);
    if (i > 0) out += ',';
    out += '"' + field->name() + "\":";
    if (!field->is_repeated()) {
      append_value(out, message, field, -1);
      continue;
    }
    out += '[';
    const int size = message.GetReflection()->FieldSize(message, field);
    for (int item = 0; item < size; ++item) {
      if (item > 0) out += ',';
      append_value(out, message, field, item);
    }
    out += ']';
  }
  out += '}';
}

}  // namespace

std::string to_json(const google::protobuf::Message& message) {
  std::string out;
  append_message(out, message);
  return out;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out += '"';
}

}  // namespace amem::client
