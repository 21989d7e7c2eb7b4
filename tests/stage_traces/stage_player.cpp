#include "tests/stage_traces/stage_player.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tests/world/death.h"
#include "tests/world/device_memory.h"
#include "tests/world/ground.h"
#include "tests/world/sleep.h"

namespace amem::stage_traces {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using world::Coroutine;
using world::Ground;
using world::Mood;
using world::Observer;
using world::sleep_passes_time;

const Device& device(int number) {
  return Ground::get().devices().all()[static_cast<std::size_t>(number)];
}

std::set<DeviceUuid> seen_by(const GroupPlan& group) {
  std::set<DeviceUuid> all;
  for (const int each : group.sees) all.insert(device(each).uuid);
  return all;
}

}  // namespace

StagePlayer::StagePlayer(const StageTrace& trace, const Options& options)
    : trace_(trace),
      options_(options),
      dice_(trace.seed ^ 0x57a6e5ULL),
      random_(static_cast<std::uint32_t>(trace.seed % 2147483646U + 1)) {
  Config& config = node_.config;
  config.pool_size = 16ULL << 20;
  config.pool_segment = 256ULL << 10;
  config.pool_chunk = kPage;
  config.swap_wave = 16 * kPage;
  config.stages.push_back(trace.stage);
  config.deep_pauses = true;
  config.deadlines.deepen = trace.deepen;
  // A rank that does not answer holds up a trace for as long as this.
  config.deadlines.quiesce = config.deadlines.release = seconds(5);
  config.deadlines.save = config.deadlines.load = config.deadlines.create = seconds(5);
  config.deadlines.checkpoint = seconds(5);
  if (trace.deaths) node_.let_brokers_die();
  for (const GroupPlan& plan : trace.groups) groups_.push_back({&plan});
  node_.checkpoints.tell([this] {
    if (!std::exchange(driver_busy_, true))
      after(dice_.between(milliseconds(5), milliseconds(100)), [this] { driver_acts(); });
  });
}

StagePlayer::~StagePlayer() { sleep_passes_time({}); }

void StagePlayer::say(const std::string& what) const {
  if (options_.aloud)
    std::printf("%9.3f  %s\n", std::chrono::duration<double>(now() - began_).count(), what.c_str());
}

void StagePlayer::breaks(const std::string& what) {
  if (!played_.broken.empty()) return;
  played_.broken = what;
  say("BROKEN: " + what);
  if (options_.aloud) say_all();
  node_.loop().stop();
}

// ---- time ---------------------------------------------------------------------------------------

void StagePlayer::after(Duration time, std::function<void()> what) {
  due_.emplace(now() + time, std::move(what));
  arm();
}

void StagePlayer::arm() {
  if (!node_.lives() || due_.empty()) return;
  if (timer_ && timer_->first <= due_.begin()->first) return;
  if (timer_) node_.loop().cancel(*timer_);
  timer_ = node_.loop().at(due_.begin()->first, [this] {
    timer_.reset();
    if (!world::death::came()) run_due();
  });
}

void StagePlayer::run_due() {
  while (!due_.empty() && due_.begin()->first <= now() && !world::death::came()) {
    const auto what = std::move(due_.begin()->second);
    due_.erase(due_.begin());
    what();
  }
  arm();
}

void StagePlayer::again(Duration low, Duration high, const std::function<void()>& what) {
  after(dice_.between(low, high), [=, this] {
    if (over()) return;
    what();
    again(low, high, what);
  });
}

// ---- brokers ------------------------------------------------------------------------------------

void StagePlayer::begin_life() {
  sleep_passes_time({});
  timer_.reset();
  if (const std::string wrong = node_.begin({}, [this] { say("amemd dies"); }); !wrong.empty())
    breaks(wrong);
  node_.later([this] {
    sleep_passes_time([this] { look_at_switches(); });
    arm();
  });
}

void StagePlayer::end_life() {
  ++played_.deaths;
  changes();
  trouble_ = now();
  driver_busy_ = false;
  node_.end([this] { lose_broker(); });
  timer_.reset();
  switch_began_.reset();
  switches_ = failed_ = 0;
  free_since_.clear();
  fits_since_.clear();
  still_since_.reset();
}

/// Its ranks come back to the next one, and ask it again for what they have asked this one for.
void StagePlayer::lose_broker() {
  for (Program& program : programs_) {
    if (!program.rank.lives()) continue;
    unwatch(program);
    if (!program.rank.connected()) continue;
    program.rank.read();
    program.rank.lose_broker();
    program.handles = false;
    after(dice_.between(milliseconds(10), milliseconds(500)), [this, &program] {
      if (!program.rank.lives() || !program.rank.paused() || program.stopped) return;
      program.rank.come_back(node_.sessions());
      watch(program);
      look(program);
    });
  }
  for (Group& group : groups_) {
    group.leasing = group.leased = false;
    if (trace_.stage.rules.policy == TurnPolicy::kLease)
      after(seconds(1), [this, &group] { lease(group); });
    group.start = 0;
    // Its `amemctl run` asks the next amemd.
    if (group.joining && group.programs.empty())
      after(seconds(1), [this, &group] {
        if (!over() && group.joining && group.start == 0 && group.programs.empty()) join(group);
      });
  }
}

void StagePlayer::kill() {
  say("amemd is to die soon");
  world::death::comes_at(1 + dice_.below(60));
}

Played StagePlayer::play() {
  begin_life();
  began_ = changed_ = trouble_ = last_switch_ = now();
  story_.emplace(whole());
  after({}, [this] { story_->begin(); });
  node_.loop().run();
  while (world::death::came() && played_.broken.empty()) {
    end_life();
    begin_life();
    node_.loop().run();
  }
  for (Program& program : programs_) unwatch(program);
  node_.broker().shut();
  sleep_passes_time({});
  return played_;
}

// ---- groups -------------------------------------------------------------------------------------

void StagePlayer::join(Group& group) {
  group.joining = true;
  group.has_run = false;
  if (!group.plan->announced) return begin_ranks(group);
  say("group " + group.plan->name + " is announced");
  if (!group.process) group.process.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  Caller caller;
  caller.account = node_.broker().accounts().of({group.plan->user, {}});
  caller.who = "uid " + std::to_string(group.plan->user);
  caller.operates = caller.sees_all = false;
  caller.process = std::make_shared<const Fd>(::dup(group.process.get()));
  group.start = node_.broker().start_group(
      caller, group.plan->name, "s", seen_by(*group.plan), {},
      [this, &group](const Status& status) {
        if (world::death::came()) return;
        group.start = 0;
        say("the start of group " + group.plan->name + ": " + (status.ok() ? "OK" : status.text()));
        const Duration wait = group.plan->loiters ? dice_.between(seconds(10), seconds(90))
                                                  : dice_.between(milliseconds(10), seconds(1));
        const bool leaves = group.plan->loiters && dice_.one_in(2);
        after(wait, [this, &group, leaves] {
          if (!group.joining || over() || !group.programs.empty()) return;
          if (!leaves) return begin_ranks(group);
          say("whoever has announced group " + group.plan->name + " ends");
          changes();
          group.joining = false;
          end_process(group);
        });
      });
}

void StagePlayer::begin_ranks(Group& group) {
  changes();
  group.joining = false;
  group.has_run = group.leasing = group.leased = group.promised = false;
  ++group.lives;
  say("group " + group.plan->name + " begins");
  begin_rank(group, 0);
  for (int i = 1; i < group.plan->ranks; ++i)
    if (trace_.late)
      after(dice_.between(seconds(1), seconds(20)), [this, &group, i, life = group.lives] {
        if (!over() && group.lives == life && !group.programs.empty()) begin_rank(group, i);
      });
    else
      begin_rank(group, i);
  set_wishes(group);
  plan_work(group);
}

void StagePlayer::begin_rank(Group& group, int number) {
  changes();
  Program& program =
      programs_.emplace_back(Program{Rank(truths_, node_.checkpoints, group.plan->name, numbers_++,
                                          {group.plan->user, "s", seen_by(*group.plan)}),
                                     &group});
  group.programs.push_back(&program);
  for (std::size_t piece = 0; piece < group.plan->pieces.size(); ++piece)
    if (piece % static_cast<std::size_t>(group.plan->ranks) == static_cast<std::size_t>(number)) {
      program.wants.push_back(group.plan->pieces[piece]);
      program.uses.insert(group.plan->pieces[piece].device);
    }
  for (const int each : program.uses)
    if (auto made = world::made_on(device(each).uuid, kPage); made.ok())
      program.contexts[device(each).uuid] = std::move(made.value().fd);
  program.rank.connect(node_.sessions());
  watch(program);
  // It begins with work: it makes its memory.
  program.left = dice_.between(milliseconds(200), seconds(2));
  look(program);
  if (trace_.stage.rules.policy == TurnPolicy::kLease)
    after(milliseconds(50), [this, &group] { lease(group); });
}

void StagePlayer::set_wishes(Group& group) {
  after(milliseconds(100), [this, &group] {
    if (group.programs.empty()) return;
    Stages::Change change;
    change.weight = group.plan->weight;
    change.priority = group.plan->priority;
    change.leave_first = group.plan->leave_first;
    (void)node_.broker().set_turn(Caller{}, group.plan->name, change);
  });
  if (!trace_.promises || trace_.stage.rules.policy == TurnPolicy::kLease) return;
  after(seconds(40), [this, &group] {
    if (group.programs.empty() || over()) return;
    Stages::Change change;
    change.longest_wait = dice_.between(seconds(20), seconds(120));
    group.promised = node_.broker().set_turn(Caller{}, group.plan->name, change).ok();
  });
}

void StagePlayer::watch(Program& program) {
  if (!program.rank.connected() || program.watch != 0 || program.stopped) return;
  program.watched.reset(::dup(program.rank.socket()));
  program.watch = node_.loop().watch(program.watched.get(), EPOLLIN, [this, &program](unsigned) {
    if (!world::death::came()) read(program);
  });
}

void StagePlayer::unwatch(Program& program) {
  if (program.watch != 0 && node_.lives()) node_.loop().unwatch(program.watch);
  program.watch = 0;
  program.watched.reset();
}

void StagePlayer::read(Program& program) {
  program.rank.read();
  if (program.rank.refused()) {
    say("rank " + std::to_string(program.rank.number()) + " is refused");
    return die(program);
  }
  if (!program.rank.connected()) {
    say("the session of rank " + std::to_string(program.rank.number()) + " has ended");
    trouble_ = now();
    return die(program);
  }
  if (!program.rank.wrong().empty()) breaks(program.rank.wrong());
  handle_next(program);
  look(program);
}

void StagePlayer::handle_next(Program& program) {
  if (program.handles || program.stopped || !program.rank.connected() ||
      !program.rank.has_command())
    return;
  program.handles = true;
  const bool slow = trace_.speeds && program.rank.number() % 2 == 1;
  after(dice_.between(milliseconds(slow ? 100 : 1),
                      milliseconds(slow || dice_.one_in(10) ? 300 : 20)),
        [this, &program] {
          program.handles = false;
          if (!program.rank.connected() || !program.rank.has_command()) return;
          Mood mood = Mood::kWell;
          if (trace_.mishaps && !over() && dice_.one_in(150)) {
            mood = dice_.one_in(2) ? Mood::kFails : Mood::kSilent;
            trouble_ = now();
            changes();
          }
          if (mood != Mood::kWell)
            say("rank " + std::to_string(program.rank.number()) + " of " +
                program.group->plan->name +
                (mood == Mood::kFails ? " fails at " : " does not answer ") +
                program.rank.next_command());
          program.rank.handle(mood);
          if (mood == Mood::kFails)  // as the shim does four times a second
            after(dice_.between(milliseconds(250), milliseconds(2000)),
                  [&program] { program.rank.drop_leftovers(); });
          handle_next(program);
          look(program);
        });
}

/// What its program does now.
void StagePlayer::look(Program& program) {
  if (!program.rank.lives() || program.stopped) return;
  const bool runs = program.rank.runs();
  if (program.works) program.group->worked = now();
  if (program.left > Duration{} && runs && !program.works) {
    program.works = now();
    const std::uint64_t token = ++program.token;
    after(program.left, [this, &program, token] { finish(program, token); });
  }
  if (program.works && !runs) {
    program.left = std::max<Duration>(program.left - (now() - *program.works), milliseconds(1));
    program.works.reset();
    ++program.token;
  }
  if (program.works) allocate(program);
  const bool worked = program.works || (runs && now() < program.worked_until);
  program.rank.work(program.left > Duration{} && !runs, worked);
}

/// One piece after another. One that there is no space for it asks for again, a few times.
void StagePlayer::allocate(Program& program) {
  if (program.asked) {
    if (program.rank.waits()) return;
    program.asked = false;
    changes();
    const Piece& piece = program.wants.front();
    const auto has = program.rank.has();
    const auto made = std::find_if(has.begin(), has.end(),
                                   [&](const Rank::Has& each) { return each.tag == piece.tag; });
    if (made != has.end() && piece.pinned) program.rank.pin(made->id);
    if (made != has.end() || ++program.refused > 3) {
      program.wants.pop_front();
      program.refused = 0;
    } else {
      program.asks_again = now() + seconds(1);
    }
  }
  if (program.wants.empty() || now() < program.asks_again) return;
  const Piece& piece = program.wants.front();
  program.rank.create(device(piece.device).uuid, piece.pages * kPage, piece.tag, piece.own);
  program.asked = true;
  changes();
  after(milliseconds(20), [this, &program] { look(program); });
}

void StagePlayer::finish(Program& program, std::uint64_t token) {
  if (program.token != token || !program.works) return;
  if (program.stopped)
    return after(seconds(1), [this, &program, token] { finish(program, token); });
  program.works.reset();
  program.left = {};
  program.group->worked = now();
  program.worked_until = now() + seconds(1);
  after(seconds(1), [this, &program] { look(program); });
  look(program);
  yield_if_done(*program.group);
}

void StagePlayer::begin_work(Group& group) {
  for (Program* program : group.programs) {
    if (group.programs.size() > 1 && dice_.one_in(3)) continue;
    program->left += dice_.between(milliseconds(100), group.plan->most_work);
    look(*program);
  }
  if (trace_.stage.rules.policy == TurnPolicy::kLease) lease(group);
}

void StagePlayer::plan_work(Group& group) {
  after(dice_.between(group.plan->least_gap, group.plan->most_gap),
        [this, &group, life = group.lives] {
          if (over() || group.lives != life || group.programs.empty()) return;
          if (!has_work(group.plan->name)) begin_work(group);
          if (group.plan->guest_of >= 0) open_guest(group);
          plan_work(group);
        });
}

void StagePlayer::open_guest(Group& group) {
  const GroupPlan& owner = trace_.groups[static_cast<std::size_t>(group.plan->guest_of)];
  Program& program = *group.programs.front();
  const auto has = program.rank.has();
  if (!program.rank.runs() || program.rank.waits() ||
      std::any_of(has.begin(), has.end(), [](const Rank::Has& each) { return each.guest; }))
    return;
  for (const auto& [id, truth] : truths_)
    if (truth->group == owner.name + "@" + std::to_string(owner.user) && dice_.one_in(2)) {
      say("group " + group.plan->name + " opens memory of group " + owner.name);
      program.rank.open(id, truth->token);
      return changes();
    }
}

void StagePlayer::lease(Group& group) {
  if (group.leasing || group.leased || group.programs.empty() || !has_work(group.plan->name))
    return;
  group.leasing = true;
  node_.broker().lease(
      Caller{}, group.plan->name, {}, [this, &group, life = group.lives](const Status& status) {
        if (world::death::came() || group.lives != life) return;
        group.leasing = false;
        group.leased = status.ok();
        say("the lease of group " + group.plan->name + ": " + (status.ok() ? "OK" : status.text()));
        after(status.ok() ? milliseconds(0) : seconds(5), [this, &group] {
          if (group.leased)
            yield_if_done(group);
          else
            lease(group);
        });
      });
}

void StagePlayer::yield_if_done(Group& group) {
  if (!group.leased || has_work(group.plan->name)) return;
  after(dice_.between(milliseconds(10), seconds(1)), [this, &group] {
    if (!group.leased || group.programs.empty() || has_work(group.plan->name)) return;
    group.leased = false;
    (void)node_.broker().yield(Caller{}, group.plan->name);
  });
}

void StagePlayer::die(Program& program) {
  if (!program.rank.lives()) return;
  changes();
  unwatch(program);
  program.rank.die();
  program.contexts.clear();
  program.left = {};
  program.works.reset();
  ++program.token;
  Group& group = *program.group;
  std::erase(group.programs, &program);
  if (!group.programs.empty()) return;
  end_process(group);
  group.leased = group.leasing = group.promised = false;
}

void StagePlayer::end_process(Group& group) {
  if (!group.process) return;
  const std::uint64_t one = 1;
  (void)!::write(group.process.get(), &one, sizeof one);
  group.process.reset();
}

void StagePlayer::end(Group& group) {
  say("group " + group.plan->name + " ends");
  while (!group.programs.empty()) die(*group.programs.back());
}

// ---- the world ----------------------------------------------------------------------------------

void StagePlayer::others_change() {
  changes();
  const int where = static_cast<int>(dice_.below(kDevices));
  const DeviceUuid& uuid = device(where).uuid;
  if (dice_.one_in(2)) {
    node_.neighbours.leave(uuid);
    return say("others leave GPU " + std::to_string(where));
  }
  const std::uint64_t pages = 1 + dice_.below(dice_.one_in(4) ? 40 : 10);
  if (node_.neighbours.take(uuid, pages * kPage))
    say("others take " + std::to_string(pages) + " of GPU " + std::to_string(where));
}

std::shared_ptr<Observer> StagePlayer::observe(const std::string& what, const std::string& group) {
  return std::make_shared<Observer>([this, what, group](const Status& how) {
    say("the operator: " + what + ": " + (how.ok() ? "OK" : how.text()));
    check_promise(group, how.text());
  });
}

void StagePlayer::operator_acts() {
  const View view = look_at_all();
  std::vector<const v1::GroupInfo*> all;
  for (const auto& [name, info] : view.groups)
    if (info.state() == v1::GROUP_STATE_RUNNING || info.state() == v1::GROUP_STATE_PAUSED)
      all.push_back(&info);
  if (all.empty()) return;
  if (trace_.wrong && dice_.one_in(3)) return name_a_wrong_one(view);
  const v1::GroupInfo& info = *all[dice_.below(all.size())];
  const bool paused = info.state() == v1::GROUP_STATE_PAUSED;
  const bool pause = !paused || (info.paused_by_stage() && dice_.one_in(2));
  Task task(pause ? Operation::kPause : Operation::kResume);
  task.deep = pause && trace_.deepen > Duration{} && dice_.one_in(3);
  changes();
  trouble_ = now();
  const std::string what = (pause ? "pause " : "resume ") + info.name();
  say("the operator: " + what + (task.deep ? ", deep" : ""));
  node_.broker().start_operation(Caller{}, task, {info.name()}, {}, observe(what, info.name()));
}

void StagePlayer::driver_acts() {
  driver_busy_ = false;
  const auto step = node_.checkpoints.next();
  if (!step) return;
  const auto found = std::find_if(programs_.begin(), programs_.end(), [&](const Program& each) {
    return each.rank.lives() && each.rank.pid() == step->pid;
  });
  world::Fate fate = world::Fate::kWell;
  if (trace_.mishaps && !over() && dice_.one_in(12)) {
    fate = static_cast<world::Fate>(1 + dice_.below(3));
    trouble_ = now();
    changes();
  }
  const bool restores = step->action == CheckpointAction::kRestore && found != programs_.end();
  if (restores && fate == world::Fate::kWell)
    for (const int each : found->uses) {
      auto made = world::made_on(device(each).uuid, kPage);
      if (made.ok())
        found->contexts[device(each).uuid] = std::move(made.value().fd);
      else
        fate = world::Fate::kRefused;
    }
  // What others let go of or took beside a checkpoint amemd has measured, too.
  if (restores && fate != world::Fate::kWell) trouble_ = now();
  const std::string what = node_.checkpoints.take(*step, fate);
  say("the driver: " + what);
  // What went wrong on purpose may come to light late.
  if (what.find("CUDA_ERROR") != std::string::npos && trace_.mishaps) trouble_ = now();
  if (found != programs_.end() &&
      (node_.checkpoints.state(step->pid) == ProcessState::kCheckpointed ||
       node_.checkpoints.state(step->pid) == ProcessState::kFailed))
    found->contexts.clear();
  if (found != programs_.end() && found->rank.is_lost())
    after(seconds(2), [this, found = &*found] { die(*found); });
  if (node_.checkpoints.busy() && !std::exchange(driver_busy_, true))
    after(dice_.between(milliseconds(5), milliseconds(100)), [this] { driver_acts(); });
}

/// By a signal, for a while.
void StagePlayer::stop_one() {
  const Group& group = groups_[dice_.below(groups_.size())];
  if (group.programs.empty()) return;
  Program& program = *group.programs[dice_.below(group.programs.size())];
  if (program.stopped || !program.rank.connected()) return;
  say("rank " + std::to_string(program.rank.number()) + " of " + group.plan->name + " is stopped");
  program.stopped = true;
  unwatch(program);
  trouble_ = now();
  changes();
  after(dice_.between(seconds(5), seconds(40)), [this, &program] {
    program.stopped = false;
    trouble_ = now();
    changes();
    if (!program.rank.lives()) return;
    say("rank " + std::to_string(program.rank.number()) + " goes on");
    if (program.rank.paused()) program.rank.come_back(node_.sessions());
    watch(program);
    read(program);
  });
}

void StagePlayer::fork_one() {
  const Group& group = groups_[dice_.below(groups_.size())];
  if (group.programs.empty()) return;
  Program& program = *group.programs[dice_.below(group.programs.size())];
  if (!program.rank.connected()) return;
  say("rank " + std::to_string(program.rank.number()) + " of " + group.plan->name + " forks");
  program.rank.fork();
}

/// Of which the operation does nothing to the others.
void StagePlayer::name_a_wrong_one(const View& view) {
  std::vector<std::string> names = {"gone"};
  for (const auto& [name, info] : view.groups) names.push_back(name);
  const auto told = observe("an operation whose first group does not exist", "");
  node_.broker().start_operation(Caller{}, Task(Operation::kPause), names, {}, told);
  if (!world::death::came() && (!told->ended || told->status.code() != Code::kNotFound))
    breaks("what names a group that does not exist is refused: " + told->status.text());
}

void StagePlayer::churn() {
  Group& group = groups_[dice_.below(groups_.size())];
  if (group.programs.empty()) {
    if (!group.joining) join(group);
    return;
  }
  Program& program = *group.programs[dice_.below(group.programs.size())];
  switch (dice_.below(3)) {
    case 0:
      return end(group);
    case 1:
      say("rank " + std::to_string(program.rank.number()) + " of " + group.plan->name + " dies");
      return die(program);
    default:
      if (!program.rank.runs() || program.rank.waits()) return;
      say("rank " + std::to_string(program.rank.number()) + " of " + group.plan->name + " frees");
      changes();
      program.rank.free_one(dice_.below(1000));
  }
}

// ---- from the beginning to the end --------------------------------------------------------------

Coroutine StagePlayer::whole() {
  for (Group& group : groups_)
    after(group.plan->joins, [this, &group] {
      if (!over() && !group.joining && group.programs.empty()) join(group);
    });
  // Until the node is empty.
  const auto look_again = std::make_shared<std::function<void()>>();
  *look_again = [this, again = std::weak_ptr(look_again)] {
    check();
    if (const auto next = again.lock())
      after(milliseconds(over_ ? 500 : 1000), [next] { (*next)(); });
  };
  after(seconds(1), [look_again] { (*look_again)(); });
  if (trace_.others) again(seconds(3), seconds(30), [this] { others_change(); });
  if (trace_.mishaps) again(seconds(20), seconds(90), [this] { stop_one(); });
  if (trace_.operators) again(seconds(10), seconds(60), [this] { operator_acts(); });
  if (trace_.forks) again(seconds(10), seconds(40), [this] { fork_one(); });
  if (trace_.churn) again(seconds(5), seconds(40), [this] { churn(); });
  if (trace_.deaths) again(seconds(20), seconds(60), [this] { kill(); });
  co_await pass(trace_.length);
  co_await the_end();
  node_.loop().stop();
}

/// Nothing new happens: all work is done, and every byte of every rank is there.
Coroutine StagePlayer::the_end() {
  say("the end");
  over_ = true;
  world::death::comes_at(0);
  trouble_ = now();
  changes();
  node_.neighbours.leave_all();
  for (Group& group : groups_) {
    if (group.start != 0) node_.broker().stages().forget(std::exchange(group.start, 0));
    if (group.joining) end_process(group);
    group.joining = false;
  }
  for (Program& program : programs_)
    if (program.rank.lives()) program.rank.drop_leftovers();
  co_await pass(seconds(45));  // what is stopped goes on, and what is under way ends
  for (Program& program : programs_)
    if (program.rank.lives() && program.rank.is_lost()) die(program);
  co_await pass(seconds(1));
  for (const auto& [name, info] : look_at_all().groups)
    if (info.state() == v1::GROUP_STATE_PAUSED && !info.paused_by_stage()) {
      trouble_ = now();
      const std::string what = "resume " + name;
      node_.broker().start_operation(Caller{}, Operation::kResume, {name}, {}, observe(what, name));
      co_await pass(seconds(3));
    }
  // What waits is done; then each group works once more.
  for (std::size_t i = 0; i <= groups_.size() && played_.broken.empty(); ++i) {
    if (i > 0) {
      for (Program* program : groups_[i - 1].programs) {
        program->left += milliseconds(500);
        look(*program);
      }
      if (trace_.stage.rules.policy == TurnPolicy::kLease) lease(groups_[i - 1]);
    }
    std::string works = "-";
    for (int waited = 0; waited < 900 && !works.empty() && played_.broken.empty(); ++waited) {
      co_await pass(seconds(1));
      works.clear();
      const View view = look_at_all();
      for (const Group& group : groups_)
        if (has_work(group.plan->name) && can_come_in(view, group.plan->name))
          works += " " + group.plan->name;
    }
    if (!works.empty()) breaks("all work is done at the end, but not that of" + works);
    if (i == 0) continue;
    for (const Program* program : groups_[i - 1].programs)
      if (program->rank.runs())
        if (const std::string wrong = program->rank.check(true); !wrong.empty()) breaks(wrong);
  }
  if (!played_.broken.empty()) co_return;
  for (Group& group : groups_) end(group);
  co_await pass(seconds(3));
  check_end();
}

}  // namespace amem::stage_traces
