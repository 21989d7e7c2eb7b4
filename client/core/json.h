// JSON of the control API's messages: the proto3 JSON mapping with the field names of broker.proto,
// every field present, and one departure: 64-bit integers are numbers, not strings, because they
// are sizes and times that programs compute with. protobuf's own JSON parsers accept both.
//
// Pure functions; any thread.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace amem::client {

using Json = nlohmann::ordered_json;

/// Covers what broker.proto uses: integers, bool, string, enum and message fields, single or
/// repeated. REQUIRES: no other kind of field.
Json json_of(const google::protobuf::Message& message);
/// Returns one line, without a newline at the end. Bytes that are not valid UTF-8 become U+FFFD.
std::string text_of(const Json& json);
/// Both.
std::string to_json(const google::protobuf::Message& message);

}  // namespace amem::client
