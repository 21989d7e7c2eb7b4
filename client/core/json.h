// JSON of the control API's messages: the proto3 JSON mapping with the field names of broker.proto,
// every field present, and one departure: 64-bit integers are numbers, not strings, because they
// are sizes and times that programs compute with. protobuf's own JSON parsers accept both.
//
// Pure functions; any thread.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

namespace amem::client {

/// One object on one line, no newline at the end. Covers what broker.proto uses: integers, bool,
/// string, enum and message fields, single or repeated. REQUIRES: no other kind of field.
std::string to_json(const google::protobuf::Message& message);

/// A JSON string with its quotes. Bytes that are no valid UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

}  // namespace amem::client
