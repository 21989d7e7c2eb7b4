#include "daemon/phases/swap.h"

namespace amem {

Swap::Next Swap::out_leaves() {
  if (!duplex_ || out_has_ended_ || in_part_ != Part::kBefore) return Next::kNothing;
  in_part_ = Part::kUnderWay;
  return Next::kBeginHeld;
}

Swap::Next Swap::out_ended(const Status& status) {
  out_has_ended_ = true;
  out_status_ = status;
  switch (in_part_) {
    case Part::kBefore:
      if (!status.ok()) return Next::kFinish;
      in_part_ = Part::kUnderWay;
      return Next::kBegin;
    case Part::kUnderWay:
      return status.ok() ? Next::kGoOn : Next::kGiveUp;
    case Part::kEnded:
      break;
  }
  return Next::kFinish;
}

Swap::Next Swap::in_ended(const Status& status) {
  in_part_ = Part::kEnded;
  in_status_ = status;
  return out_has_ended_ ? Next::kFinish : Next::kNothing;
}

Status Swap::why_given_up() const {
  return {Code::kAborted, "given up, because the pause of group '" + out_ + "' failed"};
}

Status Swap::result() const {
  if (!out_status_.ok()) {
    if (in_status_.ok()) return out_status_;
    return {out_status_.code(), out_status_.text() + "; " + in_status_.text()};
  }
  if (in_status_.ok()) return {};
  return {in_status_.code(), in_status_.text() + "; group '" + out_ + "' is paused"};
}

}  // namespace amem
