// fuzz_seeds FOLDER: writes the seeds of the targets whose inputs people cannot write by hand, from
// the packets of plain sessions, into FOLDER/TARGET.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "common/ticket.h"
#include "tests/fuzz/packets.h"

namespace amem::fuzz {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A script, rank by rank.
class Scene {
 public:
  Scene& connect(std::uint8_t rank, const char* group, bool other_user = false) {
    add(Kind::kConnect, static_cast<std::uint8_t>(rank + (other_user ? 4 : 0)));
    Message hello = amem_v1_SessionMessage_init_zero;
    hello.seq = 1;
    hello.which_body = amem_v1_SessionMessage_hello_tag;
    hello.body.hello.protocol = kProtocolMark;
    hello.body.hello.rank = rank;
    set_text(hello.body.hello.group, group);
    return packet(rank, hello);
  }
  Scene& show_devices(std::uint8_t rank) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_device_nodes_tag;
    return packet(rank, message);
  }
  Scene& create(std::uint8_t rank, std::uint64_t pages, const char* tag, std::size_t device = 0) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.seq = 2;
    message.which_body = amem_v1_SessionMessage_create_tag;
    message.body.create.size = 4096 * pages;
    kDeviceMarks[device].copy(reinterpret_cast<char*>(message.body.create.device), 16);
    set_text(message.body.create.tag, tag);
    return packet(rank, message);
  }
  Scene& redeem(std::uint8_t rank, std::uint8_t id) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.seq = 3;
    message.which_body = amem_v1_SessionMessage_redeem_tag;
    message.body.redeem.id = id;
    std::memset(message.body.redeem.token, id, sizeof message.body.redeem.token);
    return packet(rank, message);
  }
  Scene& free(std::uint8_t rank, std::uint64_t id) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.which_body = amem_v1_SessionMessage_free_tag;
    message.body.free.id = id;
    return packet(rank, message);
  }
  Scene& ask(std::uint8_t rank, amem_v1_GroupOp op) {
    Message message = amem_v1_SessionMessage_init_zero;
    message.seq = 4;
    message.which_body = amem_v1_SessionMessage_group_request_tag;
    message.body.group_request.op = op;
    return packet(rank, message);
  }
  Scene& packet(std::uint8_t rank, const Message& message) {
    return add(Kind::kPacket, rank, encode(message).value());
  }
  /// Who asks from here on: as Askers counts them.
  Scene& as(unsigned asker) {
    asker_ = asker;
    return *this;
  }
  Scene& pause(const char* group, const char* tag = nullptr) {
    v1::PauseRequest request;
    request.set_group(group);
    if (tag != nullptr) request.add_tags(tag);
    return request_of(0, request);
  }
  Scene& resume(const char* group) {
    v1::ResumeRequest request;
    request.set_group(group);
    return request_of(1, request);
  }
  Scene& swap(const char* out, const char* in) {
    v1::SwapRequest request;
    request.set_out(out);
    request.set_in(in);
    return request_of(2, request);
  }
  Scene& discard(const char* group, const char* tag) {
    v1::SetPolicyRequest request;
    request.set_group(group);
    request.set_tag(tag);
    request.set_policy(v1::POLICY_DISCARD);
    return request_of(3, request);
  }
  /// Ranks, allocations and events of the group, or, of "", of all.
  Scene& lists(const char* group) {
    for (unsigned what = 4; what < kControls; ++what) {
      v1::ListRanksRequest request;  // the others have the same one field
      request.set_group(group);
      request_of(what, request);
    }
    return *this;
  }
  /// `how`: as Player::answer takes it.
  Scene& answers(std::uint8_t how = 0) {
    return add(Kind::kAnswerAll, static_cast<std::uint8_t>(4 * how));
  }
  Scene& add(Kind kind, std::uint8_t more, std::string payload = {}) {
    steps_.push_back({kind, more, std::move(payload)});
    return *this;
  }
  /// Two groups of two ranks each, with memory of their own and of each other.
  Scene& two_groups() {
    connect(0, "train").connect(1, "train").connect(2, "rollout").connect(3, "rollout");
    create(0, 8, "nccl").create(1, 4, "heap", 1).create(2, 12, "nccl").create(3, 4, "kv", 1);
    return redeem(1, 1).redeem(0, 2).redeem(3, 3);
  }
  std::string bytes() const { return write_script(steps_); }

 private:
  template <class Request>
  Scene& request_of(unsigned what, const Request& request) {
    return add(Kind::kControl, static_cast<std::uint8_t>(what + kControls * asker_),
               request.SerializeAsString());
  }

  std::vector<Step> steps_;
  unsigned asker_ = 0;
};

void write_scenes(const fs::path& folder) {
  const auto session = [&](const char* name, const Scene& scene) {
    write(folder / "session" / name, scene.bytes());
  };
  session("join", Scene().connect(0, "train").connect(1, "train"));
  session("two-users", Scene()
                           .connect(0, "train")
                           .connect(1, "train", true)
                           .connect(1, "own", true)
                           .create(0, 4, "nccl")
                           .redeem(1, 1)
                           .pause("train")
                           .answers());
  session("shows-devices", Scene().connect(0, "train").show_devices(0).create(0, 4, "nccl"));
  session("one-name", Scene()
                          .connect(0, "train")
                          .connect(1, "train", true)
                          .create(0, 8, "nccl")
                          .create(1, 8, "nccl")
                          .pause("train@1001")
                          .answers()
                          .resume("train@1001")
                          .answers());
  // Two groups of one name, and each of those who ask means one of them, or none.
  Scene two_of_one_name;
  two_of_one_name.connect(0, "train").connect(1, "train", true);
  two_of_one_name.create(0, 8, "nccl").create(1, 8, "nccl");
  for (unsigned asker = 0; asker < 6; ++asker)
    two_of_one_name.as(asker)
        .lists("train")
        .lists("train@1002")
        .pause("train")
        .answers()
        .pause("train@1002")
        .answers()
        .resume("train@1002")
        .answers();
  session("one-name-all-ask", two_of_one_name);
  session("memory", Scene().two_groups().free(0, 1).free(1, 1).free(1, 2));
  session("full", Scene()
                      .connect(0, "train")
                      .create(0, 60, "nccl")
                      .create(0, 40, "heap")
                      .add(Kind::kPass, 2)
                      .create(0, 4, "heap")
                      .free(0, 1)
                      .add(Kind::kPass, 2));
  session("pause", Scene().two_groups().pause("train").answers().resume("train").answers());
  session(
      "pause-of-tag",
      Scene().two_groups().pause("rollout", "kv").answers().free(3, 4).resume("rollout").answers());
  session("sparse", Scene().two_groups().pause("train").answers(2).resume("train").answers());
  // More than the pool has space for: it is looked at for zeros first, and saved where it has some.
  for (std::uint8_t how = 0; how < 3; ++how)
    session(("small-pool-" + std::to_string(how)).c_str(), Scene()
                                                               .connect(0, "train")
                                                               .create(0, 56, "nccl")
                                                               .create(0, 8, "heap", 1)
                                                               .pause("train")
                                                               .answers(how)
                                                               .resume("train")
                                                               .answers());
  session("save-fails", Scene().two_groups().pause("train").answers(1).answers());
  session("load-fails", Scene()
                            .two_groups()
                            .pause("train")
                            .answers()
                            .resume("train")
                            .answers(3)
                            .answers()
                            .resume("train")
                            .answers());
  session("swap",
          Scene().two_groups().pause("rollout").answers().swap("train", "rollout").answers());
  session("from-inside", Scene()
                             .two_groups()
                             .ask(0, amem_v1_GroupOp_GROUP_OP_PAUSE)
                             .ask(1, amem_v1_GroupOp_GROUP_OP_PAUSE)
                             .answers()
                             .ask(0, amem_v1_GroupOp_GROUP_OP_RESUME)
                             .ask(1, amem_v1_GroupOp_GROUP_OP_RESUME)
                             .answers());
  session("dies-paused", Scene()
                             .two_groups()
                             .pause("train")
                             .answers()
                             .add(Kind::kDie, 0)
                             .answers()
                             .resume("train")
                             .answers());
  session("lost", Scene()
                      .two_groups()
                      .add(Kind::kHangUp, 0)
                      .pause("train")
                      .answers()
                      .free(1, 1)
                      .free(1, 2)
                      .add(Kind::kDie, 0));
  session("late",
          Scene().two_groups().pause("train").add(Kind::kAnswer, 0).add(Kind::kPass, 6).answers());
  session("dies-in-save", Scene()
                              .two_groups()
                              .pause("train")
                              .add(Kind::kAnswer, 0)
                              .add(Kind::kAnswer, 1)
                              .add(Kind::kDie, 1)
                              .answers());

  const auto control = [&](const char* name, const Scene& scene) {
    write(folder / "control" / name, scene.bytes());
  };
  control("pause", Scene().pause("train").answers().resume("train").answers());
  control("swap", Scene()
                      .pause("rollout")
                      .answers()
                      .swap("train", "rollout")
                      .answers()
                      .swap("rollout", "train")
                      .answers());
  control("discard",
          Scene().discard("rollout", "kv").pause("rollout").answers().resume("rollout").answers());
  control(
      "tag",
      Scene().pause("train", "heap").answers().pause("train").answers().resume("train").answers());
  control("lists", Scene().lists("").pause("nobody").pause("train").answers());
  control("user", Scene()
                      .as(1)
                      .lists("train")
                      .pause("train")
                      .answers()
                      .discard("rollout", "nccl")
                      .swap("rollout", "train")
                      .answers()
                      .pause("other")
                      .swap("train", "other@1002"));
  Scene strangers;
  for (unsigned asker = 2; asker < 5; ++asker)
    strangers.as(asker).lists("").lists("train").pause("train").discard("train", "heap");
  control("strangers", strangers.answers());
  control("operators-group",
          Scene().as(5).lists("other").pause("other@1002").answers().resume("other").answers());
}

void write_tickets(const fs::path& folder) {
  const auto put = [&](const char* name, char choice, const auto& bytes) {
    write(folder / "ticket" / name, choice + std::string(bytes.begin(), bytes.end()));
  };
  const Ticket ticket{7, 4096, 65536, {1, 2, 3, 4}, 1, 2};
  put("ticket", '\x0f', pack(ticket));
  put("not-sealed", '\x03', pack(ticket));
  put("ipc-handle", '\x0f', pack(IpcHandle{ticket, 1234}));
  put("strange", '\x80', std::string("amemtkt\n"));
}

}  // namespace
}  // namespace amem::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: fuzz_seeds FOLDER\n";
    return 2;
  }
  amem::fuzz::write_scenes(argv[1]);
  amem::fuzz::write_tickets(argv[1]);
  return 0;
}
