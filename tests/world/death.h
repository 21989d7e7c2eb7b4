// Death of a broker: at an instant that the history chooses, between any two of the things by which
// others know of it. These are rows of the record, and packets to ranks and to the holder; the
// linker puts this before the functions that write and send them (CMakeLists.txt). What a broker
// does after its death nobody ever sees.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>

namespace amem::world::death {

/// A broker begins. `sent`: after each of its packets, also those that nobody gets; `died`: once,
/// where it is; `unsent`: then, where it is in a packet's place, of that packet.
void begin(std::function<void()> sent, std::function<void()> died,
           std::function<void(int socket, const msghdr& packet)> unsent);
/// In the place of the so-many-th effect from now; 0: not any more.
void comes_at(std::uint64_t effect);
/// Before each effect from now on: whether it comes in its place. Empty: nobody is asked.
void decided_by(std::function<bool()> dies);
/// The broker that has begun last is dead.
bool came();
/// Of an effect that is neither row nor packet; false: the broker dies in its place, or is dead.
bool takes_effect();

/// What is sent as long as there is one of these is not the broker's.
class Others {
 public:
  Others();
  ~Others();
  Others(const Others&) = delete;
};

}  // namespace amem::world::death
