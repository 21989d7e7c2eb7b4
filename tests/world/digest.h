// Digest: what a state is, as bytes in an order of their own, and the hash of these.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace amem::world {

class Digest {
 public:
  void add(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  void add(std::string_view text) {
    add(text.size());
    bytes_ += text;
  }
  template <class Numbers>
  void add_all(const Numbers& numbers) {
    add(numbers.size());
    for (const auto number : numbers) add(static_cast<std::uint64_t>(number));
  }
  std::uint64_t hash() const { return std::hash<std::string_view>()(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace amem::world
