#include "daemon/base/service_manager.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/unit/daemon/base/manager_socket.h"

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ServiceManagerTest, SaysWhatSystemdUnderstands) {
  ManagerSocket socket;
  const ServiceManager manager(socket.name(), seconds(60));
  ASSERT_TRUE(manager.there());
  manager.takes(seconds(2));
  manager.status("fills\nthe pool");
  manager.ready();
  manager.alive();
  manager.guard(false);
  manager.guard(true);
  manager.stopping(seconds(30));
  EXPECT_EQ(
      socket.messages(),
      (std::vector<std::string>{"EXTEND_TIMEOUT_USEC=2000000", "STATUS=fills the pool", "READY=1",
                                "WATCHDOG=1", "WATCHDOG_USEC=0", "WATCHDOG_USEC=60000000",
                                "STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000"}));
}

TEST(ServiceManagerTest, AReloadIsWithoutAWatchdog) {
  ManagerSocket socket;
  const ServiceManager manager(socket.name(), seconds(60));
  manager.reloading(seconds(300));
  const std::vector<std::string> all = socket.messages();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].rfind("RELOADING=1\nMONOTONIC_USEC=", 0), 0U) << all[0];
  EXPECT_EQ(all[1], "EXTEND_TIMEOUT_USEC=300000000");
  EXPECT_EQ(all[2], "WATCHDOG_USEC=0");
}

TEST(ServiceManagerTest, WithoutAWatchdogNothingIsSaidOfIt) {
  ManagerSocket socket;
  const ServiceManager manager(socket.name(), std::nullopt);
  manager.alive();
  manager.guard(true);
  EXPECT_TRUE(socket.messages().empty());
}

TEST(ServiceManagerTest, WithoutAManagerNothingHappens) {
  for (const char* name : {"/nowhere/notify", "no path", "@"}) {
    const ServiceManager manager(name, seconds(60));
    EXPECT_FALSE(manager.there()) << name;
    EXPECT_FALSE(manager.watchdog()) << name;
    manager.ready();
  }
}

TEST(ServiceManagerTest, WithoutASocketATimerWatchesIfItIsTold) {
  EXPECT_FALSE(ServiceManager("", std::nullopt).there());
  const auto ended = [](bool guards, bool lives) {
    const pid_t child = ::fork();
    if (child == 0) {
      const ServiceManager manager("", milliseconds(200));
      manager.guard(guards);
      for (int i = 0; i < 10; ++i) {
        std::this_thread::sleep_for(milliseconds(50));
        if (lives) manager.alive();
      }
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  };
  EXPECT_EQ(ended(true, true), 0);
  EXPECT_EQ(ended(true, false), SIGKILL);
  EXPECT_EQ(ended(false, false), 0);
  EXPECT_EQ(ended(false, true), 0) << "it watches only when it is told";
}

TEST(ServiceManagerTest, TheEnvironmentSaysWhereAndHowLong) {
  ManagerSocket socket;
  const auto watchdog = [&](const char* usec, const std::string& pid) {
    ::setenv("NOTIFY_SOCKET", socket.name().c_str(), 1);
    ::setenv("WATCHDOG_USEC", usec, 1);
    ::setenv("WATCHDOG_PID", pid.c_str(), 1);
    const ServiceManager manager;
    EXPECT_TRUE(manager.there());
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
    return manager.watchdog();
  };
  const std::string self = std::to_string(::getpid());
  EXPECT_EQ(watchdog("2000000", self), Duration(seconds(2)));
  EXPECT_EQ(watchdog("2000000", ""), Duration(seconds(2)));
  EXPECT_EQ(watchdog("2000000", "1"), std::nullopt);  // of another process
  EXPECT_EQ(watchdog("0", self), std::nullopt);
  EXPECT_EQ(watchdog("2s", self), std::nullopt);
  EXPECT_FALSE(ServiceManager().there());
}

}  // namespace
}  // namespace amem
