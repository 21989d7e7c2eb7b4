// The checks of `amemctl doctor`: what each finds, and that it finds nothing where all is well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "addons/tools/diagnosis/checks.h"
#include "addons/tools/diagnosis/nccl_library.h"
#include "addons/tools/diagnosis/program.h"
#include "common/version.h"
#include "tests/unit/fixtures/fake_broker.h"
#include "tests/unit/fixtures/some_elf.h"

namespace amem::ctl {
namespace {

using test::some_elf;
using test::write_file;
using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

auto blocks(const char* check) {
  return AllOf(Field(&Finding::check, check), Field(&Finding::blocks, true));
}
auto warns(const char* check) {
  return AllOf(Field(&Finding::check, check), Field(&Finding::blocks, false));
}

class DiagnosisTest : public testing::Test {
 protected:
  std::string executable(const std::string& name, const std::string& bytes) {
    const std::string path = write_file(dir / name, bytes);
    EXPECT_EQ(::chmod(path.c_str(), 0755), 0);
    return path;
  }

  /// Of a program of these bytes, run by its owner.
  Findings check(const std::string& bytes) {
    const auto program = find_program({executable("program", bytes)}, {});
    EXPECT_TRUE(program.ok()) << program.status().text();
    return check_program(program.value(), ::geteuid(), ::getegid());
  }

  std::string shim() {
    return write_file(dir / "libamem_shim.so",
                      some_elf({.interpreter = "", .exports = {"dlsym", "cuInit"}}));
  }

  test::TempDir dir;
};

// ---- the program a command becomes ----

TEST_F(DiagnosisTest, ProgramByPathAndByPlace) {
  const std::string path = executable("tool", some_elf({}));
  const Environment environment = {{"PATH", "/nowhere:" + dir.path()}};
  EXPECT_EQ(find_program({path}, {}).value().path, path);
  EXPECT_EQ(find_program({"tool", "-x"}, environment).value().path, path);
  const Status status = find_program({"no-such-tool"}, environment).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.text(), HasSubstr(dir.path()));
  EXPECT_EQ(find_program({dir / "none"}, environment).status().code(), Code::kNotFound);
  EXPECT_EQ(find_program({""}, environment).status().code(), Code::kNotFound);
  write_file(dir / "data", some_elf({}));
  EXPECT_EQ(find_program({"data"}, environment).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(find_program({dir.path()}, environment).status().code(), Code::kPermissionDenied);
}

TEST_F(DiagnosisTest, ScriptsAreFollowedToTheirInterpreter) {
  const std::string python = executable("python3", some_elf({}));
  const std::string script = executable("script", "#! " + python + " -u\n");
  const Environment environment = {{"PATH", dir.path() + ":/usr/bin:/bin"}};
  auto program = find_program({script, "argument"}, environment);
  ASSERT_TRUE(program.ok()) << program.status().text();
  EXPECT_EQ(program.value().path, python);
  EXPECT_THAT(program.value().through, ElementsAre(script));

  program = find_program({executable("by-env", "#!/usr/bin/env python3\n")}, environment);
  ASSERT_TRUE(program.ok()) << program.status().text();
  EXPECT_EQ(program.value().path, python);
  program = find_program({executable("by-s", "#!/usr/bin/env -S A=b python3 -u\n")}, environment);
  ASSERT_TRUE(program.ok()) << program.status().text();
  EXPECT_EQ(program.value().path, python);
  EXPECT_EQ(value_in(program.value().environment, "A"), "b");

  program = find_program({executable("plain", "echo hello\n")}, environment);
  ASSERT_TRUE(program.ok()) << program.status().text();
  EXPECT_EQ(program.value().path, "/bin/sh");

  Status status = find_program({executable("lost", "#!/no/such/shell\n")}, environment).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.text(), AllOf(HasSubstr("/no/such/shell"), HasSubstr(dir / "lost")));
  EXPECT_FALSE(find_program({executable("nothing", "#! \n")}, environment).ok());
  status = find_program({executable("loop", "#!" + (dir / "loop") + "\n")}, environment).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
}

TEST_F(DiagnosisTest, EnvChangesWhatTheProgramGets) {
  const std::string tool = executable("tool", some_elf({}));
  const Environment environment = {{"PATH", "/usr/bin:/bin"}, {"A", "1"}, {"B", "2"}};
  const auto get = [&](std::vector<std::string> command) {
    auto program = find_program(std::move(command), environment);
    EXPECT_TRUE(program.ok()) << program.status().text();
    return program.ok() ? std::move(program).value() : CommandProgram{};
  };
  CommandProgram program = get({"env", "-u", "A", "B=3", tool, "C=4"});
  EXPECT_EQ(program.path, tool);
  EXPECT_EQ(value_in(program.environment, "A"), "");
  EXPECT_EQ(value_in(program.environment, "B"), "3");
  EXPECT_EQ(value_in(program.environment, "C"), "");
  EXPECT_THAT(get({"env", "-i", tool}).environment, IsEmpty());
  EXPECT_THAT(get({"env"}).path, HasSubstr("/env"));
  EXPECT_THAT(get({"env", "--chdir=/", tool}).path, HasSubstr("/env"));  // not known here
}

TEST_F(DiagnosisTest, ProgramsThatNothingIsPreloadedInto) {
  EXPECT_THAT(check(some_elf({})), IsEmpty());
  EXPECT_THAT(check(some_elf({.interpreter = ""})), ElementsAre(blocks("static")));
  EXPECT_THAT(check(some_elf({.interpreter = "/lib/ld-musl-x86_64.so.1"})),
              ElementsAre(blocks("musl")));
  EXPECT_THAT(check(some_elf({.needed = {"libc.musl-x86_64.so.1"}})), ElementsAre(blocks("musl")));
  EXPECT_THAT(check(some_elf({.machine = EM_AARCH64})), ElementsAre(blocks("architecture")));
}

TEST_F(DiagnosisTest, TheInterpreterOfAScriptIsWhatCounts) {
  const std::string script =
      executable("script", "#!" + executable("shell", some_elf({.interpreter = ""})) + "\n");
  const Findings findings = check_program(find_program({script}, {}).value(), 0, 0);
  ASSERT_THAT(findings, ElementsAre(blocks("static")));
  EXPECT_THAT(findings[0].what, AllOf(HasSubstr(dir / "shell"), HasSubstr(script)));
}

TEST_F(DiagnosisTest, ProgramsThatGainRights) {
  const std::string path = executable("program", some_elf({}));
  const auto program = find_program({path}, {}).value();
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  ASSERT_EQ(::chmod(path.c_str(), 04755), 0);
  EXPECT_THAT(check_program(program, user, group), IsEmpty());  // nothing gained
  EXPECT_THAT(check_program(program, user + 1, group), ElementsAre(blocks("setuid")));
  ASSERT_EQ(::chmod(path.c_str(), 02755), 0);
  EXPECT_THAT(check_program(program, user, group + 1), ElementsAre(blocks("setuid")));
}

TEST_F(DiagnosisTest, ProgramsWithCapabilities) {
  const std::string path = executable("program", some_elf({}));
  const auto program = find_program({path}, {}).value();
  // vfs_cap_data, revision 2: CAP_NET_RAW, effective.
  const std::array<std::uint32_t, 5> capability = {0x02000001, 1U << 13U, 0, 0, 0};
  if (::setxattr(path.c_str(), "security.capability", capability.data(), sizeof capability, 0) != 0)
    GTEST_SKIP() << "this user may give no file capabilities";
  EXPECT_THAT(check_program(program, 1000, 1000), ElementsAre(blocks("capabilities")));
  EXPECT_THAT(check_program(program, 0, 0), IsEmpty());
}

// ---- LD_PRELOAD ----

TEST_F(DiagnosisTest, TheShimIsPreloadedAndCanBe) {
  EXPECT_THAT(check_preload({{"LD_PRELOAD", shim()}}), IsEmpty());
  EXPECT_THAT(check_preload({{"LD_PRELOAD", shim() + ":/lib/libjemalloc.so"}}), IsEmpty());
  EXPECT_THAT(check_preload({}), ElementsAre(blocks("shim-missing")));
  EXPECT_THAT(check_preload({{"LD_PRELOAD", "/lib/libjemalloc.so"}}),
              ElementsAre(blocks("shim-missing")));
  EXPECT_THAT(check_preload({{"LD_PRELOAD", dir / "none/libamem_shim.so"}}),
              ElementsAre(blocks("shim-unreadable")));
  // By a name of its own.
  std::filesystem::rename(shim(), dir / "mine.so");
  EXPECT_THAT(check_preload({{"LD_PRELOAD", dir / "mine.so"}, {"AMEM_SHIM", dir / "mine.so"}}),
              IsEmpty());
}

TEST_F(DiagnosisTest, AShimThatTheLoaderDoesNotTake) {
  const std::string path = write_file(dir / "libamem_shim.so", some_elf({.machine = EM_AARCH64}));
  EXPECT_THAT(check_preload({{"LD_PRELOAD", path}}), ElementsAre(blocks("shim-architecture")));
  write_file(path, "not a library");
  EXPECT_THAT(check_preload({{"LD_PRELOAD", path}}), ElementsAre(blocks("shim-unreadable")));
  write_file(path, some_elf({.exports = {"other"}}));
  EXPECT_THAT(check_preload({{"LD_PRELOAD", path}}), ElementsAre(blocks("shim-unreadable")));
}

TEST_F(DiagnosisTest, WhatIsPreloadedBeforeTheShim) {
  const std::string plain = write_file(
      dir / "libtcmalloc.so", some_elf({.exports = {"malloc", "cudaMalloc", "curl", "cu"}}));
  EXPECT_THAT(check_preload({{"LD_PRELOAD", plain + ":" + shim()}}),
              ElementsAre(warns("shim-order")));
  for (const char* call : {"cuMemAlloc_v2", "dlsym"}) {
    const std::string other =
        write_file(dir / "libprofiler.so", some_elf({.exports = {"f", call}}));
    const Findings findings = check_preload({{"LD_PRELOAD", other + " " + plain + " " + shim()}});
    ASSERT_THAT(findings, ElementsAre(warns("interposer"), warns("shim-order")));
    EXPECT_THAT(findings[0].what, AllOf(HasSubstr(other), HasSubstr(call)));
  }
  EXPECT_THAT(check_preload({{"LD_PRELOAD", "libsearched_for.so:" + shim()}}),
              ElementsAre(warns("shim-order")));
}

// ---- variables, limits, NCCL ----

TEST(Diagnosis, Variables) {
  EXPECT_THAT(check_variables({{"AMEM_GROUP", "a"}, {"AMEM_SCOPE", "heap"}, {"AMEM_DISABLE", "0"}}),
              IsEmpty());
  EXPECT_THAT(check_variables({{"AMEM_DISABLE", "yes"}}), ElementsAre(blocks("disabled")));
  EXPECT_THAT(check_variables({{"AMEM_ENABLE", "0"}}), ElementsAre(blocks("disabled")));
  EXPECT_THAT(check_variables({{"AMEM_SCOPE", "all"}}), ElementsAre(blocks("scope")));
  EXPECT_THAT(check_variables({{"AMEM_GROUP", "a b"}}), ElementsAre(warns("group")));
  EXPECT_THAT(check_variables({{"AMEM_BYPASS_ALLOWED", "libmine"}}), ElementsAre(warns("bypass")));
  EXPECT_THAT(check_variables({{"AMEM_DEEPBIND", "clear"}}), ElementsAre(warns("retired")));
  EXPECT_THAT(check_variables({{"AMEM_SHIM_WITHOUT", "deepbind"}}), IsEmpty());
}

TEST(Diagnosis, NcclWithoutCuMem) {
  EXPECT_THAT(check_variables({{"NCCL_CUMEM_ENABLE", "0"}}), ElementsAre(warns("nccl-cumem")));
  EXPECT_THAT(check_variables({{"NCCL_CUMEM_ENABLE", "1"}}), IsEmpty());
}

TEST(Diagnosis, Allocators) {
  const std::pair<const char*, const char*> choices[] = {{"TF_FORCE_UNIFIED_MEMORY", "1"},
                                                         {"GGML_CUDA_ENABLE_UNIFIED_MEMORY", "1"}};
  for (const auto& [name, value] : choices) {
    const Findings findings = check_allocators({{name, value}, {"AMEM_SCOPE", "heap"}});
    ASSERT_THAT(findings, ElementsAre(blocks("allocator"))) << name;
    EXPECT_EQ(findings[0].what, std::string(name) + "=" + value);
    EXPECT_THAT(check_allocators({{name, value}, {"AMEM_SCOPE", "regions"}}), IsEmpty()) << name;
    EXPECT_THAT(check_allocators_of_jobs({{name, value}}), ElementsAre(warns("allocator")));
  }
  EXPECT_THAT(check_allocators_of_jobs({{"XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async"},
                                        {"PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"},
                                        {"TF_FORCE_UNIFIED_MEMORY", "0"}}),
              IsEmpty());
}

TEST(NodeDiagnosis, WhatOfTheRanksMemoryStays) {
  v1::ListRanksResponse ranks;
  for (const char* group : {"comfy", "small"}) {
    v1::RankInfo& rank = *ranks.add_ranks();
    rank.set_group(group);
    rank.set_rank(3);
    rank.set_pid(42);
    v1::UnbrokeredUsage& usage = *rank.add_unbrokered();
    usage.set_kind("pool");
    usage.set_uuid("GPU-01234567-89");
    usage.set_bytes(group == std::string("comfy") ? 5ULL << 30U : 63ULL << 20U);
  }
  const Findings findings = check_ranks(ranks);
  ASSERT_THAT(findings, ElementsAre(warns("stays")));
  EXPECT_EQ(findings[0].what,
            "group 'comfy': 5.00 GiB of the driver's stream-ordered pools stays on the GPU: rank 3 "
            "(pid 42) on GPU-01234567 5.00 GiB");
  EXPECT_THAT(findings[0].remedy, HasSubstr("--scope heap"));
}

TEST(Diagnosis, Limits) {
  EXPECT_THAT(check_limits(1024, RLIM_INFINITY), IsEmpty());
  EXPECT_THAT(check_limits(1023, RLIM_INFINITY), ElementsAre(warns("open-files")));
  EXPECT_THAT(check_limits(RLIM_INFINITY, 64U << 10U), ElementsAre(warns("locked-memory")));
}

TEST_F(DiagnosisTest, NcclsVersion) {
  const std::string old = write_file(dir / "libnccl.so.2",
                                     "\x7f rest NCCL version %d.%d NCCL "
                                     "version 2.17.1+cuda12.0 and more");
  EXPECT_EQ(nccl_version(old), (NcclVersion{2, 17}));
  EXPECT_THAT(check_nccl(old), ElementsAre(warns("nccl-version")));
  // Across the parts in which the file is read.
  const std::string recent = write_file(
      dir / "recent", std::string((1U << 20U) - 15, ' ') + "NCCL version 2.28.9+cuda13.0");
  EXPECT_EQ(nccl_version(recent), (NcclVersion{2, 28}));
  EXPECT_THAT(check_nccl(recent), IsEmpty());
  EXPECT_EQ(nccl_version(write_file(dir / "other", "NCCL version ")), std::nullopt);
  EXPECT_THAT(check_nccl(""), IsEmpty());
}

TEST_F(DiagnosisTest, NcclIsFoundWhereTheLoaderOrPythonFindsIt) {
  const std::string wheel = dir / "venv/lib/python3.12/site-packages/nvidia/nccl/lib";
  std::filesystem::create_directories(wheel);
  std::filesystem::create_directories(dir / "venv/bin");
  std::filesystem::create_directories(dir / "libs");
  write_file(wheel + "/libnccl.so.2", "");
  write_file(dir / "libs/libnccl.so.2", "");
  const std::string python = dir / "venv/bin/python3";
  EXPECT_EQ(find_nccl(python, "", {}), wheel + "/libnccl.so.2");
  EXPECT_EQ(find_nccl(python, "", {{"LD_LIBRARY_PATH", "/nowhere::" + (dir / "libs")}}),
            dir / "libs/libnccl.so.2");
  EXPECT_EQ(find_nccl(python, "/nowhere:$ORIGIN/../../libs", {}),
            dir / "venv/bin/../../libs/libnccl.so.2");
}

v1::NodeStatus healthy_node() {
  v1::NodeStatus status;
  status.set_version(std::string(kVersion));
  status.mutable_pool()->set_configured_bytes(100);
  status.mutable_pool()->set_ready_bytes(100);
  status.mutable_pool()->set_place("host_numa");
  status.add_devices()->set_uuid("GPU-1");
  return status;
}

DriverFacts with_gpu(const std::string& uuid) {
  DriverFacts facts;
  facts.version = 13000;
  facts.gpus.push_back({uuid, "NVIDIA H200", true, true, true, 90});
  return facts;
}

TEST(NodeDiagnosis, ANodeInOrder) {
  EXPECT_THAT(check_node(healthy_node(), with_gpu("GPU-1"), 1 << 20), IsEmpty());
  EXPECT_THAT(check_node(healthy_node(), {}, std::nullopt), IsEmpty())
      << "what cannot be known is no fault";
  EXPECT_THAT(check_driver(with_gpu("GPU-1"), {}), IsEmpty());
}

TEST(NodeDiagnosis, WhatAmemdSaysOfItself) {
  v1::NodeStatus status = healthy_node();
  status.set_version("0.0.1");
  status.mutable_devices(0)->set_trouble("cuMemCreate has not answered for 12 s");
  status.mutable_pool()->set_ready_bytes(0);
  status.mutable_pool()->set_error("out of memory");
  EXPECT_THAT(check_node(status, with_gpu("GPU-2"), 1024),
              ElementsAre(blocks("pool"), warns("version"), blocks("device-hangs"),
                          blocks("device-unknown"), warns("broker-files")));
  status.clear_devices();
  EXPECT_THAT(check_node(status, {}, std::nullopt), testing::Contains(blocks("no-devices")));
}

TEST(NodeDiagnosis, DriverCallsThatRanksShimsDoNotKnow) {
  v1::ListRanksResponse ranks;
  v1::RankInfo* rank = ranks.add_ranks();
  EXPECT_THAT(check_ranks(ranks), IsEmpty());
  v1::UnknownCall* call = rank->add_unknown_calls();
  call->set_name("cuTeleportAsync");
  call->set_fate("hidden");
  EXPECT_THAT(check_ranks(ranks), ElementsAre(warns("driver-calls")));
  EXPECT_THAT(check_ranks(ranks)[0].what, HasSubstr("cuTeleportAsync"));
  call->set_fate("linked");
  EXPECT_THAT(check_ranks(ranks), ElementsAre(blocks("driver-calls"))) << "pauses fail";
}

TEST(NodeDiagnosis, DriverCallsThatAreSignedOffAreNoFault) {
  v1::ListRanksResponse ranks;
  v1::RankInfo* rank = ranks.add_ranks();
  v1::UnknownCall* call = rank->add_unknown_calls();
  call->set_name("cuDeviceGetTeleportCount");
  call->set_fate("listed");
  EXPECT_THAT(check_ranks(ranks), IsEmpty());
  call = rank->add_unknown_calls();
  call->set_name("cuTeleportAsync");
  call->set_fate("hidden");
  EXPECT_THAT(check_ranks(ranks), ElementsAre(warns("driver-calls")));
  EXPECT_THAT(check_ranks(ranks)[0].what, testing::Not(HasSubstr("cuDeviceGetTeleportCount")));
}

TEST(NodeDiagnosis, MulticastMattersWhereAllGpusHaveIt) {
  DriverFacts facts = with_gpu("GPU-1");
  EXPECT_THAT(check_driver(facts, {{"AMEM_NVLS", "1"}}), IsEmpty()) << "there is only one";
  facts.gpus.push_back(facts.gpus.front());
  EXPECT_THAT(check_driver(facts, {{"AMEM_NVLS", "1"}}), ElementsAre(warns("multicast")));
  EXPECT_THAT(check_driver(facts, {}), IsEmpty());
}

// ---- the requirements: docs/getting-started.md ----
TEST(NodeDiagnosis, DriversThatAreTooOldOrUntested) {
  for (const auto& [version, finding] :
       {std::pair(11080, blocks("driver-version")), std::pair(12020, warns("driver-version"))}) {
    DriverFacts facts = with_gpu("GPU-1");
    facts.version = version;
    EXPECT_THAT(check_driver(facts, {}), ElementsAre(finding)) << version;
  }
  for (const int version : {0, 12040, 13050, 14000}) {
    DriverFacts facts = with_gpu("GPU-1");
    facts.version = version;
    EXPECT_THAT(check_driver(facts, {}), IsEmpty()) << version << ": what it has decides";
  }
}

TEST(NodeDiagnosis, GpusThatAmemHasNotRunOn) {
  DriverFacts facts = with_gpu("GPU-1");
  facts.gpus[0].generation = 100;
  EXPECT_THAT(check_driver(facts, {}), ElementsAre(warns("gpu-generation")));
  EXPECT_THAT(check_driver(facts, {})[0].what, HasSubstr("compute capability 10.0"));
  facts.gpus[0].generation = 0;
  EXPECT_THAT(check_driver(facts, {}), IsEmpty()) << "nobody knows";
  facts = with_gpu("GPU-1");
  facts.gpus[0].name = "NVIDIA H200 MIG 1g.18gb";
  EXPECT_THAT(check_driver(facts, {}), ElementsAre(warns("mig")));
}

TEST(HostDiagnosis, KernelAndMps) {
  for (const char* kernel : {"5.3.0", "6.1.0-18-amd64", "5.14.0-427.el9.x86_64", "6.8"})
    EXPECT_THAT(check_host({kernel, ""}), IsEmpty()) << kernel;
  for (const char* kernel : {"4.18.0-553.el8_10.x86_64", "5.2.21", "", "?"})
    EXPECT_THAT(check_host({kernel, ""}), ElementsAre(warns("kernel"))) << kernel;
  EXPECT_THAT(check_host({"6.1", "/tmp/nvidia-mps/control"}), ElementsAre(warns("mps")));
}

TEST_F(DiagnosisTest, MpsIsFoundWhereItsClientsLookForIt) {
  const Environment environment = {{"CUDA_MPS_PIPE_DIRECTORY", dir.path()}};
  const HostFacts none = look_at_host(environment);
  EXPECT_THAT(none.mps_pipe, IsEmpty());
  EXPECT_THAT(check_host(none), IsEmpty());
  write_file(dir / "control", "");
  EXPECT_EQ(look_at_host(environment).mps_pipe, dir / "control");
}

TEST_F(DiagnosisTest, APythonThatIsTooOldForThePackage) {
  const auto findings = [&](const std::string& name) {
    const auto program = find_program({dir / name}, {});
    EXPECT_TRUE(program.ok()) << program.status().text();
    return check_program(program.value(), ::geteuid(), ::getegid());
  };
  const std::string old = executable("python3.9", some_elf({}));
  EXPECT_THAT(findings("python3.9"), ElementsAre(warns("python")));
  std::filesystem::create_symlink(old, dir / "python");
  EXPECT_THAT(findings("python"), ElementsAre(warns("python")));
  for (const char* name : {"python3.10", "python3.14", "python3", "python3.", "pythonic"}) {
    executable(name, some_elf({}));
    EXPECT_THAT(findings(name), IsEmpty()) << name;
  }
}

}  // namespace
}  // namespace amem::ctl
