// Swap: which of the two operations of a swap comes when, and what becomes of one when the other
// fails. Group `out` is paused, group `in` resumed.
//
// Duplex: `in` begins as soon as `out` has its cut, and loads while `out` saves; it does not open
// before `out` is paused, so that the two never run at the same time. In turn: `in` begins when
// `out` is paused. Either way: when the pause fails `in` ends paused, when the resume fails both
// do.
//
// Pure; the caller carries out what a call returns, before the next call. Not synchronised.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace amem {

class Swap {
 public:
  enum class Next : std::uint8_t {
    kNothing,
    kBegin,      // resume `in`; if that is refused, in_ended()
    kBeginHeld,  // likewise, but it must not open before kGoOn
    kGoOn,       // `in` may take all memory there is, and open
    kGiveUp,     // `in` ends paused, with why_given_up()
    kFinish,     // both have ended, with result()
  };

  Swap(std::string out, std::string in, bool duplex)
      : out_(std::move(out)), in_(std::move(in)), duplex_(duplex) {}

  /// `out` has its cut: its memory is on its way out.
  Next out_leaves();
  Next out_ended(const Status& status);
  Next in_ended(const Status& status);

  Status why_given_up() const;
  /// REQUIRES: both have ended.
  Status result() const;

  const std::string& out() const { return out_; }
  const std::string& in() const { return in_; }

 private:
  enum class Part : std::uint8_t { kBefore, kUnderWay, kEnded };

  std::string out_;
  std::string in_;
  bool duplex_;
  bool out_has_ended_ = false;
  Part in_part_ = Part::kBefore;
  Status out_status_;
  Status in_status_;
};

}  // namespace amem
