#include "common/job.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/protocol.h"

namespace amem {
namespace {

using Environment = std::map<std::string, std::string>;

std::string job(const Environment& environment,
                const JobPlace& place = {"trainer-7d9f", "pid:[4026531836]"}) {
  return job_of(
      [&](const char* name) {
        const auto it = environment.find(name);
        return it == environment.end() ? nullptr : it->second.c_str();
      },
      place);
}

TEST(Job, OfRanksThatAreStartedOneByOne) {
  EXPECT_EQ(job({}), "");
  EXPECT_EQ(job({{"RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}}), "");
  EXPECT_EQ(job({{"SLURM_JOB_ID", ""}}), "");
}

TEST(Job, OfALauncher) {
  EXPECT_EQ(job({{"SLURM_JOB_ID", "12"}, {"SLURM_PROCID", "3"}}), "slurm-12");
  EXPECT_EQ(job({{"TORCHELASTIC_RUN_ID", "run1"}, {"MASTER_PORT", "1"}}), "torchrun-run1");
  const Environment alone = {
      {"TORCHELASTIC_RUN_ID", "none"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(job(alone), "torchrun-localhost-29500");
}

TEST(Job, OfALauncherWithinAnotherOnesJob) {
  EXPECT_EQ(job({{"SLURM_JOB_ID", "12"}, {"TORCHELASTIC_RUN_ID", "b"}}), "slurm-12.torchrun-b");
}

TEST(Job, RayNumbersTheJobsOfEachCluster) {
  const Environment one = {{"RAY_JOB_ID", "01000000"}, {"RAY_RAYLET_PID", "77"}};
  const Environment other = {{"RAY_JOB_ID", "01000000"}, {"RAY_RAYLET_PID", "78"}};
  EXPECT_EQ(job(one).substr(0, 13), "ray-01000000-");
  EXPECT_NE(job(one), job(other));
  EXPECT_NE(job(one), job(one, {"trainer-7d9f", "pid:[1]"})) << "another container";
  // verl gives each kind of its workers another address.
  Environment with_address = one;
  with_address["MASTER_ADDR"] = "10.0.0.1";
  with_address["KUBERNETES_SERVICE_HOST"] = "10.0.0.9";
  EXPECT_EQ(job(one), job(with_address));
}

TEST(Job, OfPods) {
  const Environment pod = {{"KUBERNETES_SERVICE_HOST", "10.0.0.9"}};
  EXPECT_EQ(job(pod), "pod-trainer-7d9f");
  Environment several = pod;
  several["MASTER_ADDR"] = "rl-workers-0-0.rl";
  several["MASTER_PORT"] = "29500";
  EXPECT_EQ(job(several), "pods-rl-workers-0-0.rl-29500");
  EXPECT_EQ(job(several), job(several, {"trainer-b", "pid:[1]"})) << "another pod of it";
  several["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(job(several), "torchrun-rl-workers-0-0.rl-29500");
  Environment torchrun = pod;
  torchrun["TORCHELASTIC_RUN_ID"] = "none";
  torchrun["MASTER_ADDR"] = "localhost";
  torchrun["MASTER_PORT"] = "29500";
  EXPECT_NE(job(torchrun), job(torchrun, {"trainer-b", "pid:[1]"})) << "each pod has its localhost";
}

TEST(Job, ThatTheUserNames) {
  EXPECT_EQ(job({{"SLURM_JOB_ID", "12"}, {"AMEM_JOB", "mine"}}), "mine");
  EXPECT_EQ(job({{"SLURM_JOB_ID", "12"}, {"AMEM_JOB", ""}}), "") << "one job, whoever starts it";
  EXPECT_EQ(job({{"AMEM_JOB", "a:b"}}), "");
}

TEST(Job, IsAlwaysAValidName) {
  const std::string strange = job({{"TORCHELASTIC_RUN_ID", "a b/\xc3\xa9"}});
  EXPECT_TRUE(valid_group_name(strange)) << strange;
  EXPECT_NE(strange, job({{"TORCHELASTIC_RUN_ID", "a-b/\xc3\xa9"}}));
  const std::string longest = job({{"TORCHELASTIC_RUN_ID", std::string(200, 'x') + "1"}});
  EXPECT_TRUE(valid_group_name(longest)) << longest;
  EXPECT_NE(longest, job({{"TORCHELASTIC_RUN_ID", std::string(200, 'x') + "2"}}));
}

TEST(Job, WholeNames) {
  EXPECT_EQ(whole_group_name("train", ""), "train");
  EXPECT_EQ(whole_group_name("train", "slurm-1"), "train:slurm-1");
  EXPECT_EQ(name_of_group("train:slurm-1"), "train");
  EXPECT_EQ(job_of_group("train:slurm-1"), "slurm-1");
  EXPECT_EQ(name_of_group("train"), "train");
  EXPECT_EQ(job_of_group("train"), "");
}

}  // namespace
}  // namespace amem
