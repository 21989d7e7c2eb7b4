#include "shim/blocks/peer_access.h"

#include <algorithm>

namespace amem::shim {

void PeerAccessTable::remove(const PeerAccess& peer) {
  std::erase_if(peers_, [&](const PeerAccess& p) {
    return p.accessor == peer.accessor && p.context == peer.context;
  });
}

std::vector<PeerAccess> PeerAccessTable::context_gone(CUcontext context) {
  std::vector<PeerAccess> ended;
  std::erase_if(peers_, [&](const PeerAccess& peer) {
    const bool ends = peer.accessor == context || peer.context == context;
    if (ends) ended.push_back(peer);
    return ends;
  });
  return ended;
}

bool PeerAccessTable::reaches(int accessor_device, int device) const {
  return devices_reaching(device).contains(accessor_device);
}

std::set<int> PeerAccessTable::devices_reaching(int device) const {
  std::set<int> devices = {device};
  for (const PeerAccess& peer : peers_)
    if (peer.device == device) devices.insert(peer.accessor_device);
  return devices;
}

std::set<CUcontext> PeerAccessTable::accessors(int device) const {
  std::set<CUcontext> contexts;
  for (const PeerAccess& peer : peers_)
    if (peer.device == device) contexts.insert(peer.accessor);
  return contexts;
}

}  // namespace amem::shim
