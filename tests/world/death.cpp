#include "tests/world/death.h"

#include <sys/types.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "common/status.h"
#include "daemon/record/record_log.h"

namespace amem::world::death {
namespace {

std::function<void()> after_packet;
std::function<void()> at_death;
std::function<void(int, const msghdr&)> at_unsent;
std::function<bool()> decides;
std::uint64_t effects_left = 0;  // 0: it lives on
bool dead = false;
int others = 0;

}  // namespace

bool takes_effect() {
  if (!dead && decides && decides()) effects_left = 1;
  if (dead || effects_left == 0) return !dead;
  dead = --effects_left == 0;
  if (dead) at_death();
  return !dead;
}

void begin(std::function<void()> sent, std::function<void()> died,
           std::function<void(int socket, const msghdr& packet)> unsent) {
  after_packet = std::move(sent);
  at_death = std::move(died);
  at_unsent = std::move(unsent);
  effects_left = 0;
  dead = false;
}

void comes_at(std::uint64_t effect) { effects_left = effect; }

void decided_by(std::function<bool()> dies) { decides = std::move(dies); }

bool came() { return dead; }

Others::Others() { ++others; }
Others::~Others() { --others; }

// ---- what the linker puts before the real ones --------------------------------------------------

// By their names in the object files: members of a class cannot be named otherwise.
#define AMEM_PUT "_ZN4amem9RecordLog3putEmSt17basic_string_viewIcSt11char_traitsIcEEPm"
#define AMEM_ERASE "_ZN4amem9RecordLog5eraseEm"
Status real_put(RecordLog* log, RowKey key, std::string_view row,
                std::uint64_t* promised) __asm__("__real_" AMEM_PUT);
Status real_erase(RecordLog* log, RowKey key) __asm__("__real_" AMEM_ERASE);
Status put(RecordLog* log, RowKey key, std::string_view row,
           std::uint64_t* promised) __asm__("__wrap_" AMEM_PUT);
Status erase(RecordLog* log, RowKey key) __asm__("__wrap_" AMEM_ERASE);

Status put(RecordLog* log, RowKey key, std::string_view row, std::uint64_t* promised) {
  return takes_effect() ? real_put(log, key, row, promised) : Status();
}

Status erase(RecordLog* log, RowKey key) {
  return takes_effect() ? real_erase(log, key) : Status();
}

extern "C" {
ssize_t __real_sendmsg(int socket, const msghdr* message, int flags);

ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags) {
  if (others > 0) return __real_sendmsg(socket, message, flags);
  if (const bool lived = !dead; !takes_effect()) {
    if (lived) at_unsent(socket, *message);
    if (after_packet) after_packet();
    errno = EPIPE;
    return -1;
  }
  const ssize_t sent = __real_sendmsg(socket, message, flags);
  const int error = errno;
  if (sent >= 0 && after_packet) after_packet();
  errno = error;
  return sent;
}
}

}  // namespace amem::world::death
