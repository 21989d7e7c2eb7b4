// What a model of a node is made of, but for the machines: processes with what they map, messages
// under way, memory and where its bytes are, the pool. Plain data of fixed size, copied as it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "tests/model/explorer/digest.h"

namespace amem::model {

inline constexpr int kMostGroups = 3;
inline constexpr int kRanksEach = 3;   // of a group; the last one joins late
inline constexpr int kPiecesEach = 3;  // of memory
inline constexpr int kMostRanks = kMostGroups * kRanksEach;
inline constexpr int kMostPieces = kMostGroups * kPiecesEach;
inline constexpr int kMostChunks = kMostPieces;
inline constexpr int kCopies = 4;  // of one piece on its device at a time, of different attempts
inline constexpr int kMostQueued = 12;

/// The ranks, and the pieces, of all groups are numbered through.
constexpr int group_of_rank(int rank) { return rank / kRanksEach; }
constexpr int group_of_piece(int piece) { return piece / kPiecesEach; }
constexpr unsigned bit_of(int piece) { return 1U << (piece % kPiecesEach); }
template <class Number>
constexpr std::uint8_t u8(Number value) {
  return static_cast<std::uint8_t>(value);
}
template <class Number>
constexpr std::size_t at(Number index) {
  return static_cast<std::size_t>(index);
}
/// Sets of a group's pieces.
inline void set_bit(std::uint8_t& set, int piece) { set = u8(set | bit_of(piece)); }
inline void clear_bit(std::uint8_t& set, int piece) { set = u8(set & ~bit_of(piece)); }
inline bool has(std::uint8_t set, int piece) { return (set & bit_of(piece)) != 0; }
/// Never 0.
inline std::uint8_t packed(Epoch epoch) { return u8(16 * epoch.attempt + epoch.wave + 1); }

constexpr RankId id_of(int rank) { return static_cast<RankId>(rank) + 1; }
constexpr int rank_of(RankId id) { return static_cast<int>(id) - 1; }

/// What a program would find there. A program that runs writes all the time: what it has is true,
/// and every other copy is wrong from then on.
enum class Bytes : std::uint8_t { kNone, kWrong, kTrue };

enum class Kind : std::uint8_t {
  kNothing,
  // to a rank
  kQuiesce,
  kMeasure,
  kSave,
  kRelease,
  kBring,  // Map, and Load of `loads`
  kOpen,
  kDetach,
  kRest,
  kMake,
  // from a rank
  kQuiet,
  kMeasured,
  kSaved,
  kReleased,
  kMapped,
  kLoaded,
  kOpened,
  kDetached,
  kRested,
  kFreed,
  kAsks,
  kMade,
};

struct Message {
  Kind kind = Kind::kNothing;
  std::uint8_t attempt = 0;
  std::uint8_t wave = 0;
  std::uint8_t pieces = 0;  // of its group
  std::uint8_t loads = 0;   // of these, with bytes from the pool
  bool last = false;        // or whole, of a Release: the rank has nothing to run with any more
  bool undo = false;        // or failed, of an answer
  bool rests = false;       // of a Release: no step follows before the group is resumed
  std::array<std::uint8_t, kPiecesEach> place{};  // the copy to map, or the chunk, from 1 on
  std::array<std::uint8_t, kPiecesEach> since{};  // of a Save: whose bytes are there; 0: nobody's

  Epoch epoch() const { return {attempt, wave}; }
};

struct Queue {
  std::uint8_t count = 0;
  std::array<Message, kMostQueued> messages{};

  bool full() const { return count == kMostQueued; }
  void push(const Message& message) { messages[count++] = message; }
  Message pop() {
    const Message first = messages[0];
    for (std::size_t i = 1; i < count; ++i) messages[i - 1] = messages[i];
    messages[--count] = {};
    return first;
  }
  void clear() { *this = {}; }
};

/// What a rank knows of the bytes that it has saved: their hashes.
struct Hashes {
  std::uint8_t attempt = 0;  // of the pause; 0: it has none
  std::uint8_t place = 0;    // the chunk, from 1 on

  friend bool operator==(const Hashes&, const Hashes&) = default;
};

enum class Gate : std::uint8_t { kShut, kOpen, kFails };

struct Process {
  bool lives = false;
  bool connected = false;  // as it knows itself
  bool over = false;       // its session has ended, whoever knows
  bool member = false;     // as the broker knows
  bool lost = false;       // likewise: its session has ended, it lives
  bool expected = false;   // likewise: of the broker before; it has not come back
  Gate gate = Gate::kShut;
  bool paused = false;        // has let go of everything in a pause
  bool rests = false;         // its gate is shut, and its program may free
  bool checkpointed = false;  // or locked: whoever calls its driver waits
  bool copy_failed = false;
  bool map_failed = false;
  std::uint8_t holds = 0;                        // pieces
  std::uint8_t brought = 0;                      // of these, by the resume under way
  std::array<std::uint8_t, kPiecesEach> maps{};  // which copy; 0: none
  std::uint8_t asked = 0;                        // requests not answered yet
  bool asks_resume = false;                      // these
  std::array<Hashes, kPiecesEach> hashes{};
  Queue in, out;
  // What the broker keeps of it: Saves that it has not answered, as 16 * attempt + wave.
  std::array<std::uint8_t, 4> saving{};

  bool runs() const { return lives && connected && gate == Gate::kOpen; }
};

enum class Kept : std::uint8_t { kNot, kMemory, kIncoming };

struct Piece {
  bool exists = false;
  bool keep = true;  // else a pause drops its bytes
  char tag = 'a';
  std::array<std::uint8_t, kRanksEach> sharers{};  // ranks from 1 on, in their order; 0: no more
  std::uint8_t on_device = 0;                      // the copy that the broker has
  bool paused = false;
  bool stayed = false;
  bool opened = false;     // a guest has it
  std::uint8_t chunk = 0;  // from 1 on
  std::uint8_t saver = 0;  // a rank from 1 on
  std::uint8_t loader = 0;
  std::uint8_t attempt = 0;  // the pause that has taken the chunk
  std::uint8_t since = 0;    // the chunk has the bytes of this pause, until it is saved; 0: of none
  bool sent = false;         // the saver has been told to save
  bool hashed = false;       // it has, and has the hashes
  std::uint8_t maker = 0;  // the keeper from 1 on, where it has made the memory; 0: the broker does
  // What the next broker finds of it besides: in the record its Saved, which is this piece's as it
  // stands, and with the sharer what is on the device.
  bool row = false;
  bool leaves = false;  // it says so: of a pause in waves, ranks are told to let go of it
  Kept kept = Kept::kNot;
  std::array<Bytes, kCopies + 1> bytes{};  // of each copy, from 1 on

  int keeper() const { return sharers[0] - 1; }
  bool held() const { return sharers[0] != 0; }
  bool shared_by(int rank) const {
    for (const std::uint8_t sharer : sharers)
      if (sharer == rank + 1) return true;
    return false;
  }
  bool left() const { return on_device == 0 || stayed; }
};

struct Chunk {
  std::uint8_t owner = 0;  // a piece from 1 on
  std::uint8_t limbo = 0;  // a rank from 1 on that may write to it still
  Bytes bytes = Bytes::kNone;
  std::uint8_t of = 0;  // the piece whose bytes these are
  // Retained, as the broker knows. Nobody owns it then.
  std::uint8_t retained = 0;  // a piece from 1 on
  std::uint8_t attempt = 0;   // the pause whose bytes it has
  std::uint8_t saver = 0;     // a rank from 1 on
  std::uint8_t age = 0;       // the oldest has 1
  // What it has indeed.
  std::uint8_t version = 0;  // the pause whose bytes these are; 0: of several, or of none
  bool torn = false;         // not those that were hashed
};

/// What the broker's side keeps of one group's operation.
struct Job {
  bool under_way = false;
  bool pause = false;
  bool whole = false;
  bool by_operator = false;  // by the operator, not from inside
  bool measured = false;
  bool in_waves = false;
  bool released = false;      // the first Release has been sent: no return
  bool opened = false;        // Open has been sent
  bool awaits_space = false;  // nothing more can be created now
  bool creating = false;
  bool was_paused = false;
  bool deep = false;
  bool partial = false;
  std::uint8_t member = 0;    // of the transaction
  std::uint8_t selected = 0;  // pieces
  std::uint8_t wave = 0;      // pieces that leave now
  std::uint8_t later = 0;     // that leave in later waves
  std::uint8_t to_create = 0;
  std::array<std::uint8_t, kPiecesEach> asked{};  // to make it: a rank from 1 on
  std::uint8_t failed_savers = 0;                 // ranks of the group
};

/// A group's row in the record.
struct Row {
  bool paused = false;
  bool under_way = false;
  bool resume = false;
  bool loaded = false;
  bool waves = false;
  bool by_operator = false;
  bool deep = false;
  bool is_to_be_deep = false;
  bool partial = false;
  char tag = 0;
  std::uint8_t attempt = 0;
  std::uint8_t restart = 0;
};

struct State {
  std::array<Process, kMostRanks> ranks{};
  std::array<Piece, kMostPieces> pieces{};
  std::array<Chunk, kMostChunks> chunks{};
  std::array<Job, kMostGroups> jobs{};
  std::array<Row, kMostGroups> rows{};
  std::array<bool, kMostGroups> paused{};  // where the last operation ended
  std::array<bool, kMostGroups> erred{};   // the pause that it is in
  std::array<bool, kMostGroups> partly{};  // it has left some of its memory
  bool not_let_go = false;                 // the driver has refused to let go of memory
  std::uint8_t chunk_count = 0;
  bool retain = false;                  // the scenario's
  std::array<Time, kMostGroups> now{};  // each group's own: deadlines pass in every order
  std::uint8_t faults = 0;              // that may still happen
  std::uint8_t joins = 0;               // likewise
  std::uint8_t restarts = 0;            // likewise: deaths of the broker
  std::uint8_t script_at = 0;
  bool by_operator = false;  // a transaction of the operator is under way
  std::uint8_t deepens = 0;  // its groups that were paused before: they are only made deep
  std::uint8_t space = 0;    // pieces that may be created before those that go out have left
  bool limited = false;      // so it is
};
static_assert(std::is_trivially_copyable_v<State>);

void add(const State& state, Digest& digest);

}  // namespace amem::model
