// Phases: carries out the broker's commands in this rank (docs/protocol.md), one after another, on
// the service thread.
//
// A rank that reconnects to the next broker says what it holds and whether its gate is shut. So
// commands may find done what they ask for: then they change nothing and are answered as usual.
// What is not allowed in the rank's state (rank_state.h) is answered with an error and changes
// nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>

#include "shim/base/timings.h"
#include "shim/blocks/heap.h"
#include "shim/copies/mover.h"
#include "shim/gate/gate.h"
#include "shim/memory/memory.h"
#include "shim/phases/cut_monitor.h"
#include "shim/phases/detachment.h"
#include "shim/phases/orphan.h"
#include "shim/phases/rank_state.h"
#include "shim/phases/report.h"
#include "shim/phases/work_report.h"
#include "shim/process/exit_handler.h"
#include "shim/scratch/scratch.h"
#include "shim/session/session.h"

namespace amem::shim {

class Phases final : public Session::Handler {
 public:
  /// `exit`: runs when the process ends; a pause moves it to the front.
  Phases(const Driver& driver, LocalDevices& devices, Gate& gate, Memory& memory, Mover& mover,
         Scratch& scratch, CutMonitor& cut, Report& report, WorkReport& work, Heap& heap,
         Session& session, ExitHandler& exit, const Options& options)
      : driver_(driver),
        devices_(devices),
        gate_(gate),
        memory_(memory),
        mover_(mover),
        scratch_(scratch),
        cut_(cut),
        report_(report),
        work_(work),
        heap_(heap),
        session_(session),
        exit_(exit),
        detachment_(driver, devices, gate, memory, mover.pool()),
        orphan_(memory, mover, session, options) {}

  /// The rank joins a group that does not run: its gate is shut until an Open. Before the service
  /// thread exists.
  void join_shut(const std::string& paused_by, bool first_turn = false);

  void command(Packet& packet) override;
  void unclaimed(const Packet& reply) override;
  void disconnected() override;
  Comeback comes_back(const Session::Mark& mark) override;
  void returned() override;
  bool waits_for_broker(const Status& why, bool hope) override;
  void lost() override;

 private:
  void make(const amem_v1_Make& make);
  void map(Packet& packet);
  void unmap(const amem_v1_UnmapSegment& asked);
  void measure(const amem_v1_Measure& measure);
  /// Tells the broker which blocks are not zero.
  void measured(std::uint64_t epoch, std::span<const Look> looks);
  void copy(const amem_v1_Copies& copies, bool save);
  /// Tells the broker how pieces are stored.
  void saved(const amem_v1_Copies& save, std::span<const Piece> pieces);
  void release(const amem_v1_Release& release);
  Status undo(std::uint64_t& bytes);
  /// Tries what the driver would not let go of again and again: until then the device is short of
  /// it, and a resume may find no space.
  void drop_leftovers();
  void ask(const amem_v1_Ask& ask);
  Status open();
  Status detach();
  Status allow_frees();
  /// The state to enter when the command has been carried out; an error: it is not allowed.
  /// Attaches a process that is detached for all but a Detach. Frees wait for the end of a step.
  Result<RankState> begin(RankCommand command);
  void enter(RankState state);
  void done(std::uint64_t epoch, RankPhase phase, const Status& status, std::uint64_t bytes,
            std::uint32_t wave = 0);

  const Driver& driver_;
  LocalDevices& devices_;
  Gate& gate_;
  Memory& memory_;
  Mover& mover_;
  Scratch& scratch_;
  CutMonitor& cut_;
  Report& report_;
  WorkReport& work_;
  Heap& heap_;
  Session& session_;
  ExitHandler& exit_;
  Detachment detachment_;
  Orphan orphan_;
  RankState state_ = RankState::kRuns;
  bool retry_due_ = false;  // drop_leftovers() will be called
  Status copy_status_;      // first failure since the last PhaseDone of copies, or a Measure
  std::set<std::uint64_t> listed_;  // by the packets of a Release so far
  PhaseClock clock_;
  Status map_status_;               // first failure since the last PhaseDone of a Map
  std::uint64_t mapped_bytes_ = 0;  // since the last PhaseDone of a Map
};

}  // namespace amem::shim
