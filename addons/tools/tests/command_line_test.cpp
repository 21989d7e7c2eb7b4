// The add-on's part of amemctl's command line.
#include "client/ctl/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/ctl/exit_code.h"

namespace amem::ctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ToolsCommandLine, DoctorIsGivenACommandAsRunIs) {
  const CommandLine plain = *parse({"doctor", "--", "python", "--group"}).options;
  EXPECT_EQ(plain.command, Command::kAdded);
  EXPECT_TRUE(plain.added.alone);
  EXPECT_EQ(plain.group, "");
  EXPECT_THAT(plain.program, ElementsAre("python", "--group"));
  const CommandLine more =
      *parse({"doctor", "--group", "a", "--scope", "heap", "--runtime-dir", "/x", "--", "ls"})
           .options;
  EXPECT_EQ(more.group, "a");
  EXPECT_EQ(more.scope, "heap");
}

TEST(ToolsCommandLine, WrongUsageSaysWhy) {
  struct BadLine {
    std::vector<std::string> arguments;
    const char* text;
  };
  for (const auto& [arguments, text] :
       {BadLine{{"pause", "a", "--dry-run", "--explain"},
                "--dry-run cannot be used with --explain"},
        BadLine{{"resume", "a", "--dry-run"}, "--dry-run"},
        BadLine{{"pause", "a", "--dry-run", "--nodes", "x:1"}, "asks one broker"},
        BadLine{{"doctor", "--group", "a"}, "doctor: there is no command"},
        BadLine{{"doctor", "ls"}, "after \"--\""},
        BadLine{{"doctor", "--scope", "heap", "--", "ls"}, "require --group"},
        BadLine{{"doctor", "--runtime-dir", "/x", "--", "ls"}, "require --group"},
        BadLine{{"doctor", "--group", "a", "--socket", "/x", "--", "ls"}, "--runtime-dir"}}) {
    const Parsed parsed = parse(arguments);
    EXPECT_FALSE(parsed.options) << text;
    EXPECT_EQ(parsed.exit_code, kExitUsage);
    EXPECT_THAT(parsed.text, HasSubstr(text));
  }
}

}  // namespace
}  // namespace amem::ctl
