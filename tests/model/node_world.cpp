#include "tests/model/node_world.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tests/world/death.h"
#include "tests/world/ground.h"
#include "tests/world/outside.h"
#include "tests/world/sleep.h"

namespace amem::model {
namespace {

using world::Fate;
using world::Mood;
using world::RankProcess;
using enum Request::What;
namespace death = world::death;
namespace outside = world::outside;

constexpr std::uint64_t kPage = 4096;
/// Every deadline passes in this time.
constexpr std::chrono::seconds kAllDeadlines(61);
constexpr int kMostWaits = 300;
constexpr std::uint8_t kValues = 250;

const DeviceUuid& device() { return world::Ground::get().devices().all().front().uuid; }

bool has_lost_session(const RankProcess& rank) {
  return rank.lives() && !rank.connected() && !rank.paused();
}

bool comes(const Request& request) {
  return request.what == kResume || request.what == kInsideResume;
}

bool is_inside(const Request& request) {
  return request.what == kInsidePause || request.what == kInsideResume;
}

/// Parts of what is one step of a rank; the last is answered.
bool is_part(const Message& message) {
  return (message.which_body == amem_v1_SessionMessage_save_tag && !message.body.save.last) ||
         (message.which_body == amem_v1_SessionMessage_map_tag && !message.body.map.last) ||
         (message.which_body == amem_v1_SessionMessage_load_tag && !message.body.load.last);
}

std::string name_of(const RankProcess& rank) {
  return "rank " + std::to_string(rank.number()) + " of " + rank.group();
}

}  // namespace

NodeWorld::NodeWorld(const Scenario& scenario, int faults, Guide& guide, bool trace)
    : scenario_(scenario),
      guide_(guide),
      trace_(trace),
      faults_(faults),
      restarts_(scenario.restarts),
      joins_(scenario.joins) {
  Config& config = node_.config;
  const std::size_t chunks =
      scenario.chunks > 0 ? static_cast<std::size_t>(scenario.chunks) : scenario.pieces.size();
  config.pool_size = config.pool_segment = chunks * kPage;
  config.pool_chunk = kPage;
  config.pool_retain = scenario.retain ? Retain::kAlways : Retain::kOff;
  config.swap_wave = scenario.waves ? kPage : 0;
  config.swap_duplex = scenario.duplex;
  config.deep_pauses = true;
  if (scenario.spares) config.spare_idle = kAllDeadlines / 2;
  if (restarts_ > 0) node_.let_brokers_die();
}

NodeWorld::~NodeWorld() = default;

void NodeWorld::say(const std::string& what) {
  if (trace_) std::printf("  %s\n", what.c_str());
}

std::string NodeWorld::play() {
  world::instead_of_sleep([this](std::optional<Ms> until) { goes_on(until); });
  death::decided_by([this] { return broker_dies(); });
  begin_life();
  node_.loop().run();
  while (death::came()) {
    end_life();
    begin_life();
    node_.loop().run();
  }
  death::decided_by({});
  world::instead_of_sleep({});
  node_.broker().shut();
  return broken_.empty() ? guide_.broken() : broken_;
}

// ---- brokers ------------------------------------------------------------------------------------

bool NodeWorld::broker_dies() {
  if (part_ != Part::kScript || restarts_ == 0 || over_) return false;
  if (guide_.choose({0, 1}) == 0) return false;
  --restarts_;
  return true;
}

void NodeWorld::begin_life() {
  if (const std::string wrong = node_.begin({}, [this] { say("the broker dies"); }); !wrong.empty())
    breaks(wrong);
}

void NodeWorld::end_life() {
  node_.end([this] {
    for (RankProcess& rank : ranks_) {
      if (!rank.connected()) continue;
      rank.read();
      // The rest of what it was told it never does.
      if (rank.has_command() && guide_.choose({0, 0}) == 1) {
        say(name_of(rank) + " still handles " + rank.next_command());
        rank.handle(Mood::kWell);
      }
      rank.lose_broker();
    }
  });
  if (observer_) observer_->ended = true;  // its connection broke
  looked_at_answer_ = true;
}

// ---- where the broker would sleep ---------------------------------------------------------------

void NodeWorld::goes_on(std::optional<Ms> until_a_timer) {
  if (over_ || death::came()) return;
  if (!node_.has_pool()) {
    ::usleep(10);  // a thread makes it
    return;
  }
  if (take_in()) return;
  check();
  if (!broken_.empty() || !guide_.broken().empty()) return finish();
  write();
  if (part_ == Part::kScript) return choose(until_a_timer);
  if (do_well(until_a_timer)) return;
  part_ == Part::kBeginning ? next_of_beginning() : next_of_end();
}

void NodeWorld::finish() {
  over_ = true;
  node_.loop().stop();
}

bool NodeWorld::take_in() {
  bool any = false;
  for (RankProcess& rank : ranks_) {
    any = rank.read() || any;
    if (rank.refused() && rank.lives()) {
      breaks("the broker knows " + name_of(rank));
      rank.die();
    }
    // What is done whatever else happens.
    while (rank.connected() && rank.has_command() && !rank.saves() &&
           (rank.next_message().which_body == amem_v1_SessionMessage_pool_segment_tag ||
            rank.next_message().which_body == amem_v1_SessionMessage_trim_tag ||
            is_part(rank.next_message()))) {
      rank.handle(Mood::kWell);
      any = true;
    }
  }
  return any;
}

bool NodeWorld::do_well(std::optional<Ms> until_a_timer) {
  bool any = false;
  for (const auto& step : node_.checkpoints.steps()) {
    node_.checkpoints.take(step, Fate::kWell);
    any = true;
  }
  for (RankProcess& rank : ranks_) {
    if (rank.paused()) rank.come_back(node_.sessions()), any = true;
    for (; rank.connected() && rank.has_command(); any = true) rank.handle(Mood::kWell);
  }
  if (any) waits_ = 0;
  if (any || is_quiet()) return any;
  if (!until_a_timer) breaks("everything under way has a deadline");
  if (++waits_ > kMostWaits) breaks("everything comes to rest");
  outside::pass(std::max<Duration>(until_a_timer.value_or(Ms()), std::chrono::seconds(1)));
  return true;
}

bool NodeWorld::is_quiet() const {
  const bool waits = std::any_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
    return rank.connected() && rank.waits() && !rank.waits_for_resume();
  });
  return !waits && answered() && node_.broker().under_way().empty() &&
         world::at_rest(node_.groups());
}

/// Ranks join, make what they have, and some groups are paused.
void NodeWorld::next_of_beginning() {
  const auto pieces = scenario_.pieces.size();
  const std::size_t step = step_++;
  if (step == 0) {
    for (int group = 0; group < scenario_.groups; ++group)
      for (int rank = 0; rank < scenario_.ranks; ++rank) joins(group);
    if (std::any_of(scenario_.pieces.begin(), scenario_.pieces.end(),
                    [](const PieceOf& piece) { return piece.opened; }))
      joins(scenario_.groups);  // the guest
    return;
  }
  if (step > 1 && step <= pieces + 1) ids_.push_back(truths_.rbegin()->first);
  if (step <= pieces) return create(scenario_.pieces[step - 1]);
  if (step == pieces + 1) {
    for (std::size_t i = 0; i < pieces; ++i) {
      const PieceOf& piece = scenario_.pieces[i];
      world::Truth& truth = *truths_.at(ids_[i]);
      truth.may_be_dropped = !piece.keep;
      for (std::size_t k = 1; k < piece.sharers.size(); ++k)
        ranks_[static_cast<std::size_t>(piece.group * scenario_.ranks + piece.sharers[k])].open(
            ids_[i], truth.token);
      if (piece.opened) ranks_.back().open(ids_[i], truth.token);
      if (!piece.keep &&
          !node_.broker()
               .set_policy(Caller{}, address_of(piece.group), {piece.tag}, v1::POLICY_DISCARD)
               .ok())
        breaks("a tag's bytes may be dropped");
    }
    return;
  }
  if (observer_ && !observer_->status.ok())
    breaks("a world begins as it says: " + observer_->status.text());
  observer_.reset();
  const std::size_t paused = step - pieces - 2;
  if (paused < scenario_.paused.size()) {
    observer_ = observe();
    node_.broker().start_operation(Caller{}, Task(Operation::kPause),
                                   {address_of(scenario_.paused[paused])}, {}, observer_);
    return;
  }
  part_ = Part::kScript;
}

void NodeWorld::joins(int group) {
  ranks_.emplace_back(truths_, node_.checkpoints, group_name(group),
                      static_cast<int>(ranks_.size()));
  ranks_.back().connect(node_.sessions());
}

void NodeWorld::create(const PieceOf& piece) {
  const int rank = piece.group * scenario_.ranks + piece.sharers.front();
  ranks_[static_cast<std::size_t>(rank)].create(device(), kPage, {piece.tag}, piece.made);
}

/// Nothing goes wrong any more: everything comes back, and nothing is left of who ends.
void NodeWorld::next_of_end() {
  const auto all = node_.groups();
  if (step_ == 0) {
    node_.neighbours.leave_all();
    for (RankProcess& rank : ranks_)
      if (rank.lives() && (rank.is_lost() || has_lost_session(rank)))
        rank.die();
      else
        rank.drop_leftovers();
    step_ = 1;
    return;
  }
  if (step_ == 1) {
    if (observer_ && !observer_->status.ok())
      breaks("where all goes well a resume succeeds: " + observer_->status.text());
    observer_.reset();
    for (const auto& [address, group] : all) {
      const bool there = group.resident_bytes() == group.allocated_bytes();
      if (group.state() == v1::GROUP_STATE_RUNNING && there) continue;
      observer_ = observe();
      say("at the end: resume of " + address);
      node_.broker().start_operation(Caller{}, Task(Operation::kResume), {address}, {}, observer_);
      return;
    }
    for (const RankProcess& rank : ranks_) {
      if (!rank.connected()) continue;
      if (!rank.runs()) breaks("where everything has been resumed " + name_of(rank) + " runs");
      if (const std::string wrong = rank.check(true); !wrong.empty()) breaks(wrong);
    }
    for (RankProcess& rank : ranks_)
      if (rank.lives()) rank.die();
    step_ = 2;
    return;
  }
  if (const std::string left = node_.left_over(); !left.empty() && ++step_ > 20) breaks(left);
  if (step_ == 2 || !broken_.empty() || node_.left_over().empty()) finish();
}

// ---- what may come next -------------------------------------------------------------------------

void NodeWorld::choose(std::optional<Ms> until_a_timer) {
  if (time_passed_) {
    if (digest() == before_) {
      if (++waits_ > kMostWaits || !until_a_timer) breaks("everything comes to rest");
      return outside::pass(
          std::max<Duration>(until_a_timer.value_or(Ms()), std::chrono::seconds(1)));
    }
    time_passed_ = false;
    waits_ = 0;
  }
  check_answer();
  if (!guide_.comes_to([this] { return digest(); }) || !broken_.empty()) return finish();
  const std::vector<Event> all = events();
  if (all.empty() || all.front().what == Event::kAsks) check_rest();
  if (!broken_.empty()) return finish();
  if (all.empty()) {
    part_ = Part::kEnd;
    step_ = 0;
    observer_.reset();
    return;
  }
  std::vector<std::uint8_t> faults;
  for (const Event& event : all) faults.push_back(event.faults);
  const Event& event = all[guide_.choose(faults)];
  faults_ -= event.faults;
  happen(event, until_a_timer);
}

bool NodeWorld::may_ask() const {
  return script_at_ < scenario_.script.size() && is_quiet() &&
         std::none_of(ranks_.begin(), ranks_.end(),
                      [](const RankProcess& rank) { return rank.paused(); });
}

std::vector<NodeWorld::Event> NodeWorld::events() {
  std::vector<Event> all;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const RankProcess& rank = ranks_[i];
    if (rank.connected() && rank.has_command()) all.push_back({Event::kHandles, 0, i});
    if (rank.paused()) all.push_back({Event::kReturns, 0, i});
  }
  for (std::size_t i = 0; i < node_.checkpoints.steps().size(); ++i)
    all.push_back({Event::kDriver, 0, i});
  if (may_ask()) all.push_back({Event::kAsks});
  std::vector<Event> late;
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (has_lost_session(ranks_[i])) {
      if (ranks_[i].saves()) late.push_back({Event::kSavesLate, 0, i});
      late.push_back({Event::kEnds, 0, i});
    }
  const bool quiet = is_quiet();
  const bool due = !all.empty() || !late.empty();
  if (!due && quiet) return {};
  all.insert(all.end(), late.begin(), late.end());
  if (!due) all.push_back({Event::kTime});
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    if (ranks_[i].runs() && ranks_[i].connected())
      for (const RankProcess::Has& has : ranks_[i].has())
        if (has.guest) all.push_back({Event::kCloses, 0, i});
  if (joins_ > 0) all.push_back({Event::kJoins});
  if (faults_ > 0) add_faults(all);
  if (faults_ > 0 && !quiet && due) all.push_back({Event::kTime, 1});
  return all;
}

void NodeWorld::add_faults(std::vector<Event>& all) {
  const bool under_way = !is_quiet();
  const std::vector<Event> well = all;
  for (const Event& event : well) {
    if (event.what == Event::kDriver)
      for (const Fate fate : {Fate::kRefused, Fate::kHangs, Fate::kLost})
        all.push_back({event.what, 1, event.who, Mood::kWell, fate});
    if (event.what != Event::kHandles) continue;
    all.push_back({event.what, 1, event.who, Mood::kFails});
    all.push_back({event.what, 1, event.who, Mood::kTwice});
    const RankProcess& rank = ranks_[event.who];
    if (!rank.saves() && rank.next_message().which_body == amem_v1_SessionMessage_save_tag)
      all.push_back({event.what, 1, event.who, Mood::kSlow});
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const RankProcess& rank = ranks_[i];
    if (!rank.connected() && !rank.paused()) continue;
    all.push_back({Event::kDies, 1, i});
    // Of one that detaches amemd may make calls afterwards, and nobody would undo them.
    if (rank.connected() && !rank.is_detached()) all.push_back({Event::kBreaks, 1, i});
    if (((rank.runs() && under_way) || rank.rests()) && !rank.has().empty())
      all.push_back({Event::kFrees, 1, i});
  }
  if (under_way && !full_) all.push_back({Event::kFills, 1});
}

void NodeWorld::happen(const Event& event, std::optional<Ms> until_a_timer) {
  switch (event.what) {
    case Event::kHandles: {
      RankProcess& rank = ranks_[event.who];
      static constexpr const char* kHow[] = {"", " and fails", "", ", and answers twice",
                                             " slowly"};
      say(name_of(rank) + " handles " + rank.next_command() +
          kHow[static_cast<std::size_t>(event.mood)]);
      return rank.handle(event.mood);
    }
    case Event::kSavesLate:
      say(name_of(ranks_[event.who]) + " has saved, and nobody asks");
      return ranks_[event.who].end_save();
    case Event::kReturns:
      say(name_of(ranks_[event.who]) + " comes back");
      ranks_[event.who].come_back(node_.sessions());
      return;
    case Event::kDriver: {
      const world::Checkpoints::Step step = node_.checkpoints.steps()[event.who];
      if (const std::string wrong = world::broken_by_step(ranks_, step); !wrong.empty())
        return breaks(wrong);
      return say("the driver: " + node_.checkpoints.take(step, event.fate));
    }
    case Event::kAsks:
      return ask();
    case Event::kTime:
      say(event.faults > 0 ? "every deadline passes" : "time passes");
      if (event.faults > 0) return outside::pass(kAllDeadlines);
      if (!until_a_timer) return breaks("everything under way has a deadline");
      time_passed_ = true;
      before_ = digest();
      return outside::pass(std::max<Duration>(*until_a_timer, std::chrono::seconds(1)));
    case Event::kEnds:
    case Event::kDies:
      say(name_of(ranks_[event.who]) + " dies");
      return ranks_[event.who].die();
    case Event::kBreaks:
      say("the session of " + name_of(ranks_[event.who]) + " breaks");
      return ranks_[event.who].lose_session();
    case Event::kCloses:
      say("the guest closes what it has open");
      return ranks_[event.who].free_guests();
    case Event::kJoins:
      say("a rank joins");
      --joins_;
      return joins(0);
    case Event::kFrees:
      say(name_of(ranks_[event.who]) + " frees");
      return ranks_[event.who].free_one(0);
    case Event::kFills: {
      say("others take all of the device");
      full_ = true;
      return others_take_all_but(0);
    }
  }
}

void NodeWorld::others_take_all_but(std::uint64_t left) {
  const std::uint64_t free = world::Ground::get().nvml().memory(device())->free;
  if (free > left && !node_.neighbours.take(device(), free - left))
    breaks("others take some of the device");
}

std::vector<std::string> NodeWorld::addresses(const std::vector<int>& groups) const {
  std::vector<std::string> names;
  for (const int group : groups) names.push_back(address_of(group));
  return names;
}

std::shared_ptr<world::Observer> NodeWorld::observe() {
  return std::make_shared<world::Observer>(
      [this](const Status& how) { say("answered: " + (how.ok() ? "OK" : how.text())); });
}

void NodeWorld::ask() {
  const Request& request = scenario_.script[script_at_++];
  Selection what;
  if (request.tag != 0) what.tags = {std::string(1, request.tag)};
  Task task(comes(request) ? Operation::kResume : Operation::kPause, what);
  task.deep = request.deep;
  task.partial = request.partial;
  asked_ = &request;
  looked_at_answer_ = false;
  groups_before_ = node_.groups();
  full_ = false;
  node_.neighbours.leave_all();
  if (request.what == kSwap && scenario_.space >= 0)
    others_take_all_but(static_cast<std::uint64_t>(scenario_.space) * kPage);
  if (is_inside(request)) {
    say("ranks ask: " + describe(task, address_of(request.groups.front())));
    observer_.reset();
    for (RankProcess& rank : ranks_)
      if (rank.connected() && rank.address() == address_of(request.groups.front()) &&
          !rank.waits() && rank.runs() != comes(request))
        rank.ask(!comes(request), request.deep);
    return;
  }
  say("the operator: " + std::string(request.in.empty() ? "" : "swap, ") +
      describe(task, address_of(request.groups.front())) +
      (request.groups.size() > 1 ? " and others" : ""));
  observer_ = observe();
  if (request.what == kSwap)
    node_.broker().swap(Caller{}, addresses(request.groups), addresses(request.in), task, {},
                        observer_);
  else
    node_.broker().start_operation(Caller{}, task, addresses(request.groups), {}, observer_);
}

// ---- what must hold -----------------------------------------------------------------------------

/// A program that runs writes all the time.
void NodeWorld::write() {
  std::vector<std::uint64_t> done;
  const auto is_used = [this](std::uint8_t value) {
    return std::any_of(truths_.begin(), truths_.end(),
                       [value](const auto& each) { return each.second->value == value; });
  };
  for (RankProcess& rank : ranks_) {
    if (!rank.runs()) continue;
    const std::vector<RankProcess::Has> all = rank.has();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].usable || all[i].guest ||
          std::find(done.begin(), done.end(), all[i].id) != done.end())
        continue;
      done.push_back(all[i].id);
      do written_ = static_cast<std::uint8_t>(written_ % kValues + 1);
      while (is_used(written_));
      rank.write_one(all.size() + i, written_);
    }
  }
}

void NodeWorld::check() {
  const auto all = node_.groups();
  const auto known = [](const RankProcess&) { return true; };
  if (const std::string wrong = world::broken_promise(ranks_, all, false, known); !wrong.empty())
    breaks(wrong);
  for (const RankProcess& rank : ranks_) {
    const auto group = all.find(rank.address());
    if (rank.runs() && rank.connected() && group != all.end() &&
        group->second.state() == v1::GROUP_STATE_PAUSED)
      breaks("no rank of a paused group runs: " + name_of(rank));
  }
  check_swap();
}

void NodeWorld::check_swap() {
  if (part_ != Part::kScript || asked_ == nullptr || asked_->what != kSwap || asked_->tag != 0)
    return;
  const auto run = [this](const std::vector<int>& groups) {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const RankProcess& rank) {
      return rank.runs() && std::any_of(groups.begin(), groups.end(), [&](int group) {
               const auto before = groups_before_.find(address_of(group));
               return rank.address() == address_of(group) && before != groups_before_.end();
             });
    });
  };
  const auto was = [this](const std::vector<int>& groups, v1::GroupState state) {
    return std::all_of(groups.begin(), groups.end(), [&](int group) {
      const auto before = groups_before_.find(address_of(group));
      return before == groups_before_.end() || before->second.state() == state;
    });
  };
  if (was(asked_->groups, v1::GROUP_STATE_RUNNING) && was(asked_->in, v1::GROUP_STATE_PAUSED) &&
      run(asked_->groups) && run(asked_->in))
    breaks("of a swap's groups only one side runs");
}

/// A transaction ends for all groups or for none, and one that succeeds has done what was asked.
void NodeWorld::check_answer() {
  if (looked_at_answer_ || !answered() || asked_ == nullptr || !observer_) return;
  looked_at_answer_ = true;
  if (asked_->tag != 0) return;
  const auto all = node_.groups();
  const bool ok = observer_->status.ok();
  const bool comes_in = comes(*asked_) || !asked_->in.empty();
  if (scenario_.hands_on && comes_in && guide_.faults() == 0 && observer_->handed_on == 0)
    breaks("what comes in takes memory that has left");
  for (const std::vector<int>* side : {&asked_->groups, &asked_->in}) {
    const bool runs = side == &asked_->in || comes(*asked_);
    int changed = 0;
    int unchanged = 0;
    for (const int group : *side) {
      const auto now = all.find(address_of(group));
      const auto before = groups_before_.find(address_of(group));
      if (now == all.end() || before == groups_before_.end()) continue;
      const v1::GroupState state = now->second.state();
      if (ok && state != (runs ? v1::GROUP_STATE_RUNNING : v1::GROUP_STATE_PAUSED))
        breaks("a transaction that succeeds has done what was asked");
      if (before->second.state() == (runs ? v1::GROUP_STATE_RUNNING : v1::GROUP_STATE_PAUSED))
        continue;  // it was so before
      ++(state == before->second.state() ? unchanged : changed);
    }
    if (changed > 0 && unchanged > 0)
      breaks("a transaction ends for all of its groups or for none");
  }
}

bool NodeWorld::is_opened(std::uint64_t id) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [id](const RankProcess& rank) {
    const auto all = rank.has();
    return std::any_of(all.begin(), all.end(),
                       [id](const auto& has) { return has.id == id && has.guest; });
  });
}

/// The broker says that it is on its device, though its group is paused.
bool NodeWorld::stays(std::uint64_t id) const {
  auto list = node_.broker().reports().list_allocations(Caller{}, "");
  if (!list.ok()) return false;
  const auto all = node_.broker().reports().allocations(Caller{}, list.value(), SIZE_MAX, SIZE_MAX);
  return std::any_of(all.begin(), all.end(),
                     [id](const auto& each) { return each.id() == id && each.resident(); });
}

/// Nothing is under way, and nobody has anything to do.
void NodeWorld::check_rest() {
  const auto all = node_.groups();
  const bool clean = guide_.faults() == 0;
  // What they had open has stayed, also when they have closed it since.
  const bool guests = std::any_of(scenario_.pieces.begin(), scenario_.pieces.end(),
                                  [](const PieceOf& piece) { return piece.opened; });
  std::uint64_t saved = 0;
  for (const auto& [address, group] : all) {
    saved += group.saved_bytes();
    const bool runs = group.state() == v1::GROUP_STATE_RUNNING;
    for (const RankProcess& rank : ranks_) {
      if (rank.address() != address || !rank.connected()) continue;
      if (rank.runs() != runs) breaks("the gates of a group are as the group is: " + name_of(rank));
      for (const RankProcess::Has& has : rank.has())
        if (!runs && !group.partial() && has.mapped && !has.guest && !has.pinned &&
            !is_opened(has.id) && !stays(has.id))
          breaks("ranks hold on to nothing that is paused: " + name_of(rank));
    }
    if (!clean) continue;
    const std::uint64_t gone = group.allocated_bytes() - group.resident_bytes();
    if (gone != group.saved_bytes() + group.dropped_bytes())
      breaks("what is on no device is in the pool, or is dropped: " + address);
    if (!runs && !group.partial() && !guests && group.resident_bytes() != 0)
      breaks("a paused group has let go of everything: " + address);
  }
  const bool may_write = std::any_of(ranks_.begin(), ranks_.end(), has_lost_session);
  if (!may_write && node_.status().pool().used_bytes() != saved)
    breaks("the pool has what is saved, and nothing else");
}

std::uint64_t NodeWorld::digest() const {
  world::Digest digest;
  node_.add_to(digest);
  digest.add(ranks_.size());
  for (const RankProcess& rank : ranks_) rank.add_to(digest);
  for (const world::Checkpoints::Step& step : node_.checkpoints.steps()) {
    digest.add(static_cast<std::uint64_t>(step.pid));
    digest.add(static_cast<std::uint64_t>(step.action));
  }
  for (const std::size_t part :
       {static_cast<std::size_t>(faults_), static_cast<std::size_t>(restarts_),
        static_cast<std::size_t>(joins_), script_at_})
    digest.add(part);
  digest.add((full_ ? 1U : 0U) | (answered() ? 2U : 0U) | (looked_at_answer_ ? 4U : 0U));
  return digest.hash();
}

}  // namespace amem::model
