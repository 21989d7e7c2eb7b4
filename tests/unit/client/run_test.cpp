// The environment that `amemctl run` gives its command.
#include "client/ctl/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "common/fd.h"
#include "tests/unit/fixtures/fake_broker.h"

namespace amem::ctl {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

class Run : public testing::Test {
 protected:
  Run() {
    std::filesystem::create_directories(dir / "bin");
    std::filesystem::create_directories(dir / "lib/amem");
    context.program_dir = dir / "bin";
    context.working_dir = "/srv";
    context.runtime_dir = dir / "run";
    options.command = Command::kRun;
    options.group = "train";
    options.program = {"true"};
  }

  std::string touch(const std::string& name) {
    std::ofstream(dir / name).put('\n');
    return dir / name;
  }

  /// A session socket in the runtime directory, as amemd makes it.
  void make_session_socket() {
    std::filesystem::create_directories(context.runtime_dir);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (context.runtime_dir + "/session.sock").copy(address.sun_path, sizeof address.sun_path - 1);
    socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
  }

  test::TempDir dir;
  CommandLine options;
  RunContext context;

 private:
  Fd socket_;
};

TEST_F(Run, SetsGroupDirectoryAndShimAndNothingElse) {
  const std::string shim = touch("lib/libamem_shim.so");
  make_session_socket();
  const auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok()) << plan.status().text();
  EXPECT_THAT(plan.value().environment,
              ElementsAre(Pair("AMEM_GROUP", "train"), Pair("AMEM_RUNTIME_DIR", dir / "run"),
                          Pair("LD_PRELOAD", shim), Pair("NCCL_CUMEM_ENABLE", "1")));
  EXPECT_THAT(plan.value().warnings, IsEmpty());
}

TEST_F(Run, Scope) {
  touch("lib/libamem_shim.so");
  make_session_socket();
  options.scope = "regions";
  const auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan.value().environment, Contains(Pair("AMEM_SCOPE", "regions")));
}

TEST_F(Run, SaysOnceWhatTheDefaultScopeLeavesOnTheGpu) {
  touch("lib/libamem_shim.so");
  make_session_socket();
  EXPECT_THAT(plan_run(options, context).value().notes,
              ElementsAre(testing::AllOf(HasSubstr("NCCL's memory alone"),
                                         HasSubstr("stay on the GPU. Use --scope heap"))));
  options.scope = "nccl";
  EXPECT_THAT(plan_run(options, context).value().notes, IsEmpty()) << "somebody has chosen it";
  options.scope.clear();
  context.environment["AMEM_SCOPE"] = "regions";
  EXPECT_THAT(plan_run(options, context).value().notes, IsEmpty());
  context.environment.erase("AMEM_SCOPE");
  context.environment["AMEM_DISABLE"] = "1";
  EXPECT_THAT(plan_run(options, context).value().notes, IsEmpty()) << "the warning says it all";
}

TEST_F(Run, RequiredAndTrace) {
  touch("lib/libamem_shim.so");
  make_session_socket();
  options.required = true;
  options.trace = "t.%p";
  const auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan.value().environment, Contains(Pair("AMEM_REQUIRED", "1")));
  EXPECT_THAT(plan.value().environment, Contains(Pair("AMEM_TRACE", "/srv/t.%p")));
}

TEST_F(Run, ShimGoesBeforeOtherPreloadsAndOnlyOnce) {
  const std::string shim = touch("lib/amem/libamem_shim.so");
  const std::string other_name = dir / "link.so";
  std::filesystem::create_symlink(shim, other_name);
  context.environment["LD_PRELOAD"] =
      "libx.so:" + shim + " /y.so:" + other_name + "::/elsewhere/libamem_shim.so /z.so";
  const auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan.value().environment,
              Contains(Pair("LD_PRELOAD", shim + ":libx.so:/y.so:/z.so")));
}

TEST_F(Run, NcclsChoiceIsKept) {
  touch("lib/libamem_shim.so");
  make_session_socket();
  for (const char* value : {"0", "1"}) {
    context.environment["NCCL_CUMEM_ENABLE"] = value;
    const auto plan = plan_run(options, context);
    ASSERT_TRUE(plan.ok());
    EXPECT_THAT(plan.value().environment,
                testing::Not(Contains(Pair("NCCL_CUMEM_ENABLE", testing::_))));
    EXPECT_THAT(plan.value().warnings, testing::IsEmpty());
  }
}

TEST_F(Run, NamedShimWins) {
  touch("lib/libamem_shim.so");
  const std::string named = touch("my_shim.so");
  context.environment["AMEM_SHIM"] = named;
  const auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan.value().environment, Contains(Pair("LD_PRELOAD", named)));
}

TEST_F(Run, MissingShimIsAnErrorThatNamesThePlaces) {
  auto plan = plan_run(options, context);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kNotFound);
  EXPECT_THAT(plan.status().text(), HasSubstr(dir / "lib/libamem_shim.so"));

  touch("lib/libamem_shim.so");
  context.environment["AMEM_SHIM"] = "/nowhere/shim.so";
  plan = plan_run(options, context);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.status().text(), HasSubstr("/nowhere/shim.so"));
}

TEST_F(Run, PathThatLdPreloadCannotHold) {
  std::filesystem::create_directories(dir / "a b");
  context.environment["AMEM_SHIM"] = touch("a b/shim.so");
  const auto plan = plan_run(options, context);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
}

TEST_F(Run, WithoutABrokerWarnsUnlessRequired) {
  touch("lib/libamem_shim.so");
  auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan.value().warnings, ElementsAre(HasSubstr(dir / "run/session.sock")));
  options.required = true;
  plan = plan_run(options, context);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kUnavailable);
}

TEST_F(Run, RuntimeDirIsMadeAbsolute) {
  touch("lib/libamem_shim.so");
  options.runtime_dir = "sub/../amem";
  const auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan.value().environment, Contains(Pair("AMEM_RUNTIME_DIR", "/srv/amem")));
}

TEST_F(Run, WarnsWhenTheShimIsSwitchedOff) {
  touch("lib/libamem_shim.so");
  make_session_socket();
  context.environment["AMEM_DISABLE"] = "1";
  const auto plan = plan_run(options, context);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(plan.value().warnings, ElementsAre(HasSubstr("AMEM_DISABLE")));
}

}  // namespace
}  // namespace amem::ctl
