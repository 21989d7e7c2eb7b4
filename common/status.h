// Status and Result<T>: how every part of amem reports failure. No exceptions cross a function that
// returns one.
//
// The codes are gRPC's canonical ones with their numbers, so that a status travels unchanged from a
// rank through the session protocol and the control API to amemctl. The text is for people: what
// failed, for which group, rank or device, how much, and what to do next. Plain values, usable from
// any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

namespace amem {

enum class Code : std::uint32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& text() const { return text_; }

 private:
  Code code_ = Code::kOk;
  std::string text_;
};

/// Either a value or a Status that is not OK.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: meant to convert
  Result(Status status)
      : v_(std::in_place_index<1>, std::move(status)) {}  // NOLINT: meant to convert

  bool ok() const { return v_.index() == 0; }
  /// REQUIRES: ok().
  T& value() & { return std::get<0>(v_); }
  const T& value() const& { return std::get<0>(v_); }
  T&& value() && { return std::get<0>(std::move(v_)); }
  Status status() const { return ok() ? Status() : std::get<1>(v_); }

 private:
  std::variant<T, Status> v_;
};

/// The system's text for an errno value, behind what was being done: "open /x: Permission denied".
inline Status errno_status(Code code, std::string what, int error_number) {
  char buffer[128];
  what += ": ";
  what += strerror_r(error_number, buffer, sizeof buffer);  // the GNU variant returns the text
  return {code, std::move(what)};
}

}  // namespace amem
