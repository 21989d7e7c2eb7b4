// NoCancel: no pthread_cancel acts on the calling thread for a scope.
//
// Programs do not expect the driver's calls to be cancellation points, but conditions, poll and
// write in ours are. A thread that is cancelled there would be unwound with its request still on a
// list, or through a function that is noexcept, which ends the process.
#pragma once

#include <pthread.h>

namespace amem::shim {

class NoCancel {
 public:
  NoCancel() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancel() { pthread_setcancelstate(before_, nullptr); }
  NoCancel(const NoCancel&) = delete;
  NoCancel& operator=(const NoCancel&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace amem::shim
