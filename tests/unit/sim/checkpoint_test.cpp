// The simulated driver: checkpoints of another process.
#include <cuda.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/sim/sim.h"
#include "tests/unit/fixtures/sim_child.h"
#include "tests/unit/fixtures/sim_memory.h"

namespace {

using namespace sim_test;
using namespace std::chrono_literals;

// ---- the process that others checkpoint

// Bytes that are at no two addresses the same way.
std::vector<unsigned> PatternOf(size_t bytes, unsigned seed) {
  std::vector<unsigned> pattern(bytes / sizeof(unsigned));
  for (size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = static_cast<unsigned>(i) * 2654435761U + seed;
  }
  return pattern;
}

struct Piece {
  CUdeviceptr at = 0;
  std::vector<unsigned> pattern{};

  size_t bytes() const { return pattern.size() * sizeof(unsigned); }
  bool Write() const { return cuMemcpyHtoD(at, pattern.data(), bytes()) == CUDA_SUCCESS; }
  bool Right() const {
    std::vector<unsigned> now(pattern.size());
    return cuMemcpyDtoH(now.data(), at, bytes()) == CUDA_SUCCESS && now == pattern;
  }
};

void SleepAndStore(void** params) {
  std::this_thread::sleep_for(100ms);
  *reinterpret_cast<int*>(*static_cast<CUdeviceptr*>(params[0])) = 42;
}

// Device memory of every kind, memory of the host, and a graph.
class Rank {
 public:
  Rank() {
    ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
    CUcontext context = nullptr;
    ROLE_CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    ROLE_CHECK(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CUdeviceptr p = 0;
    ROLE_CHECK(cuMemAlloc(&p, 3 * kMiB + 8) == CUDA_SUCCESS);
    Add(p, 3 * kMiB + 8);
    ROLE_CHECK(cuMemAllocAsync(&p, kMiB, nullptr) == CUDA_SUCCESS);
    ROLE_CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    Add(p, kMiB);
    ROLE_CHECK(cuMemAllocManaged(&p, kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    Add(p, kMiB);
    CUarray array = nullptr;
    const CUDA_ARRAY_DESCRIPTOR flat = {1024, 64, CU_AD_FORMAT_FLOAT, 4};
    ROLE_CHECK(cuArrayCreate(&array, &flat) == CUDA_SUCCESS);
    mapped_ = Reserve(3 * kUnit);
    for (const size_t offset : {size_t{0}, 2 * kUnit}) {
      const CUmemGenericAllocationHandle handle = Create();
      ROLE_CHECK(cuMemMap(mapped_ + offset, kUnit, 0, handle, 0) == CUDA_SUCCESS);
      ROLE_CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
      ROLE_CHECK(Grant(mapped_ + offset, kUnit) == CUDA_SUCCESS);
      Add(mapped_ + offset, kUnit);
    }
    ROLE_CHECK(Grant(mapped_ + 2 * kUnit, kUnit, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS);
    const int pool = memfd_create("pool", MFD_CLOEXEC);
    ROLE_CHECK(ftruncate(pool, kUnit) == 0);
    pool_ = mmap(nullptr, kUnit, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
    ROLE_CHECK(cuMemHostRegister(pool_, kUnit, 0) == CUDA_SUCCESS);
    Add(reinterpret_cast<CUdeviceptr>(pool_), kUnit);
    MakeGraph();
  }

  bool Right() {
    for (const Piece& piece : pieces_) ROLE_CHECK(piece.Right());
    // The bytes in between have nothing, and what may only be read may only be read.
    int word = 0;
    ROLE_CHECK(cuMemcpyDtoH(&word, mapped_ + kUnit, sizeof word) == CUDA_ERROR_INVALID_VALUE);
    ROLE_CHECK(cuMemcpyHtoD(mapped_ + 2 * kUnit, &word, sizeof word) == CUDA_ERROR_INVALID_VALUE);
    FILE* const zeros = fopen("/dev/zero", "re");
    ROLE_CHECK(read(fileno(zeros), Bytes(mapped_ + 2 * kUnit), 1) == -1 && errno == EFAULT);
    fclose(zeros);
    static unsigned char times = 0;
    ++times;
    ROLE_CHECK(cuMemsetD8(graph_from_, times, sizeof word) == CUDA_SUCCESS);
    ROLE_CHECK(cuGraphLaunch(graph_, nullptr) == CUDA_SUCCESS);
    ROLE_CHECK(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    ROLE_CHECK(cuMemcpyDtoH(&word, graph_to_, sizeof word) == CUDA_SUCCESS);
    return word == 0x01010101 * times;
  }

  // Work that is still under way when the call returns.
  static CUdeviceptr StartWork() {
    CUdeviceptr at = 0;
    ROLE_CHECK(cuMemAlloc(&at, sizeof(int)) == CUDA_SUCCESS);
    CUfunction function = nullptr;
    const size_t size = sizeof at;
    ROLE_CHECK(amemSimFunctionCreate(&function, SleepAndStore, 1, &size) == CUDA_SUCCESS);
    void* values[] = {&at};
    ROLE_CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, values, nullptr) ==
               CUDA_SUCCESS);
    return at;
  }

 private:
  void Add(CUdeviceptr at, size_t bytes) {
    pieces_.push_back({at, PatternOf(bytes, static_cast<unsigned>(pieces_.size()))});
    ROLE_CHECK(pieces_.back().Write());
  }

  void MakeGraph() {
    ROLE_CHECK(cuMemAlloc(&graph_from_, 4096) == CUDA_SUCCESS);
    ROLE_CHECK(cuMemAlloc(&graph_to_, 4096) == CUDA_SUCCESS);
    CUstream stream = nullptr;
    ROLE_CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    ROLE_CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    ROLE_CHECK(cuMemcpyDtoDAsync(graph_to_, graph_from_, 4096, stream) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ROLE_CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    ROLE_CHECK(cuGraphInstantiate(&graph_, graph, 0) == CUDA_SUCCESS);
  }

  std::vector<Piece> pieces_;
  CUdeviceptr mapped_ = 0;
  void* pool_ = nullptr;
  CUdeviceptr graph_from_ = 0;
  CUdeviceptr graph_to_ = 0;
  CUgraphExec graph_ = nullptr;
};

// Memory of the host that belongs to the first device that this process sees.
const RegisterRole kMaker("maker", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  CUmemAllocationProp prop = Prop();
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  CUmemGenericAllocationHandle handle = 0;
  ROLE_CHECK(cuMemCreate(&handle, kUnit, &prop, 0) == CUDA_SUCCESS);
  sim_test::SendByte(kChildSocket, 'h', Export(handle));
  sim_test::ReceiveByte(kChildSocket);
  return 0;
});

// Imports what it is sent and maps it at an address of its own.
CUdeviceptr MapImported(int fd, CUmemGenericAllocationHandle* handle) {
  ROLE_CHECK(Import(handle, fd) == CUDA_SUCCESS);
  close(fd);
  const CUdeviceptr base = Reserve(kUnit);
  ROLE_CHECK(cuMemMap(base, kUnit, 0, *handle, 0) == CUDA_SUCCESS);
  ROLE_CHECK(Grant(base, kUnit) == CUDA_SUCCESS);
  return base;
}

// What it is told by a byte, it does and answers with the same byte.
const RegisterRole kRank("rank", [] {
  Rank rank;
  sim_test::SendByte(kChildSocket, 'r');
  CUdeviceptr imported = 0;
  CUdeviceptr work = 0;
  CUmemGenericAllocationHandle handle = 0;
  for (;;) {
    int fd = -1;
    const char what = sim_test::ReceiveByte(kChildSocket, &fd);
    int value = 0;
    CUdeviceptr any = 0;
    switch (what) {
      case 'c':
        ROLE_CHECK(rank.Right());
        break;
      case 'w':
        work = Rank::StartWork();
        break;
      case 'd':
        ROLE_CHECK(cuMemcpyDtoH(&value, work, sizeof value) == CUDA_SUCCESS && value == 42);
        ROLE_CHECK(cuMemFree(work) == CUDA_SUCCESS);
        break;
      case 's':  // slow, by a fault
        ROLE_CHECK(cuMemAddressReserve(&any, kUnit, 0, 0, 0) == CUDA_SUCCESS);
        break;
      case 'm':
        imported = MapImported(fd, &handle);
        break;
      case 'i':
        ROLE_CHECK(Import(&handle, fd) == CUDA_SUCCESS);
        ROLE_CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
        close(fd);
        break;
      case 'n':  // the memory's device is not there
        ROLE_CHECK(Import(&handle, fd) == CUDA_ERROR_INVALID_DEVICE);
        close(fd);
        break;
      case 'u':
        ROLE_CHECK(cuMemUnmap(imported, kUnit) == CUDA_SUCCESS);
        ROLE_CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
        break;
      case 'o': {
        CUmulticastObjectProp prop = {};
        prop.numDevices = 2;
        prop.size = kUnit;
        ROLE_CHECK(cuMulticastCreate(&handle, &prop) == CUDA_SUCCESS);
        break;
      }
      case 'f':  // it is lost
        ROLE_CHECK(cuMemAddressReserve(&any, kUnit, 0, 0, 0) == CUDA_ERROR_UNKNOWN);
        ROLE_CHECK(cuCtxSynchronize() == CUDA_ERROR_UNKNOWN);
        break;
      default:
        return 0;
    }
    sim_test::SendByte(kChildSocket, what);
  }
});

class Target : public Child {
 public:
  explicit Target(const char* imported = "hang", Environment environment = {})
      : Child("rank", With(std::move(environment), imported)) {
    EXPECT_EQ(Receive(), 'r');
  }
  // Before it sees its socket's end: what a sanitizer does in exit() would keep memory a while.
  ~Target() {
    if (pid() > 0) Kill();
  }

  void Do(char what, int fd = -1) const {
    Send(what, fd);
    EXPECT_EQ(Receive(), what);
  }
  /// Whether it has answered within this time.
  bool Answers(std::chrono::milliseconds time) const {
    pollfd ready{socket(), POLLIN, 0};
    return poll(&ready, 1, static_cast<int>(time.count())) == 1;
  }

  CUresult Lock(unsigned timeout_ms = 0) const {
    CUcheckpointLockArgs args = {};
    args.timeoutMs = timeout_ms;
    return cuCheckpointProcessLock(pid(), &args);
  }
  CUresult Checkpoint() const { return cuCheckpointProcessCheckpoint(pid(), nullptr); }
  CUresult Restore() const { return cuCheckpointProcessRestore(pid(), nullptr); }
  CUresult Unlock() const { return cuCheckpointProcessUnlock(pid(), nullptr); }
  CUprocessState State() const {
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    EXPECT_EQ(cuCheckpointProcessGetState(pid(), &state), CUDA_SUCCESS);
    return state;
  }
  bool Becomes(CUprocessState state) const {
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (State() != state && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(2ms);
    }
    return State() == state;
  }

 private:
  static Environment With(Environment environment, const char* imported) {
    environment.emplace_back("AMEM_SIM_CHECKPOINT", imported);
    return environment;
  }
};

// ---- the program that asks

int Exit(CUresult result) { return static_cast<int>(result) & 0xff; }  // what of it is left

// Ends with the result of a call.
const RegisterRole kAsk("ask", [] {
  ROLE_CHECK(cuInit(0) == CUDA_SUCCESS);
  const std::string call = getenv("CALL");
  const int pid = std::stoi(getenv("TARGET"));
  if (getenv("OTHER_USER") != nullptr) {
    ROLE_CHECK(setuid(65534) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
  }
  sim_test::SendByte(kChildSocket, 'b');
  return Exit(call == "lock" ? cuCheckpointProcessLock(pid, nullptr)
                             : cuCheckpointProcessCheckpoint(pid, nullptr));
});

Child::Environment Asking(const char* call, pid_t pid, Child::Environment more = {}) {
  more.emplace_back("CALL", call);
  more.emplace_back("TARGET", std::to_string(pid));
  return more;
}

class SimCheckpoint : public SimDriver {
 protected:
  static int ExportedHostMemory(CUmemGenericAllocationHandle* handle) {
    CUmemAllocationProp prop = Prop();
    prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
    EXPECT_EQ(cuMemCreate(handle, kUnit, &prop, 0), CUDA_SUCCESS);
    return Export(*handle);
  }
  static int ExportedDeviceMemory(CUmemGenericAllocationHandle* handle) {
    *handle = Create(kUnit, 1);
    return Export(*handle);
  }
  /// What the restore says after the target has mapped host memory of a maker, and unmapped it.
  static CUresult RestoreAfterMapping(const char* makers_devices, const char* targets_devices) {
    const Child maker("maker", {{"CUDA_VISIBLE_DEVICES", makers_devices}});
    int fd = -1;
    EXPECT_EQ(maker.Receive(&fd), 'h');
    const Target target("hang", {{"CUDA_VISIBLE_DEVICES", targets_devices}});
    target.Do('m', fd);
    target.Do('u');
    close(fd);
    EXPECT_EQ(target.Lock(), CUDA_SUCCESS);
    EXPECT_EQ(target.Checkpoint(), CUDA_SUCCESS);
    const CUresult result = target.Restore();
    EXPECT_EQ(target.State(),
              result == CUDA_SUCCESS ? CU_PROCESS_STATE_LOCKED : CU_PROCESS_STATE_FAILED);
    return result;
  }
};

TEST_F(SimCheckpoint, NothingStaysOnTheDeviceAndEverythingComesBack) {
  const Target target;
  CUmemGenericAllocationHandle handle = 0;
  const int fd = ExportedHostMemory(&handle);
  target.Do('m', fd);
  target.Do('u');
  close(fd);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  const size_t used = Used();
  EXPECT_GT(used, kContext + 2 * kUnit);
  for (int i = 0; i < 3; ++i) {
    target.Do('w');
    ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
    EXPECT_EQ(target.State(), CU_PROCESS_STATE_LOCKED);
    ASSERT_EQ(target.Checkpoint(), CUDA_SUCCESS);
    EXPECT_EQ(target.State(), CU_PROCESS_STATE_CHECKPOINTED);
    EXPECT_EQ(Used(), 0U);
    ASSERT_EQ(target.Restore(), CUDA_SUCCESS);
    EXPECT_EQ(target.State(), CU_PROCESS_STATE_LOCKED);
    ASSERT_EQ(target.Unlock(), CUDA_SUCCESS);
    EXPECT_EQ(target.State(), CU_PROCESS_STATE_RUNNING);
    target.Do('d');
    EXPECT_EQ(Used(), used);
    target.Do('c');
  }
}

TEST_F(SimCheckpoint, CallsWaitUntilTheProcessIsUnlocked) {
  const Target target;
  ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
  target.Send('c');
  EXPECT_FALSE(target.Answers(100ms));
  ASSERT_EQ(target.Checkpoint(), CUDA_SUCCESS);
  EXPECT_FALSE(target.Answers(50ms));
  ASSERT_EQ(target.Restore(), CUDA_SUCCESS);
  EXPECT_FALSE(target.Answers(50ms));
  ASSERT_EQ(target.Unlock(), CUDA_SUCCESS);
  EXPECT_EQ(target.Receive(), 'c');
}

TEST_F(SimCheckpoint, ALockWaitsForCallsThatHaveBegun) {
  const Target target("hang", {{"AMEM_SIM_FAULTS", "cuMemAddressReserve:2+:delay=300"}});
  target.Send('s');
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(target.Lock(50), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(target.State(), CU_PROCESS_STATE_RUNNING);
  EXPECT_FALSE(target.Answers(0ms));
  EXPECT_EQ(target.Lock(10000), CUDA_SUCCESS);
  EXPECT_EQ(target.Receive(), 's');
  EXPECT_EQ(target.Unlock(), CUDA_SUCCESS);
  target.Do('c');
}

TEST_F(SimCheckpoint, StepsInTheWrongStateAreRefused) {
  const Target target;
  EXPECT_EQ(target.Checkpoint(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(target.Restore(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(target.Unlock(), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
  EXPECT_EQ(target.Lock(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(target.Restore(), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(target.Checkpoint(), CUDA_SUCCESS);
  EXPECT_EQ(target.Lock(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(target.Checkpoint(), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_EQ(target.Unlock(), CUDA_ERROR_ILLEGAL_STATE);
  ASSERT_EQ(target.Restore(), CUDA_SUCCESS);
  ASSERT_EQ(target.Unlock(), CUDA_SUCCESS);
  target.Do('c');
}

TEST_F(SimCheckpoint, ArgumentsAreChecked) {
  const Target target;
  CUcheckpointLockArgs lock = {};
  lock.reserved0 = 1;
  EXPECT_EQ(cuCheckpointProcessLock(target.pid(), &lock), CUDA_ERROR_INVALID_VALUE);
  CUcheckpointCheckpointArgs checkpoint = {};
  checkpoint.reserved[7] = 1;
  EXPECT_EQ(cuCheckpointProcessCheckpoint(target.pid(), &checkpoint), CUDA_ERROR_INVALID_VALUE);
  CUcheckpointRestoreArgs restore = {};
  restore.gpuPairsCount = 1;
  EXPECT_EQ(cuCheckpointProcessRestore(target.pid(), &restore), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuCheckpointProcessGetState(target.pid(), nullptr), CUDA_ERROR_INVALID_VALUE);
  int thread = 0;
  EXPECT_EQ(cuCheckpointProcessGetRestoreThreadId(target.pid(), &thread), CUDA_SUCCESS);
  EXPECT_TRUE(std::filesystem::exists("/proc/" + std::to_string(target.pid()) + "/task/" +
                                      std::to_string(thread)));
}

TEST_F(SimCheckpoint, OnlyTheUsersOwnProcessesThatListenCanBeAsked) {
  CUprocessState state{};
  EXPECT_EQ(cuCheckpointProcessGetState(-1, &state), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCheckpointProcessGetState(getpid(), &state), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuCheckpointProcessLock(getpid(), nullptr), CUDA_ERROR_NOT_SUPPORTED);
  Target target;
  const pid_t pid = target.pid();
  if (geteuid() == 0) {
    const std::filesystem::path dir = getenv("AMEM_SIM_DIR");
    std::filesystem::permissions(dir, std::filesystem::perms(0755));
    EXPECT_EQ(RunRole("ask", Asking("lock", pid, {{"OTHER_USER", "1"}})),
              Exit(CUDA_ERROR_NOT_PERMITTED));
    std::filesystem::permissions(dir, std::filesystem::perms(0700));
  }
  EXPECT_EQ(target.State(), CU_PROCESS_STATE_RUNNING);
  kill(pid, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(cuCheckpointProcessGetState(pid, &state), CUDA_ERROR_INVALID_VALUE) << "not yet reaped";
  target.Wait();
  EXPECT_EQ(cuCheckpointProcessGetState(pid, &state), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(SimCheckpoint, ACheckpointWithImportedMemoryHangs) {
  for (const auto& make : {ExportedHostMemory, ExportedDeviceMemory}) {
    CUmemGenericAllocationHandle handle = 0;
    const int fd = make(&handle);
    {
      const Target target;
      target.Do('m', fd);
      ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
      Child asking("ask", Asking("checkpoint", target.pid()));
      EXPECT_EQ(asking.Receive(), 'b');
      pollfd ended{asking.socket(), POLLIN, 0};
      EXPECT_EQ(poll(&ended, 1, 200), 0);
      asking.Kill();
      EXPECT_EQ(target.State(), CU_PROCESS_STATE_LOCKED);
    }
    close(fd);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }
}

TEST_F(SimCheckpoint, OrTheProcessIsLostWithTheRestore) {
  for (const auto& make : {ExportedHostMemory, ExportedDeviceMemory}) {
    CUmemGenericAllocationHandle handle = 0;
    const int fd = make(&handle);
    {
      const Target target("lose");
      target.Do('c');
      target.Do('m', fd);
      ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
      target.Send('f');
      EXPECT_EQ(target.Checkpoint(), CUDA_SUCCESS);
      EXPECT_EQ(Used(), 0U);
      EXPECT_FALSE(target.Answers(50ms));
      EXPECT_EQ(target.Restore(), CUDA_ERROR_NOT_SUPPORTED);
      EXPECT_EQ(target.Unlock(), CUDA_ERROR_ILLEGAL_STATE);
      EXPECT_EQ(target.State(), CU_PROCESS_STATE_FAILED);
      EXPECT_EQ(target.Receive(), 'f');
    }
    close(fd);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }
}

TEST_F(SimCheckpoint, AMulticastObjectIsAsImportedMemory) {
  const Target target("lose");
  target.Do('o');
  ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
  EXPECT_EQ(target.Checkpoint(), CUDA_SUCCESS);
  EXPECT_EQ(target.Restore(), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(SimCheckpoint, AProcessThatMappedAHiddenDevicesMemoryIsLostWithTheRestore) {
  EXPECT_EQ(RestoreAfterMapping("0,1", "1"), CUDA_ERROR_OPERATING_SYSTEM);
  EXPECT_EQ(RestoreAfterMapping("1,0", "0"), CUDA_ERROR_OPERATING_SYSTEM);
  // The memory belongs to the first device that its maker sees.
  EXPECT_EQ(RestoreAfterMapping("1,0", "1"), CUDA_SUCCESS);
  EXPECT_EQ(RestoreAfterMapping("0,1", "1,0"), CUDA_SUCCESS);
}

TEST_F(SimCheckpoint, TheMemoryOfADeviceBelongsToIt) {
  CUmemGenericAllocationHandle handle = 0;
  const int fd = ExportedDeviceMemory(&handle);
  for (const auto& [visible, result] :
       {std::pair{"0", CUDA_ERROR_OPERATING_SYSTEM}, std::pair{"1", CUDA_SUCCESS}}) {
    const Target target("hang", {{"CUDA_VISIBLE_DEVICES", visible}});
    target.Do('m', fd);
    target.Do('u');
    ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
    ASSERT_EQ(target.Checkpoint(), CUDA_SUCCESS);
    EXPECT_EQ(target.Restore(), result) << visible;
  }
  close(fd);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(SimCheckpoint, AnImportWithoutAMappingDoesNoHarm) {
  const Target target("hang", {{"CUDA_VISIBLE_DEVICES", "1"}});
  CUmemGenericAllocationHandle handle = 0;
  const int fd = ExportedHostMemory(&handle);
  target.Do('i', fd);
  ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
  ASSERT_EQ(target.Checkpoint(), CUDA_SUCCESS);
  EXPECT_EQ(target.Restore(), CUDA_SUCCESS);
  EXPECT_EQ(target.Unlock(), CUDA_SUCCESS);
  target.Do('c');
  close(fd);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(SimCheckpoint, WhereADeviceIsNotThereItsHostMemoryCannotBeImported) {
  const std::filesystem::path nodes = std::filesystem::path(getenv("AMEM_SIM_DIR")) / "dev";
  std::filesystem::create_directory(nodes);
  std::ofstream(nodes / "nvidia1").put('x');
  const Target target("hang", {{"CUDA_VISIBLE_DEVICES", "1"}, {"AMEM_SIM_DEV_DIR", nodes}});
  CUmemGenericAllocationHandle handle = 0;
  const int fd = ExportedHostMemory(&handle);
  target.Do('n', fd);
  close(fd);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(SimCheckpoint, ARestoreThatDoesNotFitCanBeTriedAgain) {
  const Target target;
  ASSERT_EQ(target.Lock(), CUDA_SUCCESS);
  ASSERT_EQ(target.Checkpoint(), CUDA_SUCCESS);
  const CUmemGenericAllocationHandle handle = Create(kCapacity - 2 * kUnit);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(target.Restore(), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(target.State(), CU_PROCESS_STATE_CHECKPOINTED);
    EXPECT_EQ(Used(), kCapacity - 2 * kUnit);
  }
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(target.Restore(), CUDA_SUCCESS);
  ASSERT_EQ(target.Unlock(), CUDA_SUCCESS);
  target.Do('c');
}

TEST_F(SimCheckpoint, WhatACallerBeganIsFinishedWithoutIt) {
  // The bytes of a checkpoint take their time on the link.
  const Target target("hang", {{"AMEM_SIM_FAULTS", "cuMemAddressReserve:2+:delay=300"},
                               {"AMEM_SIM_BANDWIDTH", "0.03"}});
  target.Send('s');
  std::this_thread::sleep_for(50ms);
  for (const auto& [call, before, after] :
       {std::tuple{"lock", CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED},
        std::tuple{"checkpoint", CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED}}) {
    Child asking("ask", Asking(call, target.pid()));
    EXPECT_EQ(asking.Receive(), 'b');
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(target.State(), before);
    asking.Kill();
    EXPECT_TRUE(target.Becomes(after));
  }
  EXPECT_EQ(target.Receive(), 's');
  EXPECT_EQ(Used(), 0U);
  ASSERT_EQ(target.Restore(), CUDA_SUCCESS);
  ASSERT_EQ(target.Unlock(), CUDA_SUCCESS);
  target.Do('c');
}

TEST_F(SimCheckpoint, FaultsActInTheCallingProcess) {
  const Target target;
  const auto ask = [&](const char* fault) {
    return RunRole("ask", Asking("lock", target.pid(), {{"AMEM_SIM_FAULTS", fault}}));
  };
  EXPECT_EQ(ask("cuCheckpointProcessLock:1:kill"), -SIGKILL);
  EXPECT_EQ(ask("cuCheckpointProcessLock:1:304"), Exit(CUDA_ERROR_OPERATING_SYSTEM));
  EXPECT_EQ(target.State(), CU_PROCESS_STATE_RUNNING);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(ask("cuCheckpointProcessLock:1:delay=100"), CUDA_SUCCESS);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 100ms);
  EXPECT_EQ(target.State(), CU_PROCESS_STATE_LOCKED);
  EXPECT_EQ(target.Unlock(), CUDA_SUCCESS);
}

TEST_F(SimCheckpoint, TwoProcessesAtOnce) {
  const Target one;
  const Target two;
  const auto cycle = [](const Target& target) {
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(target.Lock(), CUDA_SUCCESS);
      EXPECT_EQ(target.Checkpoint(), CUDA_SUCCESS);
      EXPECT_EQ(target.Restore(), CUDA_SUCCESS);
      EXPECT_EQ(target.Unlock(), CUDA_SUCCESS);
      target.Do('c');
    }
  };
  std::thread beside([&] { cycle(two); });
  cycle(one);
  beside.join();
}

TEST_F(SimCheckpoint, AWrongSettingEndsTheProcess) {
  EXPECT_EQ(RunRole("rank", {{"AMEM_SIM_CHECKPOINT", "yes"}}), -SIGABRT);
}

}  // namespace
