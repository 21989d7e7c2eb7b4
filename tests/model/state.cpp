#include "tests/model/state.h"

namespace amem::model {
namespace {

void add_queue(const Queue& queue, bool retain, Digest& digest) {
  digest.add(queue.count);
  for (std::size_t i = 0; i < queue.count; ++i) {
    const Message& m = queue.messages[i];
    digest.add(static_cast<std::uint64_t>(m.kind) * 8 + (m.rests ? 4 : 0) + (m.last ? 2 : 0) +
               (m.undo ? 1 : 0));
    for (const std::uint8_t part : {m.attempt, m.wave, m.pieces, m.loads}) digest.add(part);
    digest.add_all(m.place);
    if (retain) digest.add_all(m.since);
  }
}

void add_process(const Process& p, bool retain, Digest& digest) {
  unsigned flags = 0;
  for (const bool flag : {p.lives, p.connected, p.over, p.member, p.lost, p.expected, p.paused,
                          p.rests, p.copy_failed, p.map_failed, p.asks_resume && p.asked > 0})
    flags = 2 * flags + (flag ? 1 : 0);
  digest.add(flags);
  digest.add(static_cast<std::uint64_t>(p.gate));
  digest.add(p.holds);
  digest.add(p.brought);
  digest.add(p.asked);
  digest.add_all(p.maps);
  digest.add_all(p.saving);
  add_queue(p.in, retain, digest);
  add_queue(p.out, retain, digest);
  if (!retain) return;
  for (const Hashes& hashes : p.hashes) digest.add(hashes.attempt + 64U * hashes.place);
}

void add_piece(const Piece& p, bool retain, Digest& digest) {
  digest.add((p.exists ? 1U : 0U) | (p.paused ? 2U : 0U) | (p.stayed ? 4U : 0U) |
             (p.opened ? 8U : 0U));
  digest.add_all(p.sharers);
  for (const std::uint8_t part : {p.on_device, p.chunk, p.saver, p.loader, p.maker})
    digest.add(part);
  digest.add_all(p.bytes);
  if (!retain) return;
  for (const std::uint8_t part : {p.attempt, p.since}) digest.add(part);
  digest.add((p.sent ? 1U : 0U) | (p.hashed ? 2U : 0U));
}

void add_job(const Job& job, Digest& digest) {
  unsigned flags = 0;
  for (const bool flag :
       {job.under_way, job.pause, job.whole, job.by_operator, job.measured, job.in_waves,
        job.released, job.opened, job.awaits_space, job.creating, job.was_paused, job.partial})
    flags = 2 * flags + (flag ? 1 : 0);
  digest.add(flags);
  for (const std::uint8_t part :
       {job.member, job.selected, job.wave, job.later, job.to_create, job.failed_savers})
    digest.add(part);
  digest.add_all(job.asked);
}

/// What only the next broker looks at.
void add_record(const State& state, Digest& digest) {
  for (const Row& row : state.rows) {
    unsigned flags = 0;
    for (const bool flag : {row.paused, row.under_way, row.resume, row.loaded, row.waves,
                            row.by_operator, row.partial})
      flags = 2 * flags + (flag ? 1 : 0);
    digest.add(flags);
    for (const std::uint8_t part : {u8(row.tag), row.attempt, row.restart}) digest.add(part);
  }
  for (const Piece& p : state.pieces)
    digest.add((p.row ? 1U : 0U) | (p.leaves ? 2U : 0U) | 4U * static_cast<unsigned>(p.kept));
}

}  // namespace

void add(const State& state, Digest& digest) {
  for (const Process& process : state.ranks) add_process(process, state.retain, digest);
  for (const Piece& piece : state.pieces) add_piece(piece, state.retain, digest);
  for (std::size_t i = 0; i < state.chunk_count; ++i) {
    const Chunk& chunk = state.chunks[i];
    for (const std::uint8_t part : {chunk.owner, chunk.limbo, chunk.of}) digest.add(part);
    digest.add(static_cast<std::uint64_t>(chunk.bytes));
    if (!state.retain) continue;
    for (const std::uint8_t part :
         {chunk.retained, chunk.attempt, chunk.saver, chunk.age, chunk.version, u8(chunk.torn)})
      digest.add(part);
  }
  for (const Job& job : state.jobs) add_job(job, digest);
  digest.add_all(state.paused);
  digest.add_all(state.erred);
  digest.add_all(state.partly);
  for (const std::uint8_t part :
       {state.faults, state.joins, state.restarts, state.script_at, state.space, state.deepens})
    digest.add(part);
  if (state.restarts > 0) add_record(state, digest);
  digest.add((state.not_let_go ? 1U : 0U) | (state.by_operator ? 2U : 0U) |
             (state.limited ? 4U : 0U));
}

}  // namespace amem::model
