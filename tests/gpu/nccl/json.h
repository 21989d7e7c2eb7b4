// Json: reads what `amemctl --json` prints. Enough of JSON for that: no writing, no comments,
// numbers as double or as decimal strings (64-bit fields of protobuf are printed as strings).
//
// Pure values, usable from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace gpu_test {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;

  Json() = default;

  /// False when `text` is not one JSON value; `out` is then unspecified.
  static bool parse(std::string_view text, Json* out);

  /// A member of an object; a null value when this is no object or has no such member.
  const Json& operator[](std::string_view key) const;
  /// Elements of an array; none when this is no array.
  const Array& items() const;

  bool is_null() const { return std::holds_alternative<std::monostate>(v_); }
  /// A string's text; empty when this is no string.
  const std::string& text() const;
  /// A number, or a string that holds one; 0 when it is neither (protobuf leaves zeros out).
  std::uint64_t number() const;

 private:
  friend class JsonReader;
  std::variant<std::monostate, bool, double, std::string, Array, Object> v_;
};

}  // namespace gpu_test
