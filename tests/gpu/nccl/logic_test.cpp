// The parts of the GPU tests that need no GPU: a test that decides whether others pass must itself
// be tested.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/gpu/nccl/broker_view.h"
#include "tests/gpu/nccl/json.h"
#include "tests/gpu/nccl/pattern.h"

namespace gpu_test {
namespace {

double element(const Plan& plan, const std::vector<std::byte>& buffer, std::size_t i) {
  EXPECT_TRUE(plan.type == Type::kInt32 || plan.type == Type::kFloat32);
  if (plan.type == Type::kInt32) {
    int v = 0;
    std::memcpy(&v, &buffer[i * 4], 4);
    return v;
  }
  float f = 0;
  std::memcpy(&f, &buffer[i * 4], 4);
  return static_cast<double>(f);
}

// The collectives once more, written from NCCL's documentation, element by element.
std::vector<std::byte> reference(const Plan& p, int me,
                                 const std::vector<std::vector<std::byte>>& sent) {
  const std::size_t size = size_of(p.type);
  std::vector<std::byte> out(p.recv_count * size);
  const auto copy = [&](std::size_t to, int rank, std::size_t from, std::size_t n) {
    std::memcpy(&out[to * size], &sent[static_cast<std::size_t>(rank)][from * size], n * size);
  };
  const auto self = static_cast<std::size_t>(me);
  const std::size_t sum_from = p.op == Op::kReduceScatter ? self * p.chunk : 0;
  switch (p.op) {
    case Op::kAllReduce:
    case Op::kReduceScatter:
      for (std::size_t i = 0; i < p.recv_count; ++i) {
        double sum = 0;
        for (const auto& buffer : sent) sum += element(p, buffer, sum_from + i);
        const auto v = static_cast<int>(sum);
        const auto f = static_cast<float>(sum);
        std::memcpy(&out[i * 4], p.type == Type::kInt32 ? static_cast<const void*>(&v) : &f, 4);
      }
      break;
    case Op::kAllGather:
      for (int r = 0; r < p.ranks; ++r) copy(static_cast<std::size_t>(r) * p.chunk, r, 0, p.chunk);
      break;
    case Op::kAllToAll:
      for (int r = 0; r < p.ranks; ++r)
        copy(static_cast<std::size_t>(r) * p.chunk, r, self * p.chunk, p.chunk);
      break;
    case Op::kRing:
      copy(0, me == 0 ? p.ranks - 1 : me - 1, 0, p.recv_count);
      break;
    case Op::kBroadcast:
      copy(0, p.root, 0, p.recv_count);
      break;
  }
  return out;
}

std::vector<std::vector<std::byte>> inputs(const Plan& p) {
  std::vector<std::vector<std::byte>> sent;
  for (int r = 0; r < p.ranks; ++r) {
    sent.emplace_back(p.send_count * size_of(p.type));
    write_input(p, r, sent.back().data());
  }
  return sent;
}

class PatternTest : public testing::TestWithParam<int> {};

TEST_P(PatternTest, ExpectsWhatTheCollectiveDelivers) {
  const Op op = static_cast<Op>(GetParam());
  for (const int ranks : {1, 2, 3, 4})
    for (const std::size_t bytes : {4UL, 64UL, 4096UL, 100000UL})
      for (const Type type : {Type::kInt32, Type::kFloat32}) {
        const Plan p = plan(op, type, bytes, ranks, 77 + bytes);
        const auto sent = inputs(p);
        for (int me = 0; me < ranks; ++me)
          EXPECT_EQ(verify(p, me, reference(p, me, sent).data()), "")
              << name(op) << ' ' << name(type) << ' ' << bytes << " B, rank " << me;
      }
}

TEST_P(PatternTest, NoticesAnySingleWrongElement) {
  const Plan p = plan(static_cast<Op>(GetParam()), Type::kFloat32, 40000, 2, 5);
  const std::vector<std::byte> right = reference(p, 1, inputs(p));
  ASSERT_EQ(verify(p, 1, right.data()), "");
  for (const std::size_t i : {std::size_t{0}, p.recv_count / 2, p.recv_count - 1}) {
    auto wrong = right;
    wrong[i * 4 + 3] ^= std::byte{0x40};
    EXPECT_NE(verify(p, 1, wrong.data()).find("element " + std::to_string(i) + " of"),
              std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, PatternTest, testing::Range(0, kOps));

TEST(PatternTest, HalfTypesAreEncodedAsHardwareDoes) {
  // 0 to 8 in IEEE half precision and in bfloat16.
  constexpr std::uint16_t kHalf[] = {0x0000, 0x3c00, 0x4000, 0x4200, 0x4400,
                                     0x4500, 0x4600, 0x4700, 0x4800};
  constexpr std::uint16_t kBrain[] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080,
                                      0x40a0, 0x40c0, 0x40e0, 0x4100};
  for (const Type type : {Type::kBfloat16, Type::kFloat16}) {
    const Plan p = plan(Op::kAllReduce, type, 2 * kPeriod, 1, 3);
    std::vector<std::uint16_t> buffer(p.send_count);
    write_input(p, 0, reinterpret_cast<std::byte*>(buffer.data()));
    for (std::size_t i = 0; i < p.send_count; ++i) {
      const int v = value(0, i, 3);
      const auto& table = type == Type::kBfloat16 ? kBrain : kHalf;
      ASSERT_EQ(buffer[i], table[v < 0 ? -v : v] | (v < 0 ? 0x8000 : 0)) << v;
    }
  }
}

TEST(PatternTest, StaleAndForeignDataDiffer) {
  const Plan now = plan(Op::kRing, Type::kInt32, 4096, 2, 10);
  std::vector<std::byte> buffer(4096);
  write_input(now, 0, buffer.data());
  EXPECT_EQ(verify(now, 1, buffer.data()), "");
  EXPECT_NE(verify(now, 0, buffer.data()), "") << "its own data instead of the neighbour's";
  write_input(plan(Op::kRing, Type::kInt32, 4096, 2, 9), 0, buffer.data());
  EXPECT_NE(verify(now, 1, buffer.data()), "") << "the previous round's data";
}

TEST(JsonTest, ReadsStatus) {
  Json json;
  ASSERT_TRUE(Json::parse(
      R"( {"pid": 17, "rss_bytes": "11534336", "ok": true, "none": null, "groups":
      [{"name":"tra\"in\u0041", "state":"GROUP_STATE_PAUSED", "policies":[]}, {"name":"b","load":-1.5e1}]} )",
      &json));
  EXPECT_EQ(json["pid"].number(), 17U);
  EXPECT_EQ(json["rss_bytes"].number(), 11534336U);
  ASSERT_EQ(json["groups"].items().size(), 2U);
  EXPECT_EQ(json["groups"].items()[0]["name"].text(), "tra\"in?");
  EXPECT_TRUE(json["groups"].items()[1]["state"].is_null());
  EXPECT_EQ(json["absent"]["deeper"].number(), 0U);
}

TEST(BrokerViewTest, FindsTheGroupAndItsDevices) {
  const std::string status =
      R"({"version":"0.1.0","devices":[{"uuid":"GPU-a","brokered_bytes":30},)"
      R"({"uuid":"GPU-b","brokered_bytes":7}],"groups":[{"name":"other","allocated_bytes":1},)"
      R"({"name":"train","state":"GROUP_STATE_PAUSED","allocated_bytes":20,"resident_bytes":8,)"
      R"("devices":[{"uuid":"GPU-a","allocated_bytes":20,"resident_bytes":8}]}]})";
  const auto view = read_status(status, "train");
  ASSERT_TRUE(view.ok()) << view.status().text();
  EXPECT_EQ(view.value().state, "GROUP_STATE_PAUSED");
  EXPECT_EQ(view.value().allocated, 20U);
  EXPECT_EQ(view.value().resident, 8U);
  EXPECT_EQ(view.value().brokered.at("GPU-b"), 7U);
  EXPECT_EQ(view.value().group_resident.at("GPU-a"), 8U);
  EXPECT_EQ(read_status(status, "absent").status().code(), amem::Code::kNotFound);
  EXPECT_EQ(read_status("amemctl: no broker", "train").status().code(), amem::Code::kInternal);
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  Json json;
  for (const char* text :
       {"", "{", "[1,]", "{\"a\"}", "{\"a\":1,}", "\"open", "tru", "1 2", "nan-"})
    EXPECT_FALSE(Json::parse(text, &json)) << text;
  EXPECT_FALSE(Json::parse(std::string(100, '['), &json));
}

}  // namespace
}  // namespace gpu_test
