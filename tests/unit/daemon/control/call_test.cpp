#include "daemon/control/call.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <list>
#include <string>
#include <thread>

#include "amem/v1/broker.grpc.pb.h"

namespace amem {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uid_t kAlice = 65531;
constexpr std::uint64_t kMost = 256;  // calls of hers

/// Lease waits until the test ends it, Watch streams what the test pushes, and ListAllocations has
/// so many messages.
class Service final : public v1::Broker::CallbackService {
 public:
  Service(EventLoop& loop, const Caller& alice)
      : calls(loop, [alice](const auto*) { return alice; }) {}

  grpc::ServerUnaryReactor* Lease(grpc::CallbackServerContext* context, const v1::LeaseRequest*,
                                  v1::LeaseResponse* response) override {
    AnswerCall* const call = calls.begin<AnswerCall>(
        context, [this, response](const std::shared_ptr<AnswerCall>& begun) {
          waiting.emplace_back(begun, response);
          begun->on_gone([this] { ++forgotten; });
        });
    last = call;
    return call;
  }
  grpc::ServerWriteReactor<v1::Event>* Watch(grpc::CallbackServerContext* context,
                                             const v1::WatchRequest*) override {
    return calls.begin<Stream<v1::Event>>(context, [this](const auto& call) {
      call->accept();
      call->on_gone([this] { ++forgotten; });
      watch = call;
    });
  }
  grpc::ServerWriteReactor<v1::AllocationInfo>* ListAllocations(
      grpc::CallbackServerContext* context, const v1::ListAllocationsRequest*) override {
    using List = Stream<v1::AllocationInfo>;
    return calls.begin<List>(context, [this](const std::shared_ptr<List>& call) {
      call->feed([this, left = messages](List& to) mutable {
        ++parts;
        if (left == 0) return to.end({});
        for (int i = 0; i < 100 && left > 0; ++i, --left) {
          v1::AllocationInfo each;
          each.set_id(static_cast<std::uint64_t>(left));
          each.set_tag(std::string(1000, 'x'));
          to.push(each);
        }
      });
    });
  }

  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* context,
                                      const v1::SetPolicyRequest*,
                                      v1::SetPolicyResponse* response) override {
    return calls.on_loop(context, response, [this](const Caller&) {
      ++policies;
      return Status();
    });
  }

  const Calls calls;
  std::atomic<ControlCall*> last = nullptr;  // gRPC has it
  // The loop's thread.
  std::list<std::pair<std::shared_ptr<AnswerCall>, v1::LeaseResponse*>> waiting;
  std::shared_ptr<Stream<v1::Event>> watch;
  int policies = 0;
  int messages = 0;
  int parts = 0;
  int forgotten = 0;
};

/// A caller's end of one Lease.
struct Asked {
  explicit Asked(v1::Broker::Stub& stub, milliseconds limit = seconds(60)) {
    context.set_deadline(std::chrono::system_clock::now() + limit);
    stub.async()->Lease(&context, &request, &response,
                        [this](const grpc::Status& status) { end.set_value(status); });
  }
  grpc::Status status() { return end.get_future().get(); }

  grpc::ClientContext context;
  v1::LeaseRequest request;
  v1::LeaseResponse response;
  std::promise<grpc::Status> end;
};

class CallTest : public ::testing::Test {
 protected:
  /// gRPC can hang when the last that uses it goes and it ends its threads.
  static void SetUpTestSuite() {
    static const auto* const kept = new std::shared_ptr<grpc::Channel>(
        grpc::CreateChannel("unix-abstract:nobody", grpc::InsecureChannelCredentials()));
    static_cast<void>(kept);
  }
  void SetUp() override {
    ASSERT_TRUE(loop.open().ok());
    Quotas quotas;
    quotas.most[Resource::kCalls] = kMost;
    quotas.most[Resource::kQueuedBytes] = 1 << 20;
    accounts = std::make_unique<Accounts>(loop, quotas);
    Caller alice;
    alice.account = account = accounts->of({kAlice, {}});
    service = std::make_unique<Service>(loop, alice);
    const std::string address = "unix-abstract:amem-call-test-" + std::to_string(::getpid());
    server = grpc::ServerBuilder()
                 .AddListeningPort(address, grpc::InsecureServerCredentials())
                 .RegisterService(service.get())
                 .BuildAndStart();
    ASSERT_NE(server, nullptr);
    stub = v1::Broker::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    thread = std::thread([this] { loop.run(); });
  }
  void TearDown() override {
    end_server();
    EXPECT_EQ(used(Resource::kCalls), 0U);
    EXPECT_EQ(used(Resource::kQueuedBytes), 0U);
    loop.stop();
    thread.join();
  }

  void end_server() {
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
  }
  /// On the loop's thread.
  template <class Function>
  auto ask(Function function) {
    std::packaged_task<decltype(function())()> task(std::move(function));
    loop.post([&task] { task(); });
    return task.get_future().get();
  }
  std::uint64_t used(Resource resource) {
    return ask([&] { return account->used(resource); });
  }
  static void eventually(const std::function<bool()>& is, const char* what) {
    const Time late = Clock::now() + seconds(20);
    while (!is() && Clock::now() < late) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(is()) << what;
  }
  void await_waiting(std::size_t calls) {
    eventually([&] { return ask([&] { return service->waiting.size(); }) == calls; }, "they wait");
  }
  /// While this lives, the loop does nothing.
  struct Held {
    explicit Held(EventLoop& loop) {
      loop.post([free = go.get_future().share()] { free.wait(); });
    }
    ~Held() { go.set_value(); }
    std::promise<void> go;
  };

  EventLoop loop;
  std::unique_ptr<Accounts> accounts;
  std::shared_ptr<Account> account;
  std::unique_ptr<Service> service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<v1::Broker::Stub> stub;
  std::thread thread;
};

TEST_F(CallTest, IsChargedFromItsBeginToItsEnd) {
  std::list<Asked> asked;
  for (int i = 0; i < 1000; ++i) asked.emplace_back(*stub);
  const auto refused = [&] { return account->refusals(Resource::kCalls); };
  eventually([&] { return ask(refused) == 1000 - kMost; }, "all have come");
  EXPECT_EQ(used(Resource::kCalls), kMost);
  ask([&] {
    for (const auto& [call, response] : service->waiting) {
      response->set_waited_us(7);
      call->end({});
      call->end({Code::kInternal, "it has ended"});
    }
  });
  std::size_t served = 0;
  for (Asked& each : asked) {
    const grpc::Status status = each.status();
    if (status.ok()) {
      ++served;
      EXPECT_EQ(each.response.waited_us(), 7U);
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
      EXPECT_NE(status.error_message().find("quotas.calls"), std::string::npos);
    }
  }
  EXPECT_EQ(served, kMost);
  eventually([&] { return used(Resource::kCalls) == 0; }, "given back");
  EXPECT_EQ(service->forgotten, 0);
}

TEST_F(CallTest, WhatWaitsGoesWithItsCaller) {
  Asked hangs_up(*stub);
  await_waiting(1);
  hangs_up.context.TryCancel();
  EXPECT_EQ(hangs_up.status().error_code(), grpc::StatusCode::CANCELLED);
  Asked late(*stub, milliseconds(100));
  EXPECT_EQ(late.status().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  eventually([&] { return used(Resource::kCalls) == 0; }, "given back");
  ask([&] {
    EXPECT_EQ(static_cast<std::size_t>(service->forgotten), service->waiting.size());
    for (const auto& [call, response] : service->waiting) {
      EXPECT_TRUE(call->ended());
      call->give(*response, [](const Caller&) {
        ADD_FAILURE() << "gRPC has taken the response back";
        return Status();
      });
      bool at_once = false;
      call->on_gone([&] { at_once = true; });
      EXPECT_TRUE(at_once);
    }
  });
}

TEST_F(CallTest, ItsEndAndItsCallersAtTheSameMoment) {
  for (const bool end_first : {true, false}) {
    Asked asked(*stub);
    await_waiting(1);
    const auto end = [this] { loop.post([this] { service->waiting.front().first->end({}); }); };
    {
      const Held held(loop);
      if (end_first) end();
      asked.context.TryCancel();
      eventually([&] { return service->last.load()->gone(); }, "it hears of it");
      if (!end_first) end();
    }
    EXPECT_EQ(asked.status().error_code(), grpc::StatusCode::CANCELLED);
    eventually([&] { return used(Resource::kCalls) == 0; }, "given back");
    ask([&] {
      EXPECT_LE(std::exchange(service->forgotten, 0), end_first ? 0 : 1);
      service->waiting.clear();
    });
  }
}

TEST_F(CallTest, NothingBeginsForACallerWhoHasGone) {
  std::optional<Asked> asked;
  {
    const Held held(loop);
    asked.emplace(*stub);
    eventually([&] { return service->last.load() != nullptr; }, "it comes");
    asked->context.TryCancel();
    eventually([&] { return service->last.load()->gone(); }, "it hears of it");
  }
  EXPECT_EQ(asked->status().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(ask([&] { return service->waiting.size(); }), 0U);
}

TEST_F(CallTest, WhatIsRefusedHasDoneNothing) {
  std::list<grpc::ClientContext> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Event>>> watches;
  for (int i = 0; i < 4; ++i) watches.push_back(stub->Watch(&contexts.emplace_back(), {}));
  eventually([&] { return used(Resource::kQueuedBytes) == 1 << 20; }, "they have all there is");
  grpc::ClientContext context;
  v1::SetPolicyResponse response;
  EXPECT_EQ(stub->SetPolicy(&context, {}, &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(ask([&] { return service->policies; }), 0);
}

TEST_F(CallTest, AStreamWaitsForItsReader) {
  grpc::ClientContext context;
  const auto reader = stub->Watch(&context, {});
  eventually([&] { return ask([&] { return service->watch != nullptr; }); }, "it begins");
  const std::uint64_t pushed = ask([&] {
    v1::Event event;
    event.set_text(std::string(1000, 'x'));
    // As much as gRPC takes, and its backlog.
    for (std::uint64_t i = 0;; ++i) {
      event.set_time_ms(i);
      if (!service->watch->try_push(event)) return i;
    }
  });
  EXPECT_LE(pushed, Stream<v1::Event>::kBacklog / 1000);
  EXPECT_EQ(used(Resource::kQueuedBytes), Stream<v1::Event>::kBacklog);
  ask([&] {
    service->watch->end({Code::kUnavailable, "over"});
    service->watch->push({});  // no effect any more
  });
  v1::Event event;
  std::uint64_t read = 0;
  for (; reader->Read(&event); ++read) EXPECT_EQ(event.time_ms(), read);
  EXPECT_EQ(read, pushed);
  EXPECT_EQ(reader->Finish().error_message(), "over");
}

TEST_F(CallTest, AStreamThatNobodyReadsEndsWithItsCaller) {
  grpc::ClientContext context;
  const auto reader = stub->Watch(&context, {});
  eventually([&] { return ask([&] { return service->watch != nullptr; }); }, "it begins");
  // Far more than gRPC takes.
  ask([&] {
    for (int i = 0; i < 100; ++i) {
      v1::Event event;
      event.set_text(std::string(1 << 20, 'x'));
      service->watch->push(event);
    }
    service->watch->end({});
  });
  EXPECT_EQ(used(Resource::kCalls), 1U);
  context.TryCancel();
  eventually([&] { return used(Resource::kCalls) == 0; }, "given back");
}

TEST_F(CallTest, AListIsMadeAsFastAsItIsRead) {
  constexpr int kAll = 20000;
  ask([&] { service->messages = kAll; });
  grpc::ClientContext context;
  const auto reader = stub->ListAllocations(&context, {});
  v1::AllocationInfo each;
  ASSERT_TRUE(reader->Read(&each));
  EXPECT_LT(ask([&] { return service->parts; }), kAll / 100);
  std::uint64_t read = 1;
  for (; reader->Read(&each); ++read) ASSERT_EQ(each.id(), kAll - read);
  EXPECT_EQ(read, static_cast<std::uint64_t>(kAll));
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(ask([&] { return service->parts; }), kAll / 100 + 1);
}

TEST_F(CallTest, TheServerEndsWithCallsUnderWay) {
  Asked waits(*stub);
  await_waiting(1);
  grpc::ClientContext of_watch;
  const auto watch = stub->Watch(&of_watch, {});
  ask([&] { service->messages = 1 << 20; });
  grpc::ClientContext of_list;
  const auto list = stub->ListAllocations(&of_list, {});
  eventually([&] { return used(Resource::kCalls) == 3; }, "all are under way");
  end_server();
  EXPECT_FALSE(waits.status().ok());
  EXPECT_EQ(ask([&] { return service->forgotten; }), 2);
}

}  // namespace
}  // namespace amem
