// Guide: which way a play goes: first as it is given, then the first way at each place where there
// are several. It keeps the others, each with the way to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace amem::model {

/// A way to a place, and what is chosen there.
struct Way {
  std::vector<std::uint8_t> choices;
  std::uint8_t faults = 0;  // in these
  // The last state before the last choice, and how many choices led to it.
  std::uint64_t from = 0;
  std::uint16_t from_at = 0;
};

class Guide {
 public:
  /// Whether such a state is new. Empty: each is, and nothing is kept.
  using IsNew = std::function<bool(std::uint64_t)>;
  Guide(Way given, IsNew is_new)
      : given_(std::move(given)), is_new_(std::move(is_new)), from_(given_.from) {}

  /// One of as many, which cost so many faults each. The first must cost none.
  std::size_t choose(const std::vector<std::uint8_t>& faults) {
    std::uint8_t chosen = 0;
    if (taken_.size() < given_.choices.size()) {
      chosen = given_.choices[taken_.size()];
      if (chosen >= faults.size()) {
        broken_ = kOtherwise;
        chosen = 0;
      }
    } else if (is_new_) {
      for (std::size_t i = 1; i < faults.size(); ++i) {
        Way way{taken_, static_cast<std::uint8_t>(faults_ + faults[i]), from_, from_at_};
        way.choices.push_back(static_cast<std::uint8_t>(i));
        others_.push_back(std::move(way));
      }
    }
    taken_.push_back(chosen);
    faults_ = static_cast<std::uint8_t>(faults_ + faults[chosen]);
    return chosen;
  }

  /// Nothing goes on by itself. False: this state is known, so the play need not go on.
  bool comes_to(const std::function<std::uint64_t()>& state) {
    if (!is_new_ || taken_.size() < given_.from_at) return true;
    if (taken_.size() < given_.choices.size()) {
      if (taken_.size() != given_.from_at) return true;
      if (state() != given_.from) broken_ = kOtherwise;
      from_at_ = given_.from_at;
      faults_at_from_ = faults_;
      return broken_.empty();
    }
    const std::uint64_t is = state();
    if (has_from()) edges_.push_back({from_, is, faults_ == faults_at_from_});
    from_ = is;
    from_at_ = static_cast<std::uint16_t>(taken_.size());
    faults_at_from_ = faults_;
    if (!is_new_(is)) return false;
    ++states_;
    return true;
  }

  struct Edge {
    std::uint64_t from;
    std::uint64_t to;
    bool by_itself;  // without a fault
  };
  const std::vector<Way>& others() const { return others_; }
  const std::vector<Edge>& edges() const { return edges_; }
  std::uint64_t states() const { return states_; }
  /// In what has been chosen.
  int faults() const { return faults_; }
  const std::vector<std::uint8_t>& taken() const { return taken_; }
  /// The same choices have not led to the same.
  const std::string& broken() const { return broken_; }

 private:
  static constexpr const char* kOtherwise = "the same choices lead to the same";
  bool has_from() const { return !given_.choices.empty() || states_ > 0; }

  const Way given_;
  const IsNew is_new_;
  std::vector<std::uint8_t> taken_;
  std::uint8_t faults_ = 0;
  std::uint64_t from_;
  std::uint16_t from_at_ = 0;
  std::uint8_t faults_at_from_ = 0;
  std::vector<Way> others_;
  std::vector<Edge> edges_;
  std::uint64_t states_ = 0;
  std::string broken_;
};

}  // namespace amem::model
