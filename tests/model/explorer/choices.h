// Choices: what is left open within one event: whether somebody fails now, and how. Whoever carries
// the event out asks; an explorer carries it out again for each answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace amem::model {

class Choices {
 public:
  Choices() = default;
  explicit Choices(std::vector<std::uint8_t> taken) : taken_(std::move(taken)) {}
  /// One of so many is drawn; next() and taken() are not for these.
  explicit Choices(std::function<std::size_t(std::size_t)> below) : below_(std::move(below)) {}

  /// One of `count`; the first time the first.
  std::size_t choose(std::size_t count) {
    if (below_) return below_(count);
    if (at_ == taken_.size()) taken_.push_back(0);
    counts_.resize(at_ + 1);
    counts_[at_] = static_cast<std::uint8_t>(count);
    return taken_[at_++];
  }
  /// What is carried out is worth a word in a trace.
  void note(const std::string& text) { notes_ += ", " + text; }
  const std::string& notes() const { return notes_; }
  const std::vector<std::uint8_t>& taken() const { return taken_; }

  /// The answers for the next time; false: all have been given.
  bool next() {
    while (!taken_.empty() && taken_.back() + 1U >= counts_[taken_.size() - 1]) taken_.pop_back();
    if (taken_.empty()) return false;
    ++taken_.back();
    at_ = 0;
    notes_.clear();
    return true;
  }

 private:
  std::vector<std::uint8_t> taken_;
  std::vector<std::uint8_t> counts_;
  std::size_t at_ = 0;
  std::function<std::size_t(std::size_t)> below_;
  std::string notes_;
};

}  // namespace amem::model
