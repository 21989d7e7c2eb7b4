// `amemctl doctor` as a whole, beside a broker in this process.
#include "addons/tools/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <optional>
#include <sstream>

#include "addons/tools/diagnosis/checks.h"
#include "client/ctl/exit_code.h"
#include "common/fd.h"
#include "common/protocol.h"
#include "tests/unit/fixtures/fake_broker.h"
#include "tests/unit/fixtures/some_elf.h"

namespace amem::ctl {
namespace {

using namespace std::chrono_literals;
using test::some_elf;
using test::write_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

class Doctor : public testing::Test {
 protected:
  Doctor() {
    std::filesystem::create_directories(dir / "bin");
    std::filesystem::create_directories(dir / "lib");
    write_file(dir / "lib/libamem_shim.so",
               some_elf({.interpreter = "", .exports = {"dlsym", "cuInit"}}));
    context.program_dir = dir / "bin";
    context.working_dir = "/";
    context.runtime_dir = dir.path();
    context.environment["PATH"] = "/usr/bin:/bin";
    broker.emplace(dir / "control.sock");
    broker->node.set_session_protocol(kProtocolVersion);

    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (dir / "session.sock").copy(address.sun_path, sizeof address.sun_path - 1);
    session.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(session.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    EXPECT_EQ(::listen(session.get(), 8), 0);
  }

  int run(const std::vector<std::string>& arguments) {
    const Parsed parsed = parse(arguments);
    if (!parsed.options) {
      ADD_FAILURE() << parsed.text;
      return -1;
    }
    out.str("");
    Console console{.out = out, .err = out, .out_style = {}, .err_style = {}};
    return diagnose(*parsed.options, context, console);
  }

  test::TempDir dir;
  RunContext context;
  std::optional<test::FakeBroker> broker;
  Fd session;
  std::ostringstream out;
};

TEST_F(Doctor, AsRunWouldStartIt) {
  EXPECT_EQ(run({"doctor", "--group", "train", "--scope", "heap", "--", "sh"}), kExitOk);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("would be brokered: group train, scope heap"),
                               HasSubstr(dir.path())));
  EXPECT_EQ(run({"doctor", "--group", "train", "--", "no-such-program"}), kExitFailed);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("problem: no-such-program is not in PATH"),
                               HasSubstr("no-such-program would not be brokered")));
  context.environment["NCCL_CUMEM_ENABLE"] = "0";
  EXPECT_EQ(run({"doctor", "--group", "train", "--", "sh"}), kExitOk);
  EXPECT_THAT(out.str(), HasSubstr("warning: NCCL_CUMEM_ENABLE is 0"));
}

TEST_F(Doctor, AsThisEnvironmentWouldStartIt) {
  EXPECT_EQ(run({"doctor", "--", "sh"}), kExitFailed);
  EXPECT_THAT(out.str(), HasSubstr("amemctl run --group NAME -- COMMAND"));
  context.environment["LD_PRELOAD"] = dir / "lib/libamem_shim.so";
  EXPECT_EQ(run({"doctor", "--", "sh"}), kExitOk) << out.str();
  EXPECT_THAT(out.str(), HasSubstr("group default, scope nccl"));
  EXPECT_EQ(run({"doctor", "--", "env", "AMEM_DISABLE=1", "sh"}), kExitFailed);
  EXPECT_THAT(out.str(), HasSubstr("AMEM_DISABLE is set"));
}

TEST_F(Doctor, ShimThatIsNotInstalled) {
  std::filesystem::remove(dir / "lib/libamem_shim.so");
  EXPECT_EQ(run({"doctor", "--group", "train", "--", "sh"}), kExitFailed);
  EXPECT_THAT(out.str(), AllOf(HasSubstr("libamem_shim.so is not at"),
                               testing::Not(HasSubstr("LD_PRELOAD does not name"))));
}

TEST_F(Doctor, Json) {
  EXPECT_EQ(run({"doctor", "--json", "--group", "train", "--", "/bin/sh"}), kExitOk);
  EXPECT_EQ(
      out.str(),
      R"({"program":"/bin/sh","brokered":true,"group":"train","scope":"nccl","runtime_dir":")" +
          dir.path() + R"(","findings":[]})" + "\n");
  EXPECT_EQ(run({"doctor", "--json", "--", "/bin/sh"}), kExitFailed);
  EXPECT_THAT(out.str(), AllOf(HasSubstr(R"("brokered":false)"),
                               HasSubstr(R"([{"check":"shim-missing","blocks":true,"what":")")));
}

TEST_F(Doctor, WhatOfACommandsMemoryStays) {
  const std::vector<std::string> command = {"doctor", "--group", "llama", "--scope",
                                            "heap",   "--",      "sh",    dir / "main.py"};
  context.environment["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync";
  EXPECT_EQ(run(command), kExitOk);
  EXPECT_THAT(out.str(), testing::Not(HasSubstr("cudaMallocAsync")));
  context.environment["GGML_CUDA_ENABLE_UNIFIED_MEMORY"] = "1";
  EXPECT_EQ(run(command), kExitFailed);
  EXPECT_THAT(out.str(), HasSubstr("problem: GGML_CUDA_ENABLE_UNIFIED_MEMORY=1: llama.cpp then "
                                   "allocates managed memory"));
}

TEST_F(Doctor, TheBroker) {
  EXPECT_THAT(check_broker_in(dir.path(), 5s), IsEmpty());
  broker->node.set_session_protocol(kProtocolVersion - 1);
  EXPECT_THAT(check_broker_in(dir.path(), 5s),
              ElementsAre(Field(&Finding::check, "broker-version")));
  broker->hang = true;
  EXPECT_THAT(check_broker_in(dir.path(), 50ms),
              ElementsAre(Field(&Finding::check, "broker-hangs")));
  broker.reset();
  EXPECT_THAT(check_broker_in(dir.path(), 5s), IsEmpty());  // ranks need its other socket only
  session.reset();
  auto findings = check_broker_in(dir.path(), 5s);
  ASSERT_THAT(findings, ElementsAre(Field(&Finding::check, "broker")));
  EXPECT_THAT(findings[0].remedy, HasSubstr("left the socket"));
  findings = check_broker_in("/" + std::string(200, 'x'), 5s);
  ASSERT_THAT(findings, ElementsAre(Field(&Finding::check, "broker")));
  EXPECT_THAT(findings[0].remedy, HasSubstr("characters"));
}

}  // namespace
}  // namespace amem::ctl
