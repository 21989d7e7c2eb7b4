/* Stands in for libamem_shim.so: notes the calls it gets, and answers what a test tells it to. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char notes[1 << 16];
static int answer;
static char answer_text[256];
static char answer_for_tag[64]; /* when not empty: only calls with this tag fail */
static char stats[1 << 16] = "{}";
static char group[64];
static uint64_t shut_ms;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int held;   /* pause and resume wait until it is 0 */
static int inside; /* calls that wait */

static void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char* format, ...) {
  va_list arguments;
  size_t used;
  pthread_mutex_lock(&mutex);
  used = strlen(notes);
  va_start(arguments, format);
  vsnprintf(notes + used, sizeof notes - used, format, arguments);
  va_end(arguments);
  strncat(notes, "\n", sizeof notes - strlen(notes) - 1);
  pthread_mutex_unlock(&mutex);
}

static int report(char* error, size_t size) {
  if (answer != 0) snprintf(error, size, "%s", answer_text);
  return answer;
}

/* ---- for the tests ---- */

const char* fake_notes(void) { return notes; }
void fake_note(const char* text) { note("%s", text); }
void fake_answer(int code, const char* text, const char* for_tag) {
  answer = code;
  snprintf(answer_text, sizeof answer_text, "%s", text);
  snprintf(answer_for_tag, sizeof answer_for_tag, "%s", for_tag);
}
void fake_stats(const char* json) { snprintf(stats, sizeof stats, "%s", json); }
void fake_group(const char* name) { snprintf(group, sizeof group, "%s", name); }
void fake_shut(uint64_t milliseconds) { shut_ms = milliseconds; }
void fake_hold(int hold) {
  pthread_mutex_lock(&mutex);
  held = hold;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&mutex);
}
int fake_inside(void) {
  int now;
  pthread_mutex_lock(&mutex);
  now = inside;
  pthread_mutex_unlock(&mutex);
  return now;
}
void fake_backup(int one_piece);
void fake_reset(void) {
  fake_backup(1);
  notes[0] = '\0';
  fake_answer(0, "", "");
  fake_stats("{}");
  fake_group("");
  fake_hold(0);
  fake_shut(0);
}

/* ---- the shim's functions ---- */

/* At most for a minute: the test whose turn never comes is to fail, not to hang. */
static void wait_while_held(void) {
  struct timespec until;
  int late = 0;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 60;
  pthread_mutex_lock(&mutex);
  ++inside;
  while (held && late == 0) late = pthread_cond_timedwait(&moved, &mutex, &until);
  --inside;
  pthread_mutex_unlock(&mutex);
}

static int operate(const char* what, const char* const* tags, size_t count, uint32_t timeout_ms,
                   char* error, size_t size) {
  char list[512] = "";
  int concerned = answer_for_tag[0] == '\0';
  size_t i;
  for (i = 0; i < count; ++i) {
    strcat(list, i == 0 ? "" : ",");
    strncat(list, tags[i], 31);
    if (strcmp(tags[i], answer_for_tag) == 0) concerned = 1;
  }
  wait_while_held();
  note("%s [%s] %u", what, list, timeout_ms);
  return concerned ? report(error, size) : 0;
}

int amem_shim_active(void) { return 1; }
uint64_t amem_shim_shut_ms(void) { return shut_ms; }
int amem_shim_pause(const char* const* tags, size_t count, uint32_t timeout_ms, char* error,
                    size_t size) {
  return operate("pause", tags, count, timeout_ms, error, size);
}
int amem_shim_resume(const char* const* tags, size_t count, uint32_t timeout_ms, char* error,
                     size_t size) {
  return operate("resume", tags, count, timeout_ms, error, size);
}
int amem_shim_request_2(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, uint32_t timeout_ms, char* error, size_t size) {
  size_t i;
  if (guests != 0) note("guests %d", guests);
  for (i = 0; i < except_count; ++i) note("except %s", except[i]);
  for (i = 0; i < discard_count; ++i) note("discard %s", discard[i]);
  return operate(op == 1 ? "pause" : "resume", tags, count, timeout_ms, error, size);
}
int amem_shim_request_3(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, int deep, uint32_t timeout_ms, char* error, size_t size) {
  if (deep != 0) note("deep");
  return amem_shim_request_2(op, tags, count, except, except_count, discard, discard_count, guests,
                             timeout_ms, error, size);
}
int amem_shim_request_4(int op, const char* const* tags, size_t count, const char* const* except,
                        size_t except_count, const char* const* discard, size_t discard_count,
                        int guests, int deep, int force, uint32_t timeout_ms, char* error,
                        size_t size) {
  if (force != 0) note("force");
  return amem_shim_request_3(op, tags, count, except, except_count, discard, discard_count, guests,
                             deep, timeout_ms, error, size);
}
int amem_shim_set_policy(const char* tag, int policy, char* error, size_t size) {
  note("policy %s %d", tag, policy);
  return report(error, size);
}
int amem_shim_group(char* name, size_t size) { return snprintf(name, size, "%s", group); }
int amem_shim_set_group(const char* name, char* error, size_t size) {
  note("set_group %s", name);
  return report(error, size);
}
int amem_shim_region_begin(const char* tag, int policy, char* error, size_t size) {
  note("begin %s %d", tag, policy);
  return report(error, size);
}
int amem_shim_region_end(char* error, size_t size) {
  note("end");
  return report(error, size);
}
int amem_shim_unbrokered_begin(char* error, size_t size) {
  note("begin unbrokered");
  return report(error, size);
}
int amem_shim_unbrokered_end(char* error, size_t size) {
  note("end unbrokered");
  return report(error, size);
}
/* The bytes that every address had. */
static unsigned char saved[64] = "saved bytes";
static int in_one_piece = 1;
void fake_backup(int one_piece) { in_one_piece = one_piece; }
int amem_shim_backup_read(uint64_t address, uint64_t bytes, void* out, char* error, size_t size) {
  note("read %llu %llu", (unsigned long long)address, (unsigned long long)bytes);
  if (answer == 0) memcpy(out, saved, bytes);
  return report(error, size);
}
int amem_shim_backup_view(uint64_t address, uint64_t bytes, const void** view, char* error,
                          size_t size) {
  note("view %llu %llu", (unsigned long long)address, (unsigned long long)bytes);
  *view = answer == 0 && in_one_piece ? saved : NULL;
  return report(error, size);
}
int amem_shim_memory_margin(uint64_t bytes) {
  note("margin %llu", (unsigned long long)bytes);
  return 0;
}
int amem_shim_stats(char* json, size_t size) { return snprintf(json, size, "%s", stats); }

int ncclPause(void* comm) {
  note("ncclPause %s", comm == NULL ? "NULL" : "comm");
  return answer;
}
int ncclResume(void* comm) {
  note("ncclResume %s", comm == NULL ? "NULL" : "comm");
  return answer;
}
int ncclSetGroupID(int id) {
  note("ncclSetGroupID %d", id);
  return answer;
}
int ncclGetGroupID(int* id) {
  *id = 7;
  return answer;
}
int ncclMemStats(void) {
  note("ncclMemStats");
  return answer;
}
