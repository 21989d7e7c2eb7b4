// What stands in for the add-on `checkpoint` in a build without it.
#include "daemon/operations/evictor.h"

namespace amem {

MakeEvictor make_evictor() { return nullptr; }

}  // namespace amem
