#include "tests/gpu/nccl/json.h"

#include <charconv>
#include <cstdlib>

namespace gpu_test {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  bool document(Json* out) { return value(out, 0) && (skip_space(), at_ == text_.size()); }

 private:
  static constexpr int kMaxDepth = 64;

  bool value(Json* out, int depth) {
    skip_space();
    if (at_ == text_.size() || depth > kMaxDepth) return false;
    switch (text_[at_]) {
      case '{':
        return object(out, depth);
      case '[':
        return array(out, depth);
      case '"': {
        std::string s;
        if (!string(&s)) return false;
        out->v_ = std::move(s);
        return true;
      }
      case 't':
        out->v_ = true;
        return word("true");
      case 'f':
        out->v_ = false;
        return word("false");
      case 'n':
        out->v_ = std::monostate{};
        return word("null");
      default:
        return number(out);
    }
  }

  bool object(Json* out, int depth) {
    Json::Object members;
    ++at_;
    if (!next('}')) {
      do {
        std::string key;
        skip_space();
        Json member;
        if (!string(&key) || !next(':') || !value(&member, depth + 1)) return false;
        members[std::move(key)] = std::move(member);
      } while (next(','));
      if (!next('}')) return false;
    }
    out->v_ = std::move(members);
    return true;
  }

  bool array(Json* out, int depth) {
    Json::Array elements;
    ++at_;
    if (!next(']')) {
      do {
        Json element;
        if (!value(&element, depth + 1)) return false;
        elements.push_back(std::move(element));
      } while (next(','));
      if (!next(']')) return false;
    }
    out->v_ = std::move(elements);
    return true;
  }

  bool string(std::string* out) {
    if (at_ == text_.size() || text_[at_] != '"') return false;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') return ++at_, true;
      if (c != '\\') {
        *out += c;
        continue;
      }
      if (++at_ == text_.size()) return false;
      if (text_[at_] == 'u') {  // names we look at are ASCII; the rest only has to be skipped
        if (at_ + 4 >= text_.size()) return false;
        at_ += 4;
        *out += '?';
        continue;
      }
      constexpr std::string_view kFrom = "\"\\/bfnrt";
      constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
      const std::size_t known = kFrom.find(text_[at_]);
      if (known == std::string_view::npos) return false;
      *out += kTo[known];
    }
    return false;
  }

  bool number(Json* out) {
    double d = 0;
    const auto [end, error] = std::from_chars(&text_[at_], text_.data() + text_.size(), d);
    if (error != std::errc{}) return false;
    at_ = static_cast<std::size_t>(end - text_.data());
    out->v_ = d;
    return true;
  }

  bool word(std::string_view w) {
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }

  bool next(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string::npos)
      ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

bool Json::parse(std::string_view text, Json* out) { return JsonReader(text).document(out); }

const Json& Json::operator[](std::string_view key) const {
  static const Json kNull;
  const auto* object = std::get_if<Object>(&v_);
  if (object == nullptr) return kNull;
  const auto it = object->find(key);
  return it == object->end() ? kNull : it->second;
}

const Json::Array& Json::items() const {
  static const Array kNone;
  const auto* array = std::get_if<Array>(&v_);
  return array == nullptr ? kNone : *array;
}

const std::string& Json::text() const {
  static const std::string kEmpty;
  const auto* s = std::get_if<std::string>(&v_);
  return s == nullptr ? kEmpty : *s;
}

std::uint64_t Json::number() const {
  if (const auto* d = std::get_if<double>(&v_)) return static_cast<std::uint64_t>(*d);
  return std::strtoull(text().c_str(), nullptr, 10);
}

}  // namespace gpu_test
