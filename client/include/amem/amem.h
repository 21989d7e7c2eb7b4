/*
 * amem: GPU memory that groups of processes take turns with.
 *
 * Two independent parts:
 *   - A rank (a process with libamem_shim.so loaded) pauses and resumes its group from inside, and
 *     says what its memory is for: amem_pause, amem_resume, amem_region_begin, amem_group, ...
 *   - A controller talks to the node's broker, amemd: everything that takes an amem_client. It
 *     needs neither a GPU nor the shim.
 *
 * Errors. A function that can fail returns an amem_code, AMEM_OK on success, and describes a
 * failure in *error when error is not NULL. Output arguments are written on success only. No call
 * prints, aborts or throws.
 *
 * Threads. Every function may be called from any thread, and a client may be used from several at
 * once; only amem_close must be the last call on its client. No function is async-signal-safe.
 * After fork() a child must not use a client that its parent opened.
 *
 * Units. Times are milliseconds and sizes are bytes unless a name says otherwise.
 *
 * Strings are UTF-8 and end in NUL. Those passed in are only read during the call. An array that is
 * NULL though its count is not 0, or that has a NULL string, is AMEM_ERROR_INVALID_ARGUMENT.
 *
 * Protocol Buffers. The library registers proto/amem/v1/broker.proto with the libprotobuf.so that
 * it shares with the program. A program that also links stubs of its own made from that file
 * registers it twice, upon which libprotobuf ends the process at start: use this library or your
 * own stubs.
 *
 * ABI. Structures that the library hands to a callback may grow at the end; those that the caller
 * fills begin with their size. The soname changes with the major version. A program that is linked
 * with amem 0.1 keeps amem_cancel and empty lists of tags as they were there. The library warns
 * once on standard error of such an empty list.
 */
#ifndef AMEM_AMEM_H_
#define AMEM_AMEM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define AMEM_API __attribute__((visibility("default")))
#else
#define AMEM_API
#endif

/* gRPC's canonical codes with their numbers. Values not listed here may appear in later versions:
 * treat them as AMEM_ERROR_UNKNOWN. */
typedef enum amem_code {
  AMEM_OK = 0,
  AMEM_ERROR_CANCELLED = 1, /* a callback or amem_cancel ended the call; see "Stopping" below */
  AMEM_ERROR_UNKNOWN = 2,
  AMEM_ERROR_INVALID_ARGUMENT = 3,
  AMEM_ERROR_DEADLINE_EXCEEDED = 4, /* the text names the ranks that were waited for */
  AMEM_ERROR_NOT_FOUND = 5,         /* no such group or tag; the text lists the tags there are */
  AMEM_ERROR_ALREADY_EXISTS = 6,
  AMEM_ERROR_PERMISSION_DENIED = 7,
  AMEM_ERROR_RESOURCE_EXHAUSTED = 8,  /* pool or device too small; the text has both numbers */
  AMEM_ERROR_FAILED_PRECONDITION = 9, /* wrong state: already paused, running, no shim, ... */
  AMEM_ERROR_ABORTED = 10,            /* a rank died or failed; the group's state is in the text */
  AMEM_ERROR_OUT_OF_RANGE = 11,
  AMEM_ERROR_UNIMPLEMENTED = 12, /* the broker is older than this library */
  AMEM_ERROR_INTERNAL = 13,
  AMEM_ERROR_UNAVAILABLE = 14, /* no broker; the text names the socket */
  AMEM_ERROR_DATA_LOSS = 15    /* AMEM_VERIFY=1: restored bytes differ from the saved ones */
} amem_code;

/* Caller-owned. text is always terminated, and empty when code is AMEM_OK. */
typedef struct amem_error {
  int32_t code; /* an amem_code */
  char text[1020];
} amem_error;

/* "NOT_FOUND" for AMEM_ERROR_NOT_FOUND; "UNKNOWN" for an invalid code. Static. */
AMEM_API const char* amem_code_name(int code);

/* This library's version, e.g. "0.1.0". Static. */
AMEM_API const char* amem_version(void);

/* Frees a string that a function below returned. NULL is allowed. */
AMEM_API void amem_free(char* string);

/* ---- In a rank ------------------------------------------------------------------------------ */

/* 1 when the shim is loaded here and this process is a rank: it has a session with the broker,
 * which the first call opens if nothing has yet. 0 when there is no shim or it is inert
 * (AMEM_DISABLE=1, no broker, a child of fork). Never fails. */
AMEM_API int amem_is_active(void);

/* The group of this process: what amem_set_group, ncclSetGroupID or the Python package has set;
 * else, as the shim reads it, AMEM_GROUP of the environment, AMEM_GROUPID, or "default". Copies it,
 * terminated, to buffer.
 *   AMEM_ERROR_OUT_OF_RANGE  size is too small; 64 is always enough */
AMEM_API int amem_group(char* buffer, size_t size, amem_error* error);

/* Moves this process to another group; only before its first brokered allocation. Goes before
 * AMEM_GROUP of the environment. group: 1 to 63 characters of [A-Za-z0-9._-], not starting with '.'
 * or '-'.
 *   AMEM_ERROR_INVALID_ARGUMENT     no such name is allowed
 *   AMEM_ERROR_FAILED_PRECONDITION  the process has joined its group already; or no shim in it */
AMEM_API int amem_set_group(const char* group, amem_error* error);

/* Pauses this rank's group: releases its GPU memory and keeps every address. Takes effect when
 * every rank of the group has called it; returns when the group is paused. In between, and until
 * amem_resume has returned, threads of this process that launch GPU work wait. OK at once when the
 * group is paused already.
 *
 * timeout_ms: how long to wait for the other ranks; 0: AMEM_TIMEOUT of the environment, else 60 s.
 *   AMEM_ERROR_FAILED_PRECONDITION  no shim in this process; the text says how to load it
 *   AMEM_ERROR_UNAVAILABLE          the shim has no broker
 *   AMEM_ERROR_DEADLINE_EXCEEDED    some ranks did not ask in time; the group keeps running
 *   AMEM_ERROR_RESOURCE_EXHAUSTED   the host pool cannot hold the bytes; the group keeps running
 *   AMEM_ERROR_ABORTED, ...         as amem_client_pause */
AMEM_API int amem_pause(uint32_t timeout_ms, amem_error* error);

/* Restores the memory of this rank's group, at the same addresses, with the same contents. As
 * amem_pause otherwise; if it fails the group stays as it was and its bytes are safe.
 *   AMEM_ERROR_RESOURCE_EXHAUSTED  a device has too little free memory; the text has both numbers
 *   AMEM_ERROR_DATA_LOSS           with AMEM_VERIFY=1: restored bytes differ from the saved ones
 */
AMEM_API int amem_resume(uint32_t timeout_ms, amem_error* error);

/* As amem_pause and amem_resume, for memory with one of `count` tags, at most 64: of this rank, and
 * of those ranks that share some of it, which must ask for the same. The others run on. timeout_ms
 * 0: AMEM_TIMEOUT, else 1800 s. After a pause of chosen tags the group runs on: nothing waits, and
 * the program must not let the GPU touch that memory until it has been resumed. After a resume of
 * chosen tags of a paused group the group runs, and the same holds for what is still paused. For
 * all memory there are the two above.
 *   AMEM_ERROR_NOT_FOUND         the group has no memory of a tag
 *   AMEM_ERROR_INVALID_ARGUMENT  no tag, more than 64, or an empty one */
AMEM_API int amem_pause_tags(const char* const* tags, size_t count, uint32_t timeout_ms,
                             amem_error* error);
AMEM_API int amem_resume_tags(const char* const* tags, size_t count, uint32_t timeout_ms,
                              amem_error* error);

/* What a pause does with memory that ranks of other groups have opened, by IPC handle or
 * descriptor, and have not closed when it has waited for them for 500 ms. */
typedef enum amem_guests {
  AMEM_GUESTS_UNSPECIFIED = 0, /* as the broker is configured; pin when nobody has said otherwise */
  AMEM_GUESTS_PIN = 1,         /* it stays on its device, and the pause goes on */
  AMEM_GUESTS_REFUSE = 2       /* AMEM_ERROR_FAILED_PRECONDITION names them; the group runs on */
} amem_guests;

/* Which of a group's memory an operation is about, by tag. Zero what is not used. */
typedef struct amem_selection {
  size_t size;             /* sizeof(amem_selection) */
  const char* const* tags; /* only memory with one of these; none here and below: all */
  size_t tag_count;
  const char* const* except_tags; /* or: all memory but that with one of these */
  size_t except_count;
  const char* const* discard; /* of a pause: tags whose bytes it drops, whatever their policy */
  size_t discard_count;
  amem_guests guests; /* of a pause */
  int deep;           /* of a pause of everything, not 0: the driver then checkpoints the processes,
                       * and a resume restores them first; only where deep.enabled allows it */
  int force;          /* of a pause, not 0: discard may have "heap", all memory that no region
                       * names, such as weights; without it such a pause is refused */
} amem_selection;

/* As amem_pause and amem_resume, or with tags amem_pause_tags and amem_resume_tags, for what is
 * selected; NULL: everything. What a pause discards is zeroed after the resume.
 *   AMEM_ERROR_NOT_FOUND            the group has no memory of a tag
 *   AMEM_ERROR_INVALID_ARGUMENT     as amem_client_pause_selected; more than 64 tags
 *   AMEM_ERROR_FAILED_PRECONDITION  an earlier pause has kept bytes that would be dropped; or
 * ranks of other groups have memory open that must not stay; or the shim of this process is older
 * than this function */
AMEM_API int amem_pause_selected(const amem_selection* selection, uint32_t timeout_ms,
                                 amem_error* error);
AMEM_API int amem_resume_selected(const amem_selection* selection, uint32_t timeout_ms,
                                  amem_error* error);

typedef enum amem_policy {
  AMEM_POLICY_UNSPECIFIED = 0, /* only for a region: the tag's, which is keep until it is set */
  AMEM_POLICY_KEEP = 1,    /* a pause copies the bytes to the host pool, a resume restores them */
  AMEM_POLICY_DISCARD = 2, /* a pause drops the bytes; a resume zeroes them */
  AMEM_POLICY_DISCARD_FORCED = 3 /* of a tag: the same, also of "heap", which is all memory that no
                                  * region names, such as weights */
} amem_policy;

/* What a pause does from now on with the bytes of a tag of this rank's group; one rank's call is
 * enough. It goes before what regions say; what an operator has set (amem_set_policy) goes before
 * it.
 *   AMEM_ERROR_INVALID_ARGUMENT     the tag or policy; discard for "nccl", or unforced for "heap"
 *   AMEM_ERROR_FAILED_PRECONDITION  no shim in this process; the group is not running, or some
 *                                   memory of the tag is paused */
AMEM_API int amem_set_tag_policy(const char* tag, amem_policy policy, amem_error* error);

/* Begins a region of the calling thread: device memory that this thread takes from the driver until
 * amem_region_end gets the tag (1 to 31 of [A-Za-z0-9._-], not "nccl") and the policy. What an
 * allocator had taken before and hands out again keeps the tag it has. Regions do not nest. Needs
 * AMEM_SCOPE=regions or heap; with scope nccl it changes nothing and the shim warns once. NCCL's
 * memory keeps the tag nccl and is always kept.
 *
 * The same program runs with and without amem: without a shim in the process both calls only refuse
 * an empty tag; with one that is turned off they check these rules and do nothing else.
 *   AMEM_ERROR_INVALID_ARGUMENT     the tag or the policy
 *   AMEM_ERROR_FAILED_PRECONDITION  begin: this thread is in a region; end: it is in none */
AMEM_API int amem_region_begin(const char* tag, amem_policy policy, amem_error* error);
AMEM_API int amem_region_end(amem_error* error);

/* Device memory that the calling thread takes from the driver until amem_unbrokered_end is the
 * driver's own: no pause moves it, and a pause says how much there is of it. For what has to stay,
 * and for what a NIC or another group is to use. It may be freed at any time, by any thread. Within
 * a region, which goes on afterwards; regions neither begin nor end in between. NCCL's memory is
 * brokered all the same. Without a shim both calls do nothing.
 *   AMEM_ERROR_FAILED_PRECONDITION  begin: it has begun already; end: it has not; or the shim of
 *                                   this process is older than these functions */
AMEM_API int amem_unbrokered_begin(amem_error* error);
AMEM_API int amem_unbrokered_end(amem_error* error);

/* What this process holds, as the shim counts it without asking the broker: one JSON object on one
 * line, which the caller frees with amem_free:
 *   {"group", "rank_id", "scope",
 *    "brokered": [{"tag", "device", "resident_bytes", "paused_bytes", "imported_bytes",
 *                  "allocations"}],
 *    "unbrokered": [{"kind", "device", "bytes", "count"}]}
 *   AMEM_ERROR_FAILED_PRECONDITION  no shim in this process */
AMEM_API int amem_rank_stats(char** json, amem_error* error);

/* ---- A controller's connection ----------------------------------------------------------------
 */

typedef struct amem_client amem_client;

typedef struct amem_options {
  size_t size;               /* sizeof(amem_options) */
  const char* runtime_dir;   /* the broker's; NULL or "": AMEM_RUNTIME_DIR, else the default */
  const char* socket;        /* path of its control socket; NULL or "": runtime_dir/control.sock */
  uint32_t query_timeout_ms; /* for the calls that ask or set, and to begin a watch; 0: 5000 */
} amem_options;

/* Makes a client. options may be NULL. It connects with the first call and again whenever the
 * connection was lost, so the broker need not run yet. The caller owns *client: amem_close.
 *   AMEM_ERROR_INVALID_ARGUMENT  the socket's path is longer than a Unix socket's may be */
AMEM_API int amem_open(const amem_options* options, amem_client** client, amem_error* error);

/* Ends the connection and frees the client. No other call on it may be under way: amem_cancel, and
 * then wait for the threads that use it. NULL is allowed. */
AMEM_API void amem_close(amem_client* client);

/* Stops the client for good: every call under way on it, and every later one, such as one that
 * another thread is just about to make, fails with AMEM_ERROR_CANCELLED. Only the waiting ends: a
 * pause, resume or swap that the broker has begun goes on there. Afterwards the client can only be
 * closed; to go on, open another one. */
AMEM_API void amem_cancel(amem_client* client);

/* Asking. On success *json is one JSON object on one line, which the caller frees with amem_free.
 * It is the proto3 JSON form of the message of broker.proto that is named here, with its own field
 * names, all fields present, enums by name, and 64-bit numbers as plain numbers.
 *   AMEM_ERROR_UNAVAILABLE, AMEM_ERROR_PERMISSION_DENIED  the socket, and what to do about it
 *   AMEM_ERROR_NOT_FOUND, AMEM_ERROR_INVALID_ARGUMENT     the group
 *   AMEM_ERROR_DEADLINE_EXCEEDED                          no answer within query_timeout_ms */

/* NodeStatus: version, devices, pool, groups. */
AMEM_API int amem_status(amem_client* client, char** json, amem_error* error);
/* ListGroupsResponse. */
AMEM_API int amem_groups(amem_client* client, char** json, amem_error* error);
/* ListRanksResponse. group NULL or "": all groups. */
AMEM_API int amem_ranks(amem_client* client, const char* group, char** json, amem_error* error);
/* {"allocations": [AllocationInfo, ...]}, oldest first. group NULL or "": all groups. */
AMEM_API int amem_allocations(amem_client* client, const char* group, char** json,
                              amem_error* error);

/* What a pause does with the bytes of a tag ("weights", ...) of a group, from now on: keep or
 * discard. It goes before what regions say.
 *   AMEM_ERROR_NOT_FOUND            no such group
 *   AMEM_ERROR_INVALID_ARGUMENT     the tag; discard for "nccl", or unforced for "heap"
 *   AMEM_ERROR_FAILED_PRECONDITION  the group is not running, or memory of the tag is paused */
AMEM_API int amem_set_policy(amem_client* client, const char* group, const char* tag,
                             amem_policy policy, amem_error* error);

typedef enum amem_save_form {
  AMEM_SAVE_FORM_AUTO = 1,  /* a look at the bytes decides */
  AMEM_SAVE_FORM_DENSE = 2, /* all of them */
  AMEM_SAVE_FORM_SPARSE = 3 /* only blocks that are not zero, wherever that is shorter */
} amem_save_form;

/* How a pause saves the bytes that it keeps of a tag, from now on. Errors as of amem_set_policy. */
AMEM_API int amem_set_save_form(amem_client* client, const char* group, const char* tag,
                                amem_save_form form, amem_error* error);

/* ---- A controller's operations ----------------------------------------------------------------
 */

/* Valid during the callback. */
typedef struct amem_progress {
  const char* group;
  const char* phase; /* "quiesce", "save", "release", "drop", "admit", "create", ... */
  uint32_t ranks_done;
  uint32_t ranks_total;
  uint64_t bytes;      /* copied, released or mapped in this phase so far */
  uint64_t elapsed_us; /* since the operation began */
  int32_t done;     /* 1: the operation on this group has ended well; each group has one of these */
  const char* json; /* all of it, as one Progress of broker.proto */
} amem_progress;

/* Runs on the thread that made the call, between its beginning and its return. It may use the
 * client, but not close it. Return 0 to go on; anything else stops the waiting of this call alone,
 * with AMEM_ERROR_CANCELLED. */
typedef int (*amem_progress_callback)(const amem_progress* progress, void* user);

/* Pauses a group from outside: its ranks need not expect it. Blocks until the group is paused or
 * the pause has failed. callback may be NULL.
 *
 * timeout_ms: for the ranks to become quiet; 0: the broker's default. The other phases have
 * deadlines of their own in the broker.
 *   AMEM_ERROR_NOT_FOUND            no such group
 *   AMEM_ERROR_FAILED_PRECONDITION  it is not running
 *   AMEM_ERROR_DEADLINE_EXCEEDED    the text names the ranks, and says what state the group is in
 *   AMEM_ERROR_RESOURCE_EXHAUSTED   the pool is too small; the group keeps running
 *   AMEM_ERROR_ABORTED              a rank died or failed. The group keeps running; or, when
 *                                   something had been released already, it is paused with its
 *                                   bytes safe. The same holds for a deadline
 *   AMEM_ERROR_UNAVAILABLE          no broker, or the connection was lost on the way: ask
 *                                   amem_groups for the state
 *   AMEM_ERROR_CANCELLED            the waiting was stopped; the operation goes on */
AMEM_API int amem_client_pause(amem_client* client, const char* group, uint32_t timeout_ms,
                               amem_progress_callback callback, void* user, amem_error* error);

/* Resumes a paused group. timeout_ms: for mapping and loading; 0: the broker's default. Errors as
 * amem_client_pause. After any of them but AMEM_ERROR_CANCELLED the group is as before, with its
 * bytes safe; only a failure in the last phase, "open", leaves it running with its memory.
 *   AMEM_ERROR_RESOURCE_EXHAUSTED  a device has too little free memory
 *   AMEM_ERROR_DATA_LOSS           as amem_resume */
AMEM_API int amem_client_resume(amem_client* client, const char* group, uint32_t timeout_ms,
                                amem_progress_callback callback, void* user, amem_error* error);

/* As amem_client_pause and amem_client_resume, for the group's memory with one of `count` tags, at
 * most 64. What that means for the program: amem_pause_tags.
 *   AMEM_ERROR_INVALID_ARGUMENT     no tag, more than 64, or an empty one
 *   AMEM_ERROR_NOT_FOUND            no such group, or it has no memory of a tag
 *   AMEM_ERROR_FAILED_PRECONDITION  all of it is released, or back, already */
AMEM_API int amem_client_pause_tags(amem_client* client, const char* group, const char* const* tags,
                                    size_t count, uint32_t timeout_ms,
                                    amem_progress_callback callback, void* user, amem_error* error);
AMEM_API int amem_client_resume_tags(amem_client* client, const char* group,
                                     const char* const* tags, size_t count, uint32_t timeout_ms,
                                     amem_progress_callback callback, void* user,
                                     amem_error* error);

/* As amem_client_pause and amem_client_resume, for what is selected; NULL: everything. What a pause
 * discards is zeroed after the resume; the next pause goes by the policies again.
 *   AMEM_ERROR_INVALID_ARGUMENT     tags and except_tags at once; to discard "nccl", which is
 * always kept, "heap" without force, or a tag that the pause is not about; a resume's discard or
 * guests
 *   AMEM_ERROR_FAILED_PRECONDITION  also: an earlier pause has kept bytes that would be dropped;
 * ranks of other groups have memory open that must not stay */
AMEM_API int amem_client_pause_selected(amem_client* client, const char* group,
                                        const amem_selection* selection, uint32_t timeout_ms,
                                        amem_progress_callback callback, void* user,
                                        amem_error* error);
AMEM_API int amem_client_resume_selected(amem_client* client, const char* group,
                                         const amem_selection* selection, uint32_t timeout_ms,
                                         amem_progress_callback callback, void* user,
                                         amem_error* error);

/* The same of `count` groups, each named once, as one operation that ends all or none: until the
 * first of them releases memory, or opens, a failure of one leaves all as they were. The text of an
 * error names each group and its state. */
AMEM_API int amem_client_pause_groups(amem_client* client, const char* const* groups, size_t count,
                                      const amem_selection* selection, uint32_t timeout_ms,
                                      amem_progress_callback callback, void* user,
                                      amem_error* error);
AMEM_API int amem_client_resume_groups(amem_client* client, const char* const* groups, size_t count,
                                       const amem_selection* selection, uint32_t timeout_ms,
                                       amem_progress_callback callback, void* user,
                                       amem_error* error);

/* Pauses `out` and resumes `in`, at the same time as far as memory allows; `in` runs when `out` is
 * paused. When the pause fails `in` stays paused, and of `out` holds what amem_client_pause says;
 * when the resume fails both groups are paused and their bytes safe.
 * timeout_ms applies to each of the two. */
AMEM_API int amem_client_swap(amem_client* client, const char* out, const char* in,
                              uint32_t timeout_ms, amem_progress_callback callback, void* user,
                              amem_error* error);

/* As amem_client_swap; the pause of `out` drops the bytes of `count` tags, as of a selection
 * without force. */
AMEM_API int amem_client_swap_discard(amem_client* client, const char* out, const char* in,
                                      const char* const* discard, size_t count, uint32_t timeout_ms,
                                      amem_progress_callback callback, void* user,
                                      amem_error* error);

/* The same of sets: all of `out` go out, all of `in` come in, different groups. */
AMEM_API int amem_client_swap_groups(amem_client* client, const char* const* out, size_t out_count,
                                     const char* const* in, size_t in_count,
                                     const char* const* discard, size_t discard_count,
                                     uint32_t timeout_ms, amem_progress_callback callback,
                                     void* user, amem_error* error);

/* As amem_client_swap_groups; the pause of `out` is of this selection, NULL: everything. A swap is
 * of whole groups, so the selection has no tags and no except_tags. With `deep` the groups of `out`
 * become deep after they have left, and `in` does not wait for that.
 *   AMEM_ERROR_INVALID_ARGUMENT  as amem_client_pause_selected; the selection has tags */
AMEM_API int amem_client_swap_selected(amem_client* client, const char* const* out,
                                       size_t out_count, const char* const* in, size_t in_count,
                                       const amem_selection* selection, uint32_t timeout_ms,
                                       amem_progress_callback callback, void* user,
                                       amem_error* error);

typedef enum amem_group_state {
  AMEM_GROUP_STATE_UNSPECIFIED = 0,
  AMEM_GROUP_STATE_RUNNING = 1,
  AMEM_GROUP_STATE_PAUSING = 2,
  AMEM_GROUP_STATE_PAUSED = 3,
  AMEM_GROUP_STATE_RESUMING = 4
} amem_group_state;

/* Valid during the callback. */
typedef struct amem_event {
  uint64_t time_ms; /* Unix time */
  const char* group;
  const char* kind; /* "state", "rank_joined", "rank_left", "pool", "error" */
  const char* text;
  int32_t state;    /* an amem_group_state, with kind "state" */
  int32_t lost;     /* 1: events before this one were dropped because this reader was too slow */
  const char* json; /* all of it, as one Event of broker.proto */
} amem_event;

/* As amem_progress_callback. */
typedef int (*amem_event_callback)(const amem_event* event, void* user);

/* Calls back for every event from now on. group NULL or "": all groups. Returns when the callback
 * asks to stop or amem_cancel is called (AMEM_ERROR_CANCELLED), or when the connection is lost
 * (AMEM_ERROR_UNAVAILABLE; events in between are gone, so ask for the status after a reconnection).
 * */
AMEM_API int amem_watch(amem_client* client, const char* group, amem_event_callback callback,
                        void* user, amem_error* error);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* AMEM_AMEM_H_ */
