// amemctl's command line.
#include "client/ctl/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <sstream>

#include "client/ctl/exit_code.h"

namespace amem::ctl {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CommandLine, CommandsAndTheirArguments) {
  EXPECT_EQ(parse({"status"}).options->command, Command::kStatus);
  EXPECT_EQ(parse({"groups"}).options->command, Command::kGroups);
  EXPECT_EQ(parse({"version"}).options->command, Command::kVersion);
  EXPECT_EQ(parse({"ranks"}).options->group, "");
  EXPECT_EQ(parse({"ranks", "train"}).options->group, "train");
  EXPECT_TRUE(parse({"allocations", "train", "--summary"}).options->summary);
  EXPECT_THAT(parse({"pause", "train"}).options->groups, ElementsAre("train"));
  EXPECT_THAT(parse({"pause", "a", "b", "--tag", "kv"}).options->groups, ElementsAre("a", "b"));
  EXPECT_THAT(parse({"resume", "a", "b"}).options->groups, ElementsAre("a", "b"));
  EXPECT_TRUE(parse({"pause", "--all", "--guests", "pin"}).options->all);
  EXPECT_TRUE(parse({"resume", "--all"}).options->all);
  EXPECT_EQ(parse({"resume", "train"}).options->command, Command::kResume);
  EXPECT_EQ(parse({"watch"}).options->command, Command::kWatch);

  EXPECT_EQ(parse({"groups", "train"}).options->group, "train");
  EXPECT_EQ(parse({"groups", "train", "-o", "name"}).options->detail, Detail::kNames);
  EXPECT_EQ(parse({"ranks", "--output=wide"}).options->detail, Detail::kWide);
  EXPECT_TRUE(parse({"status", "-o", "json"}).options->json);
  EXPECT_FALSE(parse({"status", "-o", "name"}).options) << "a status has no name";
  EXPECT_FALSE(parse({"groups", "-o", "yaml"}).options);
  EXPECT_THAT(parse({"pause", "train"}).options->tags, ElementsAre());
  EXPECT_FALSE(parse({"pause", "train"}).options->explain);
  EXPECT_TRUE(parse({"swap", "train", "rollout", "--explain"}).options->explain);
  EXPECT_THAT(parse({"pause", "train", "--tag", "weights", "kv_cache"}).options->tags,
              ElementsAre("weights", "kv_cache"));
  EXPECT_THAT(parse({"resume", "--tag", "weights", "train"}).options->tags, ElementsAre("weights"));
  EXPECT_THAT(parse({"allocations", "--tag", "a", "--tag", "b", "--summary"}).options->tags,
              ElementsAre("a", "b"));

  const CommandLine swap = *parse({"swap", "train", "rollout"}).options;
  EXPECT_EQ(swap.command, Command::kSwap);
  EXPECT_THAT(swap.groups, ElementsAre("train"));
  EXPECT_THAT(swap.into, ElementsAre("rollout"));
  const CommandLine sets = *parse({"swap", "a", "b", "--for", "c", "d", "--explain"}).options;
  EXPECT_THAT(sets.groups, ElementsAre("a", "b"));
  EXPECT_THAT(sets.into, ElementsAre("c", "d"));

  EXPECT_EQ(parse({"prepare", "train", "rollout"}).options->groups,
            (std::vector<std::string>{"train", "rollout"}));
  EXPECT_FALSE(parse({"prepare"}).options) << "which group?";
  EXPECT_TRUE(parse({"run", "--group", "a", "--job-control", "--", "x"}).options->job_control);
  const CommandLine policy = *parse({"policy", "train", "kv_cache", "discard"}).options;
  EXPECT_EQ(policy.tag, "kv_cache");
  EXPECT_EQ(policy.policy, v1::POLICY_DISCARD);

  EXPECT_EQ(policy.form, v1::FORM_UNSPECIFIED);
  const CommandLine save = *parse({"policy", "train", "nccl", "--save", "sparse"}).options;
  EXPECT_EQ(save.policy, v1::POLICY_UNSPECIFIED);
  EXPECT_EQ(save.form, v1::FORM_SPARSE);
  EXPECT_EQ(parse({"policy", "train", "w", "keep", "--save=auto"}).options->form, v1::FORM_AUTO);
  EXPECT_FALSE(parse({"policy", "train", "nccl"}).options) << "nothing to set";
  EXPECT_FALSE(parse({"policy", "train", "nccl", "--save", "zip"}).options);

  const WaitTarget ready = parse({"wait", "group", "train", "--ranks", "8"}).options->awaited;
  EXPECT_EQ(ready.what, WaitFor::kGroup);
  EXPECT_EQ(ready.group, "train");
  EXPECT_EQ(ready.goal, Goal::kRunning);
  EXPECT_EQ(ready.ranks, 8U);
  EXPECT_EQ(parse({"wait", "group", "a", "--for", "gone"}).options->awaited.goal, Goal::kGone);
  EXPECT_EQ(parse({"wait", "idle"}).options->awaited.what, WaitFor::kIdle);
  EXPECT_EQ(parse({"wait", "pool"}).options->awaited.what, WaitFor::kPool);

  const CommandLine top = *parse({"top", "--once", "--interval", "250ms"}).options;
  EXPECT_TRUE(top.once);
  EXPECT_EQ(top.interval, milliseconds(250));
}

TEST(CommandLine, GlobalOnesBeforeAndAfterTheCommand) {
  const CommandLine before = *parse({"--json", "--timeout", "30", "pause", "train"}).options;
  EXPECT_TRUE(before.json);
  EXPECT_EQ(before.timeout, milliseconds(30'000));
  const CommandLine after =
      *parse({"status", "--json", "--no-color", "--runtime-dir=/x", "--socket", "/y"}).options;
  EXPECT_TRUE(after.json);
  EXPECT_TRUE(after.no_color);
  EXPECT_EQ(after.runtime_dir, "/x");
  EXPECT_EQ(after.socket, "/y");
  EXPECT_FALSE(after.timeout);
}

TEST(CommandLine, RunLeavesTheCommandAlone) {
  const CommandLine run = *parse({"run", "--group", "train", "--required", "--trace", "t.%p", "--",
                                  "python", "a.py", "--json", "--", "-x"})
                               .options;
  EXPECT_EQ(run.command, Command::kRun);
  EXPECT_EQ(run.group, "train");
  EXPECT_TRUE(run.required);
  EXPECT_EQ(run.scope, "");
  EXPECT_EQ(parse({"run", "--group", "a", "--scope", "heap", "--", "ls"}).options->scope, "heap");
  EXPECT_EQ(run.trace, "t.%p");
  EXPECT_FALSE(run.json);
  EXPECT_THAT(run.program, ElementsAre("python", "a.py", "--json", "--", "-x"));
}

struct BadLine {
  std::vector<std::string> arguments;
  const char* text;

  friend std::ostream& operator<<(std::ostream& out, const BadLine& line) {
    for (const std::string& argument : line.arguments) out << argument << ' ';
    return out;
  }
};

class BadLines : public testing::TestWithParam<BadLine> {};

TEST_P(BadLines, AreUsageErrorsThatSayWhy) {
  const Parsed parsed = parse(GetParam().arguments);
  EXPECT_FALSE(parsed.options);
  EXPECT_EQ(parsed.exit_code, kExitUsage);
  EXPECT_THAT(parsed.text, HasSubstr(GetParam().text));
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, BadLines,
    testing::Values(
        BadLine{{}, "subcommand is required"}, BadLine{{"paws"}, "no command \"paws\""},
        BadLine{{"pause"}, "GROUP is required"},
        BadLine{{"resume", "a", "--all"}, "--all cannot be used with groups"},
        BadLine{{"pause", "--all", "--discard", "b"}, "--all cannot be used with --tag"},
        BadLine{{"pause", "--all", "--trace", "f"}, "history --trace"},
        BadLine{{"resume", "--all", "--nodes", "x:1"}, "asks one broker only"},
        BadLine{{"swap", "--all"}, "GROUP is required"},
        BadLine{{"pause", "../etc"}, "\"../etc\" is not a valid group name"},
        BadLine{{"pause", "a", "b/c"}, "\"b/c\" is not a valid group name"},
        BadLine{{"swap", "a"}, "requires two groups, OUT and IN, or OUT... --for IN..."},
        BadLine{{"swap", "a", "b", "c"}, "requires two groups, OUT and IN, or OUT... --for IN..."},
        BadLine{{"swap", "--for", "a"}, "GROUP is required"},
        BadLine{{"policy", "a", "nccl", "drop"}, "drop"},
        BadLine{{"pause", "a", "--tag", ""}, "tag is empty"},
        BadLine{{"pause", "a", "--tag"}, "--tag"},
        BadLine{{"pause", "a", "--tag", "b", "--except", "c"}, "excludes"},
        BadLine{{"resume", "a", "--discard", "b"}, "--discard"},
        BadLine{{"pause", "a", "--force"}, "--discard"},
        BadLine{{"swap", "a", "b", "--force"}, "--discard"},
        BadLine{{"policy", "a", "heap", "--force", "--save", "auto"}, "POLICY"},
        BadLine{{"pause", "a", "--guests", "wait"}, "wait"},
        BadLine{{"resume", "a", "--guests", "pin"}, "--guests"},
        BadLine{{"run", "--group", "a", "--scope", "all", "--", "ls"}, "all"},
        BadLine{{"wait"}, "WHAT is required"}, BadLine{{"wait", "train"}, "train"},
        BadLine{{"wait", "group"}, "wait group NAME"},
        BadLine{{"wait", "idle", "train"}, "only `wait group` takes a name"},
        BadLine{{"wait", "pool", "--ranks", "2"}, "only `wait group` supports --for and --ranks"},
        BadLine{{"wait", "group", "a", "--for", "gone", "--ranks", "2"}, "requires --for running"},
        BadLine{{"wait", "group", "a", "--for", "dead"}, "dead"},
        BadLine{{"status", "--timeout", "soon"}, "\"soon\" is not a valid time"},
        BadLine{{"status", "--", "ls"}, "only commands that start a program, such as run"},
        BadLine{{"run", "--", "ls"}, "--group is required"},
        BadLine{{"run", "--group", "a b", "--", "ls"}, "is not a valid group name"},
        BadLine{{"run", "--group", "a"}, "there is no command"},
        BadLine{{"run", "--group", "a", "--"}, "there is no command"},
        BadLine{{"run", "--group", "a", "ls"}, "after \"--\""},
        BadLine{{"run", "--group", "a", "--socket", "/x", "--", "ls"}, "--runtime-dir"}));

/// The commands that --help lists.
std::vector<std::string> commands() {
  const std::string help = parse({"--help"}).text;
  std::istringstream lines(help.substr(0, help.find("Where the broker is:")));
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("  ") && line[2] >= 'a' && line[2] <= 'z')
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
  return names;
}

TEST(CommandLine, TagsThatLeaveOrReturnFirst) {
  const v1::SetTurnRequest both =
      parse({"stage", "train", "--leave-first", "kv,workspace", "--return", "weights"})
          .options->turn;
  EXPECT_TRUE(both.set_leave_first() && both.set_return_order() && !both.set_stage());
  EXPECT_THAT(both.leave_first(), ElementsAre("kv", "workspace"));
  EXPECT_THAT(both.return_order(), ElementsAre("weights"));
  const v1::SetTurnRequest none = parse({"stage", "train", "--leave-first", "none"}).options->turn;
  EXPECT_TRUE(none.set_leave_first() && !none.set_return_order());
  EXPECT_THAT(none.leave_first(), ElementsAre());
}

TEST(CommandLine, EachCommandHasAnExampleThatItTakes) {
  EXPECT_GE(commands().size(), 20U);
  for (const std::string& command : commands()) {
    const std::string help = parse({command, "--help"}).text;
    const std::size_t at = help.find("Example:\n  amemctl " + command);
    ASSERT_NE(at, std::string::npos) << help;
    std::istringstream words(help.substr(at, help.find("\nOptions for all", at) - at));
    std::vector<std::string> arguments;
    for (std::string word; words >> word;) arguments.push_back(word);
    arguments.erase(arguments.begin(), arguments.begin() + 2);  // "Example:", "amemctl"
    EXPECT_TRUE(parse(arguments).options) << parse(arguments).text;
  }
}

TEST(CommandLine, HelpHasTheCommandsInGroups) {
  const std::string help = parse({"--help"}).text;
  EXPECT_THAT(help, testing::Not(HasSubstr("Subcommands:")));
  EXPECT_LT(help.find("\nJobs:\n  run "), help.find("\nState and history:\n  status "));
  EXPECT_LT(help.find("\nState and history:"), help.find("\nNode:\n"));
  EXPECT_NE(help.find("\nNode:"), std::string::npos);
}

TEST(CommandLine, HelpAndVersionAreNoErrors) {
  const Parsed help = parse({"--help"});
  EXPECT_FALSE(help.options);
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.text, HasSubstr("3  amemctl cannot reach the broker"));
  EXPECT_THAT(parse({"run", "--help"}).text, HasSubstr("--trace FILE"));
  const Parsed version = parse({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.text, testing::EndsWith("\n"));
}

}  // namespace
}  // namespace amem::ctl
