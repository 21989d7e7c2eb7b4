#include "daemon/fleet/fan_out.h"

namespace amem {

std::vector<Branch> fan_out(std::size_t count) {
  std::size_t heads = count;
  if (count > kAllDirect) {
    // As many calls for a head as for the leader.
    heads = 1;
    while (heads * heads < count) ++heads;
  }
  std::vector<Branch> branches;
  for (std::size_t head = 0; head < heads; ++head) branches.push_back({head, {}});
  for (std::size_t node = heads; node < count; ++node)
    branches[(node - heads) % heads].rest.push_back(node);
  return branches;
}

}  // namespace amem
