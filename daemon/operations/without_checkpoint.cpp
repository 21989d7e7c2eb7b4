// What stands in for the add-on `checkpoint` in a build without it.
#include "daemon/operations/evictor.h"

namespace amem {

MakeEvictor make_evictor() {
  return [](EventLoop& loop, Duration, const MakeProofPool&) { return no_evictor(loop); };
}

}  // namespace amem
