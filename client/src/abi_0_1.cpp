// What programs that are linked with amem 0.1 call: symbols of AMEM_0 whose calls do something else
// since 0.2. The linker gives new programs those of AMEM_0.2.
#include <amem/amem.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "client/src/client.h"

#define AMEM_SINCE_0_1(function, name)           \
  extern "C" AMEM_API __typeof__(name) function; \
  __asm__(".symver " #function ", " #name "@AMEM_0")

namespace {

/// Once in the process: such programs call it again and again.
void warn_of_no_tags(const char* call, const char* everything) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  std::fprintf(stderr,
               "amem: [%d] warning: the program calls %s() with no tags. This is about all memory "
               "only because the program was built with amem 0.1. Let it call %s() for that: "
               "built with a newer amem, it gets INVALID_ARGUMENT\n",
               static_cast<int>(::getpid()), call, everything);
}

}  // namespace

AMEM_SINCE_0_1(cancel_0_1, amem_cancel);
AMEM_SINCE_0_1(pause_tags_0_1, amem_pause_tags);
AMEM_SINCE_0_1(resume_tags_0_1, amem_resume_tags);
AMEM_SINCE_0_1(client_pause_tags_0_1, amem_client_pause_tags);
AMEM_SINCE_0_1(client_resume_tags_0_1, amem_client_resume_tags);

/// Of the calls under way alone: the program may go on to use the client.
void cancel_0_1(amem_client* client) {
  if (client == nullptr) return;
  client->broker.cancel();
  client->broker.allow();
}

int pause_tags_0_1(const char* const* tags, size_t count, uint32_t timeout_ms, amem_error* error) {
  if (count > 0) return amem_pause_tags(tags, count, timeout_ms, error);
  warn_of_no_tags("amem_pause_tags", "amem_pause");
  return amem_pause(timeout_ms, error);
}

int resume_tags_0_1(const char* const* tags, size_t count, uint32_t timeout_ms, amem_error* error) {
  if (count > 0) return amem_resume_tags(tags, count, timeout_ms, error);
  warn_of_no_tags("amem_resume_tags", "amem_resume");
  return amem_resume(timeout_ms, error);
}

int client_pause_tags_0_1(amem_client* client, const char* group, const char* const* tags,
                          size_t count, uint32_t timeout_ms, amem_progress_callback callback,
                          void* user, amem_error* error) {
  if (count > 0)
    return amem_client_pause_tags(client, group, tags, count, timeout_ms, callback, user, error);
  warn_of_no_tags("amem_client_pause_tags", "amem_client_pause");
  return amem_client_pause(client, group, timeout_ms, callback, user, error);
}

int client_resume_tags_0_1(amem_client* client, const char* group, const char* const* tags,
                           size_t count, uint32_t timeout_ms, amem_progress_callback callback,
                           void* user, amem_error* error) {
  if (count > 0)
    return amem_client_resume_tags(client, group, tags, count, timeout_ms, callback, user, error);
  warn_of_no_tags("amem_client_resume_tags", "amem_client_resume");
  return amem_client_resume(client, group, timeout_ms, callback, user, error);
}
