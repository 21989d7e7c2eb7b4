// JSON of the control API's messages.
#include "client/core/json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "amem/v1/broker.pb.h"

namespace amem::client {
namespace {

TEST(Json, EveryFieldIsPresentAndNumbersAreNumbers) {
  v1::AllocationInfo allocation;
  allocation.set_id(std::numeric_limits<std::uint64_t>::max());
  allocation.set_group("train");
  allocation.add_peers(2);
  allocation.add_peers(3);
  allocation.set_policy(v1::POLICY_DISCARD);
  allocation.set_resident(true);
  EXPECT_EQ(
      to_json(allocation),
      R"({"id":18446744073709551615,"group":"train","owner":0,"peers":[2,3],"device":"",)"
      R"("size":0,"tag":"","policy":"POLICY_DISCARD","resident":true,"pinned":false,"pinners":[],"guests":[]})");
}

TEST(Json, NestedMessages) {
  v1::Progress progress;
  progress.set_done(true);
  v1::PhaseTime* time = progress.add_times();
  time->set_phase("save");
  time->set_us(5);
  EXPECT_EQ(
      to_json(progress),
      R"({"group":"","phase":"","ranks_done":0,"ranks_total":0,"bytes":0,"elapsed_us":0,)"
      R"("done":true,"times":[{"phase":"save","us":5,"broker_us":0,"driver_us":0,"ranks":[]}],)"
      R"("pinned_bytes":0,"unbrokered_bytes":0,"swap_us":0,"dropped_bytes":0,"guests":[],"waits_for":"","transaction":0,"copied_bytes":0,"to_copy_bytes":0,"unknown_calls":0,"node":"","saves":[],"node_number":0,"remarks":[],)"
      R"("memory":{"handed_on_bytes":0,"made_bytes":0,"closed_bytes":0},"pool_pinned_bytes":0,"pool_pinned_us":0})");
}

TEST(Json, ProtobufReadsItBack) {
  v1::NodeStatus status;
  status.set_pid(-7);
  status.set_rss_bytes(1ULL << 60);
  status.mutable_pool()->set_error("quote \" backslash \\ newline \n bell \a ümlaut");
  status.add_groups()->set_state(v1::GROUP_STATE_PAUSED);
  v1::NodeStatus back;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(to_json(status), &back).ok());
  EXPECT_EQ(back.SerializeAsString(), status.SerializeAsString());
}

TEST(Json, EnumValueOfANewerBroker) {
  v1::Event event;
  event.set_state(static_cast<v1::GroupState>(77));
  EXPECT_NE(to_json(event).find("\"state\":77"), std::string::npos);
}

TEST(JsonText, EscapesAndRepairs) {
  EXPECT_EQ(text_of("a\"b\\c\n\t\x01"), R"("a\"b\\c\n\t\u0001")");
  EXPECT_EQ(text_of("\xe2\x82\xac"), "\"\xe2\x82\xac\"");
  EXPECT_EQ(text_of("a\xff"), "\"a\xef\xbf\xbd\"");
  EXPECT_EQ(text_of("\xed\xa0\x80").find('\xed'), std::string::npos) << "a surrogate";
}

// to_json's REQUIRES, for every message that the control API has or will have.
TEST(Json, BrokerProtoHasOnlyKindsOfFieldThatWeWrite) {
  using Field = google::protobuf::FieldDescriptor;
  const auto* file = v1::NodeStatus::descriptor()->file();
  for (int m = 0; m < file->message_type_count(); ++m) {
    const auto* message = file->message_type(m);
    for (int f = 0; f < message->field_count(); ++f) {
      const Field* field = message->field(f);
      EXPECT_NE(field->type(), Field::TYPE_BYTES) << field->full_name();
      EXPECT_NE(field->cpp_type(), Field::CPPTYPE_DOUBLE) << field->full_name();
      EXPECT_NE(field->cpp_type(), Field::CPPTYPE_FLOAT) << field->full_name();
      EXPECT_FALSE(field->is_map()) << field->full_name();
      EXPECT_EQ(field->containing_oneof(), nullptr) << field->full_name();
    }
  }
}

}  // namespace
}  // namespace amem::client
