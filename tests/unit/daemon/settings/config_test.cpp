#include "daemon/settings/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "daemon/settings/arguments.h"

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Config defaults() { return Config::defaults(true, "/run/amem"); }

ConfigErrors errors_of(const std::string& toml) {
  Config config = defaults();
  ConfigErrors errors;
  apply_toml(config, toml, "f.toml", errors);
  check(config, errors);
  return errors;
}

TEST(Config, SegmentsGoByThePool) {
  Config config = defaults();
  const auto segment_of = [&](std::uint64_t pool) {
    config.pool_size = pool;
    return config.segment();
  };
  EXPECT_EQ(segment_of(0), 64ULL << 20);
  EXPECT_EQ(segment_of(64ULL << 30), 64ULL << 20);
  EXPECT_EQ(segment_of(65ULL << 30), 128ULL << 20) << "no pool has thousands";
  EXPECT_EQ(segment_of(512ULL << 30), 512ULL << 20);
  EXPECT_EQ(segment_of(4ULL << 40), 1ULL << 30);
  config.pool_chunk = 2ULL << 30;
  EXPECT_EQ(segment_of(64ULL << 30), 2ULL << 30) << "a segment has whole chunks";
  EXPECT_TRUE(errors_of("[pool]\nsegment = \"auto\"").empty());
  config.pool_segment = 256ULL << 20;
  EXPECT_EQ(config.segment(), 256ULL << 20);
}

TEST(Config, DefaultsAreGood) {
  const Config config = defaults();
  ConfigErrors errors;
  check(config, errors);
  EXPECT_TRUE(errors.empty());
  EXPECT_EQ(config.pool_size, 8ULL << 30);
  EXPECT_EQ(config.segment(), 64ULL << 20);
  EXPECT_EQ(config.pool_chunk, 2ULL << 20);
  EXPECT_EQ(config.deadlines.quiesce, seconds(30));
  EXPECT_EQ(config.deadlines.open, seconds(10));
  EXPECT_EQ(config.session_mode, 0660U);
  EXPECT_EQ(config.socket_group, "amem");
  EXPECT_EQ(config.quotas.get(Resource::kPoolBytes), "50%");
  EXPECT_EQ(config.control_mode, 0660U);
  const Config own = Config::defaults(false, "/run/user/1/amem");
  EXPECT_EQ(own.session_mode, 0600U);
  EXPECT_EQ(own.socket_group, "");
  EXPECT_EQ(own.quotas.get(Resource::kPoolBytes), "none");
  EXPECT_EQ(own.control_mode, 0600U);
}

TEST(Config, FileSetsEverything) {
  Config config = defaults();
  ConfigErrors errors;
  apply_toml(config, R"(
runtime_dir = "/srv/amem"
guests = "refuse"
[pool]
size = "2GiB"
segment = 268435456
chunk = "1MiB"
[deadlines]
quiesce = "5s"
save = 90
stall = "50ms"
guests = "2s"
open = 1.5
[swap]
duplex = false
[log]
level = "debug"
format = "json"
file = "/var/log/amemd.log"
[sockets]
session_mode = "0660"
)",
             "f.toml", errors);
  EXPECT_TRUE(errors.empty()) << errors.front();
  EXPECT_EQ(config.runtime_dir, "/srv/amem");
  EXPECT_EQ(config.pool_size, 2ULL << 30);
  EXPECT_EQ(config.pool_segment, 256ULL << 20);
  EXPECT_EQ(config.pool_chunk, 1ULL << 20);
  EXPECT_EQ(config.deadlines.quiesce, seconds(5));
  EXPECT_EQ(config.deadlines.save, seconds(90));
  EXPECT_EQ(config.deadlines.stall, milliseconds(50));
  EXPECT_EQ(config.deadlines.guests, seconds(2));
  EXPECT_EQ(config.guests, GuestPolicy::kRefuse);
  EXPECT_EQ(config.deadlines.open, milliseconds(1500));
  EXPECT_EQ(config.deadlines.release, seconds(30)) << "not named, so unchanged";
  EXPECT_FALSE(config.swap_duplex);
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.log_format, "json");
  EXPECT_EQ(config.log_file, "/var/log/amemd.log");
  EXPECT_EQ(config.session_mode, 0660U);
}

TEST(Config, ErrorsNameFileLineAndKey) {
  const ConfigErrors errors = errors_of(
      "[pool]\n"
      "size = \"lots\"\n"
      "sise = \"8GiB\"\n"
      "[nonsense]\n"
      "[log]\n"
      "level = \"loud\"\n"
      "format = [1]\n"
      "[deadlines]\n"
      "save = \"0s\"\n"
      "[sockets]\n"
      "control_mode = \"rw\"\n"
      "[swap]\n"
      "duplex = \"maybe\"\n");
  ASSERT_EQ(errors.size(), 8U);
  auto has = [&](const std::string& beginning, const std::string& text) {
    return std::any_of(errors.begin(), errors.end(), [&](const std::string& e) {
      return e.starts_with(beginning) && e.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(has("f.toml:2: pool.size: ", "\"lots\" is not a valid size"));
  EXPECT_TRUE(has("f.toml:3: pool.sise: ", "this setting does not exist"));
  EXPECT_TRUE(has("f.toml:4: nonsense: ", "this setting does not exist"));
  EXPECT_TRUE(has("f.toml:6: log.level: ", "not one of debug info warning error"));
  EXPECT_TRUE(has("f.toml:7: log.format: ", "a string, a number, true or false"));
  EXPECT_TRUE(has("f.toml:9: deadlines.save: ", "at least 1ms"));
  EXPECT_TRUE(has("f.toml:11: sockets.control_mode: ", "not a valid file mode"));
  EXPECT_TRUE(has("f.toml:13: swap.duplex: ", "neither true nor false"));
}

TEST(Config, TomlThatDoesNotParseNamesTheLine) {
  const ConfigErrors errors = errors_of("[pool]\nsize = \n");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_TRUE(errors[0].starts_with("f.toml:2: ")) << errors[0];
}

TEST(Config, ATableMustBeATable) {
  const ConfigErrors errors = errors_of("pool = \"8GiB\"\n");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0], "f.toml:1: pool: must be a table, written [pool]");
}

TEST(Config, ValuesAreCheckedTogether) {
  EXPECT_EQ(errors_of("[pool]\nchunk = \"3MiB\"\n").size(), 1U) << "no power of two";
  EXPECT_EQ(errors_of("[pool]\nchunk = \"4KiB\"\n").size(), 1U) << "too small";
  EXPECT_EQ(errors_of("[pool]\nsize = \"60MiB\"\nsegment = \"6MiB\"\nchunk = \"4MiB\"\n").size(),
            1U)
      << "2 MiB of each segment would never be used";
  EXPECT_EQ(errors_of("[pool]\nsize = \"2MiB\"\nchunk = \"4MiB\"\n").size(), 1U)
      << "nor any of this";
  EXPECT_EQ(errors_of("[pool]\nsegment = \"1MiB\"\n").size(), 1U);
  EXPECT_EQ(errors_of("[pool]\nsegment = 0\n").size(), 1U);
  EXPECT_EQ(errors_of("[pool]\nsize = \"3000000\"\n").size(), 1U);
  EXPECT_TRUE(errors_of("[pool]\nsize = 0\n").empty()) << "no pool is a choice";
  EXPECT_EQ(errors_of("[pool]\nsize = 0\nsegment = \"3MiB\"\n").size(), 1U);
  EXPECT_EQ(errors_of("runtime_dir = \"relative\"\n").size(), 1U);
  EXPECT_EQ(errors_of("[pool]\nsave = \"zip\"\n").size(), 1U);
}

TEST(Config, WhoStartsTheHolder) {
  for (const auto& [text, use] : {std::pair("auto", HolderUse::kAuto),
                                  {"required", HolderUse::kRequired},
                                  {"external", HolderUse::kExternal},
                                  {"off", HolderUse::kOff}}) {
    Config config = defaults();
    ConfigErrors errors;
    apply_toml(config, "holder = \"" + std::string(text) + "\"", "f.toml", errors);
    EXPECT_TRUE(errors.empty()) << errors.front();
    EXPECT_EQ(config.holder, use);
    EXPECT_NE(to_toml(config).find("holder = \"" + std::string(text) + "\""), std::string::npos);
  }
}

TEST(Config, HowBytesAreSaved) {
  Config config = defaults();
  EXPECT_EQ(config.pool_save, Form::kAuto);
  ConfigErrors errors;
  apply_toml(config, "[pool]\nsave = \"sparse\"\n", "f", errors);
  EXPECT_EQ(config.pool_save, Form::kSparse);
  apply_flags(config, {{"pool.save", "dense"}}, errors);
  EXPECT_EQ(config.pool_save, Form::kDense);
  EXPECT_TRUE(errors.empty());
}

TEST(Config, LaterSourcesWin) {
  Config config = defaults();
  ConfigErrors errors;
  apply_toml(config, "[pool]\nsize = \"1GiB\"\nchunk = \"1MiB\"\nsegment = \"512MiB\"\n", "f",
             errors);
  const std::map<std::string, std::string> environment = {{"AMEM_POOL_SIZE", "2GiB"},
                                                          {"AMEM_POOL_CHUNK", "4MiB"},
                                                          {"AMEM_LOG_LEVEL", ""},
                                                          {"AMEM_GROUP", "train"}};
  apply_environment(
      config,
      [&](const char* name) {
        const auto it = environment.find(name);
        return it != environment.end() ? it->second.c_str() : nullptr;
      },
      errors);
  apply_flags(config, {{"pool.size", "3GiB"}}, errors);
  EXPECT_TRUE(errors.empty());
  EXPECT_EQ(config.pool_size, 3ULL << 30);
  EXPECT_EQ(config.pool_chunk, 4ULL << 20);
  EXPECT_EQ(config.pool_segment, 512ULL << 20);
  EXPECT_EQ(config.log_level, "info") << "empty is not set";
}

TEST(Config, ErrorsOfTheOtherSourcesNameThem) {
  Config config = defaults();
  ConfigErrors errors;
  apply_environment(
      config,
      [](const char* name) {
        return std::string(name) == "AMEM_DEADLINES_QUIESCE" ? "soon" : nullptr;
      },
      errors);
  apply_flags(config, {{"log.format", "xml"}, {"no.such", "x"}, {"guests", "wait"}}, errors);
  ASSERT_EQ(errors.size(), 4U);
  EXPECT_EQ(errors[3], "--guests: \"wait\" is not one of pin refuse");
  EXPECT_TRUE(errors[0].starts_with("environment: AMEM_DEADLINES_QUIESCE: \"soon\""));
  EXPECT_TRUE(errors[1].starts_with("--log-format: \"xml\""));
  EXPECT_TRUE(errors[2].starts_with("no.such: this setting does not exist"));
}

TEST(Config, PrintedFormReadsBack) {
  Config config = defaults();
  config.pool_size = 3ULL << 29;
  ConfigErrors of_flags;
  apply_flags(config, {{"deadlines.stall", "25ms"}}, of_flags);
  config.log_file = "/tmp/a \"quoted\" \\ name\n";
  config.session_mode = 0;
  config.swap_duplex = false;
  config.deadlines.deepen = seconds(90);
  config.guests = GuestPolicy::kRefuse;
  Config back = defaults();
  ConfigErrors errors;
  apply_toml(back, to_toml(config), "printed", errors);
  EXPECT_TRUE(errors.empty()) << errors.front();
  for (const Setting& setting : settings())
    EXPECT_EQ(setting.get(back), setting.get(config)) << setting.key;
}

TEST(Config, AReloadTakesWhatIsLiveAndNamesTheRest) {
  Config running = defaults();
  Config next = defaults();
  EXPECT_TRUE(reload(running, next).taken.empty());
  EXPECT_TRUE(reload(running, next).waiting.empty());
  next.pool_save = Form::kDense;
  next.pool_size = 64ULL << 30;
  ConfigErrors errors;
  apply_toml(next, "[quotas]\nsessions = 7\n[stage.gpus]\ndevices = \"0\"\n", "f.toml", errors);
  ASSERT_TRUE(errors.empty()) << errors.front();
  const Reload found = reload(running, next);
  EXPECT_EQ(found.taken,
            (std::vector<std::string>{"pool.save = \"dense\"", "quotas.sessions = \"7\""}));
  EXPECT_EQ(found.waiting, (std::vector<std::string>{"pool.size = \"64GiB\"", "[stage.…]"}));
  EXPECT_EQ(running.pool_save, Form::kDense);
  EXPECT_EQ(running.pool_size, defaults().pool_size);
  EXPECT_EQ(reload(running, next).taken, std::vector<std::string>());
  EXPECT_EQ(reload(running, next).waiting, found.waiting) << "said each time, until amemd restarts";
}

TEST(Config, FastPathsAreSwitchedOffByName) {
  Config config = defaults();
  ConfigErrors errors;
  const auto without = [&] { return find_setting("without")->get(config); };
  EXPECT_EQ(without(), "");
  const std::pair<std::string, bool (*)(const Config&)> paths[] = {
      {"duplex", [](const Config& c) { return !c.swap_duplex; }},
      {"hand_on", [](const Config& c) { return !c.swap_hand_on; }},
      {"host_numa", [](const Config& c) { return c.pool_place == Place::kMemfd; }},
      {"retain", [](const Config& c) { return c.pool_retain == Retain::kOff; }},
      {"sparse", [](const Config& c) { return c.pool_save == Form::kDense; }},
      {"waves", [](const Config& c) { return c.swap_wave == 0; }}};
  for (const auto& [name, is_off] : paths) {
    apply_toml(config, "without = [\"" + name + "\"]\n", "f.toml", errors);
    EXPECT_EQ(without(), name);
    for (const auto& [other, other_is_off] : paths)
      EXPECT_EQ(other_is_off(config), other == name) << other << " of without " << name;
  }
  apply_flags(config, {{"without", "waves, duplex"}}, errors);
  EXPECT_EQ(without(), "duplex,waves");
  apply_flags(config, {{"without", ""}}, errors);
  EXPECT_TRUE(errors.empty()) << errors.front();
  for (const auto& [name, is_off] : paths) EXPECT_FALSE(is_off(config)) << name;
  EXPECT_EQ(config.swap_wave, Config().swap_wave);
  apply_flags(config, {{"without", "duplex,speed"}}, errors);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0],
            "--without: \"speed\" is not one of duplex hand_on host_numa retain sparse waves");
  EXPECT_TRUE(config.swap_duplex);
}

TEST(Config, WhatFastPathsHaveOtherwiseStays) {
  Config config = defaults();
  ConfigErrors errors;
  apply_flags(config, {{"swap.wave", "3MiB"}, {"pool.retain", "always"}, {"without", "duplex"}},
              errors);
  EXPECT_EQ(config.swap_wave, 3ULL << 20U);
  EXPECT_EQ(config.pool_retain, Retain::kAlways);
}

TEST(Config, OneDeadlineIsForTheOtherSteps) {
  Config config = defaults();
  ConfigErrors errors;
  EXPECT_EQ(find_setting("deadlines.step")->get(config), "auto");
  apply_flags(config, {{"deadlines.step", "5m"}}, errors);
  const Deadlines& set = config.deadlines;
  for (const Duration each : {set.save, set.release, set.create, set.load, set.open, set.request})
    EXPECT_EQ(each, seconds(300));
  for (const auto other : {&Deadlines::guests, &Deadlines::quiesce, &Deadlines::checkpoint,
                           &Deadlines::stall, &Deadlines::deepen})
    EXPECT_EQ(set.*other, defaults().deadlines.*other);
  EXPECT_EQ(find_setting("deadlines.step")->get(config), "300s");
  apply_flags(config, {{"deadlines.step", "auto"}}, errors);
  EXPECT_EQ(config.deadlines.save, defaults().deadlines.save);
  EXPECT_TRUE(errors.empty());
  apply_flags(config, {{"deadlines.step", "0"}}, errors);
  EXPECT_EQ(errors.size(), 1U);
}

TEST(Config, ASettingAloneCountsWhereverItStandsBesideOneForSeveral) {
  Config config = defaults();
  ConfigErrors errors;
  apply_toml(config,
             "without = [\"host_numa\", \"waves\"]\n"
             "[deadlines]\nsave = \"2ms\"\nstep = \"5s\"\n[swap]\nwave = \"3MiB\"\n",
             "f.toml", errors);
  EXPECT_TRUE(errors.empty()) << errors.front();
  EXPECT_EQ(config.deadlines.save, milliseconds(2));
  EXPECT_EQ(config.deadlines.load, seconds(5));
  EXPECT_EQ(config.swap_wave, 3ULL << 20U);
  EXPECT_EQ(config.pool_place, Place::kMemfd);
  Config again = defaults();
  apply_toml(again, to_toml(config), "printed", errors);
  EXPECT_TRUE(errors.empty()) << errors.front();
  EXPECT_EQ(again.deadlines.save, milliseconds(2));
  EXPECT_EQ(again.deadlines.load, seconds(5));
  EXPECT_EQ(again.swap_wave, 3ULL << 20U);
  EXPECT_EQ(again.pool_place, Place::kMemfd);
  EXPECT_EQ(to_toml(again), to_toml(config));
}

TEST(Config, ARetiredSettingWorksWithAWarning) {
  Config config = defaults();
  ConfigErrors errors;
  EXPECT_EQ(to_toml(config).find("stall"), std::string::npos) << "it is not shown";
  apply_toml(config, "[deadlines]\nstall = \"25ms\"\nquiesce = \"9s\"\n", "f.toml", errors);
  apply_environment(
      config,
      [](const char* name) {
        return std::string_view(name) == "AMEM_SWAP_DUPLEX" ? "false" : nullptr;
      },
      errors);
  apply_flags(config, {{"quotas.calls", "none"}}, errors);
  EXPECT_TRUE(errors.empty()) << errors.front();
  EXPECT_EQ(config.deadlines.stall, milliseconds(25));
  EXPECT_FALSE(config.swap_duplex);
  ASSERT_EQ(config.retired.size(), 3U);
  EXPECT_EQ(config.retired.at("deadlines.stall"),
            "deadlines.stall is set in f.toml. The next version will not have this setting: it "
            "will be 20ms. Remove it");
  EXPECT_NE(config.retired.at("swap.duplex").find("in the environment"), std::string::npos);
  EXPECT_NE(config.retired.at("quotas.calls").find("in the command line"), std::string::npos);
  EXPECT_NE(to_toml(config).find("stall = \"25ms\""), std::string::npos) << "as it is set";
}

TEST(Config, LlmdsCallsAreAnotherPrograms) {
  Config config = defaults();
  ConfigErrors none;
  apply_toml(config, "[llm_d]\nenabled = true\n", "f.toml", none);
  EXPECT_EQ(config.retired.at("llm_d.enabled"),
            "llm_d.enabled is set in f.toml. The next version will not have this setting: the "
            "program amem-llm-d answers llm-d, and control.sock does not any more. Run it by "
            "systemctl enable --now amem-llm-d, and remove this setting");
  EXPECT_TRUE(errors_of("[llm_d]\nenabled = true\nlisten = \"10.0.0.7:9001\"\n").empty());
  EXPECT_TRUE(errors_of("[llm_d]\ndeep = true\n[deep]\nenabled = true\n").empty());
  const ConfigErrors errors = errors_of("[llm_d]\nlisten = \"9001\"\ndeep = true\n");
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0], "llm_d.listen: requires llm_d.enabled = true");
  EXPECT_EQ(errors[1], "llm_d.deep: requires deep.enabled = true");
}

TEST(Config, WhenAPausedGroupBecomesDeep) {
  EXPECT_TRUE(errors_of("[deep]\nenabled = true\nafter = \"10m\"\n").empty());
  EXPECT_TRUE(errors_of("[deep]\nafter = \"0\"\n").empty());
  ASSERT_EQ(errors_of("[deep]\nafter = \"10m\"\n").size(), 1U);
  EXPECT_EQ(errors_of("[deep]\nafter = \"10m\"\n")[0], "deep.after: requires deep.enabled = true");
  const ConfigErrors errors = errors_of("[deep]\nenabled = true\nafter = \"10ms\"\n");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_TRUE(errors[0].ends_with("deep.after: must be 0 or at least 1s")) << errors[0];
}

TEST(Config, AQuotaThatGivesNobodyAnythingIsAnError) {
  const ConfigErrors errors = errors_of("[pool]\nsize = \"1GiB\"\n[quotas]\npool = \"32MiB\"\n");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0],
            "quotas.pool: 32MiB is less than one segment, so nobody could use the pool. A segment "
            "has 64MiB. Set at least that, or a share such as 50%");
  for (const char* quota : {"64MiB", "1%", "0", "none"})
    EXPECT_TRUE(
        errors_of("[pool]\nsize = \"1GiB\"\n[quotas]\npool = \"" + std::string(quota) + "\"\n")
            .empty())
        << quota;
}

TEST(Config, OfThePoolAPartStaysPinned) {
  EXPECT_EQ(defaults().reserve(), defaults().pool_size) << "of a service all of it";
  EXPECT_EQ(Config::defaults(false, "/run/user/1/amem").reserve(), 64ULL << 20);
  Config config = defaults();
  ConfigErrors errors;
  apply_flags(config, {{"pool.reserve", "1GiB"}, {"pool.idle", "5s"}}, errors);
  check(config, errors);
  EXPECT_THAT(errors, testing::IsEmpty());
  EXPECT_EQ(config.reserve(), 1ULL << 30);
  EXPECT_EQ(config.pool_idle, std::chrono::seconds(5));
  apply_flags(config, {{"pool.size", "512MiB"}}, errors);
  EXPECT_EQ(config.reserve(), 512ULL << 20) << "no more than there may be";
  apply_flags(config, {{"pool.reserve", "all"}}, errors);
  EXPECT_EQ(config.reserve(), 512ULL << 20);
  EXPECT_THAT(errors, testing::IsEmpty());
  apply_flags(config, {{"pool.reserve", "some"}, {"pool.idle", "0"}}, errors);
  EXPECT_EQ(errors.size(), 2U);
  config.pool_reserve = 1 << 20;
  errors.clear();
  check(config, errors);
  EXPECT_THAT(errors, testing::ElementsAre(testing::HasSubstr("pool.reserve: ")));
}

TEST(Config, WhatNoFileCanSayIsRefused) {
  Config config = defaults();
  ConfigErrors errors;
  apply_flags(config, {{"log.file", "/\xf4mp/log"}, {"runtime_dir", "/run/\xed\xa0\x80"}}, errors);
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0], "--log-file: the value is not UTF-8");
  EXPECT_EQ(errors[1], "--runtime-dir: the value is not UTF-8");
  EXPECT_EQ(config.log_file, defaults().log_file);
  apply_flags(config, {{"log.file", "/tmp/\xc3\xa4.log"}}, errors);
  EXPECT_EQ(errors.size(), 2U);
  EXPECT_EQ(config.log_file, "/tmp/\xc3\xa4.log");
}

TEST(Config, NamesFollowFromTheKey) {
  const Setting* setting = find_setting("sockets.session_mode");
  ASSERT_NE(setting, nullptr);
  EXPECT_EQ(setting->environment(), "AMEM_SOCKETS_SESSION_MODE");
  EXPECT_EQ(setting->flag(), "--sockets-session-mode");
  std::set<std::string> flags;
  for (const Setting& s : settings()) EXPECT_TRUE(flags.insert(s.flag()).second) << s.key;
}

TEST(Arguments, FlagsBecomeSettings) {
  const char* argv[] = {"amemd", "--check-config", "--pool-size", "1GiB", "--log-level=debug"};
  int status = -1;
  const auto arguments = parse_arguments(5, argv, status);
  ASSERT_TRUE(arguments.has_value());
  EXPECT_TRUE(arguments->check_config);
  EXPECT_EQ(arguments->flags, (std::vector<std::pair<std::string, std::string>>{
                                  {"pool.size", "1GiB"}, {"log.level", "debug"}}));
}

TEST(Arguments, WrongUsageEndsWithTwo) {
  const char* argv[] = {"amemd", "--no-such-flag"};
  int status = -1;
  EXPECT_FALSE(parse_arguments(2, argv, status).has_value());
  EXPECT_EQ(status, 2);
  const char* version[] = {"amemd", "--version"};
  EXPECT_FALSE(parse_arguments(2, version, status).has_value());
  EXPECT_EQ(status, 0);
}

TEST(Arguments, AFileThatWasAskedForMustBeThere) {
  Arguments arguments;
  arguments.config_file = "/nonexistent/amemd.toml";
  ConfigErrors errors;
  load_config(arguments, errors);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0], "/nonexistent/amemd.toml: cannot be read: No such file or directory");
  arguments.config_file = "/";
  errors.clear();
  load_config(arguments, errors);
  EXPECT_EQ(errors.size(), 1U) << "a directory";
}

TEST(Config, StagesAreTables) {
  Config config = defaults();
  ConfigErrors errors;
  apply_toml(config, R"(
[stage.night]
devices = [0, "GPU-1"]
policy = "slice"
margin = "1GiB"
slice = "10s"
min_residency = "2s"
[stage.day]
devices = "2, 3"
max_hold = "5m"
)",
             "f.toml", errors);
  check(config, errors);
  EXPECT_TRUE(errors.empty()) << errors.front();
  ASSERT_EQ(config.stages.size(), 2U);
  const StageSettings& day = config.stages[0];
  EXPECT_EQ(day.name, "day");
  EXPECT_EQ(day.devices, (std::vector<std::string>{"2", "3"}));
  EXPECT_EQ(day.rules.policy, TurnPolicy::kDemand);
  EXPECT_EQ(day.rules.max_hold, std::chrono::minutes(5));
  EXPECT_EQ(day.margin, 512ULL << 20);
  EXPECT_FALSE(day.min_residency);
  const StageSettings& night = config.stages[1];
  EXPECT_EQ(night.devices, (std::vector<std::string>{"0", "GPU-1"}));
  EXPECT_EQ(night.rules.policy, TurnPolicy::kSlice);
  EXPECT_EQ(night.rules.slice, seconds(10));
  EXPECT_EQ(night.margin, 1ULL << 30);
  EXPECT_EQ(night.min_residency, seconds(2));
  EXPECT_EQ(config.retired.size(), 1U);
  EXPECT_TRUE(config.retired.at("stage.night.min_residency")
                  .starts_with("stage.night.min_residency is set in f.toml"));
  EXPECT_EQ(to_toml(config).find("ageing"), std::string::npos) << "it is not shown";
  Config again = defaults();
  apply_toml(again, to_toml(config), "again.toml", errors);
  EXPECT_TRUE(errors.empty());
  EXPECT_EQ(to_toml(again), to_toml(config));
}

TEST(Config, WrongStagesAreNamed) {
  const auto first = [](const std::string& toml) {
    const ConfigErrors errors = errors_of(toml);
    return errors.empty() ? std::string("none") : errors.front();
  };
  EXPECT_EQ(first("[stage.a]\npolicy = \"lease\""),
            "stage.a.devices: name at least one GPU, by its number or UUID");
  EXPECT_EQ(first("[stage.a]\ndevices = [0]\n[stage.b]\ndevices = [1, 0]"),
            "stage.b.devices: GPU 0 is in stage 'a', too. A GPU can be in one stage");
  EXPECT_EQ(first("[stage.a]\ndevices = [0]\npolicy = \"fair\""),
            "f.toml:3: stage.a.policy: \"fair\" is not one of lease demand slice");
  EXPECT_EQ(first("[stage.a]\ndevices = [0]\nstart = \"now\""),
            "f.toml:3: stage.a.start: \"now\" is not one of alone beside");
  EXPECT_EQ(first("[stage.a]\ndevices = [0]\ndevice = 1").substr(0, 60),
            "f.toml:3: stage.a.device: a stage has no such setting. Its s");
  EXPECT_EQ(first("[stage.a]\ndevices = [0, 0]"),
            "f.toml:2: stage.a.devices: GPU 0 is named twice");
  EXPECT_EQ(first("stage = 1"), "f.toml:1: stage: must be tables, each written [stage.NAME]");
  EXPECT_NE(first("[stage.none]\ndevices = [0]").find("not a valid name"), std::string::npos);
  EXPECT_NE(first("[stage.a]\ndevices = [0]\nslice = \"0s\"").find("slice"), std::string::npos);
}

}  // namespace
}  // namespace amem
