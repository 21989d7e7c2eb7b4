#include "client/core/json.h"

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>

namespace amem::client {
namespace {

namespace pb = google::protobuf;

/// `index` -1: the field is not repeated.
Json value_of(const pb::Message& message, const pb::FieldDescriptor* field, int index) {
  using Field = pb::FieldDescriptor;
  const pb::Reflection& in = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case Field::CPPTYPE_INT32:
      return one ? in.GetInt32(message, field) : in.GetRepeatedInt32(message, field, index);
    case Field::CPPTYPE_INT64:
      return one ? in.GetInt64(message, field) : in.GetRepeatedInt64(message, field, index);
    case Field::CPPTYPE_UINT32:
      return one ? in.GetUInt32(message, field) : in.GetRepeatedUInt32(message, field, index);
    case Field::CPPTYPE_UINT64:
      return one ? in.GetUInt64(message, field) : in.GetRepeatedUInt64(message, field, index);
    case Field::CPPTYPE_BOOL:
      return one ? in.GetBool(message, field) : in.GetRepeatedBool(message, field, index);
    case Field::CPPTYPE_ENUM: {
      // By number, so that a value of a newer broker that we have no name for comes through.
      const int value =
          one ? in.GetEnumValue(message, field) : in.GetRepeatedEnumValue(message, field, index);
      const auto* known = field->enum_type()->FindValueByNumber(value);
      return known != nullptr ? Json(known->name()) : Json(value);
    }
    case Field::CPPTYPE_STRING:
      return one ? in.GetString(message, field) : in.GetRepeatedString(message, field, index);
    case Field::CPPTYPE_MESSAGE:
      return json_of(one ? in.GetMessage(message, field)
                         : in.GetRepeatedMessage(message, field, index));
    case Field::CPPTYPE_FLOAT:
    case Field::CPPTYPE_DOUBLE:
      break;  // excluded by REQUIRES; null is still valid JSON
  }
  return nullptr;
}

}  // namespace

Json json_of(const google::protobuf::Message& message) {
  const pb::Descriptor& type = *message.GetDescriptor();
  Json object = Json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor* field = type.field(i);
    Json& value = object[field->name()];
    if (!field->is_repeated()) {
      value = value_of(message, field, -1);
      continue;
    }
    value = Json::array();
    const int size = message.GetReflection()->FieldSize(message, field);
    for (int item = 0; item < size; ++item) value.push_back(value_of(message, field, item));
  }
  return object;
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_json(const google::protobuf::Message& message) { return text_of(json_of(message)); }

}  // namespace amem::client
