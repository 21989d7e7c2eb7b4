// The calls of amem.h for a controller: amem::client::ControlClient behind a C interface.
#include <amem/amem.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "client/core/code_name.h"
#include "client/core/control_client.h"
#include "client/core/endpoint.h"
#include "client/core/json.h"
#include "client/src/client.h"
#include "client/src/error_out.h"
#include "common/form.h"
#include "common/version.h"

namespace {

using amem::Code;
using amem::Status;
using amem::client::check_list;
using amem::client::check_tags;
using amem::client::ControlClient;
using amem::client::give;
using amem::client::guarded;
using amem::client::read_selection;
using amem::client::read_sized;
namespace v1 = amem::v1;

std::string text_or_empty(const char* text) { return text != nullptr ? text : ""; }

/// REQUIRES: check_list().
std::vector<std::string> names(const char* const* list, size_t count) {
  return list != nullptr ? std::vector<std::string>(list, list + count)
                         : std::vector<std::string>();
}

amem::client::Choice choice(const amem_selection& from) {
  return {names(from.tags, from.tag_count),
          names(from.except_tags, from.except_count),
          names(from.discard, from.discard_count),
          static_cast<v1::GuestPolicy>(from.guests),
          from.deep != 0,
          from.force != 0};
}

amem_selection of_tags(const char* const* tags, size_t count) {
  amem_selection selection{};
  selection.size = sizeof selection;
  selection.tags = tags;
  selection.tag_count = count;
  return selection;
}

/// Runs `body`, a function from a ControlClient to a Status, as the body of a C function.
template <class Body>
int with(amem_client* client, amem_error* error, Body body) {
  return guarded(error, [&]() -> Status {
    if (client == nullptr) return {Code::kInvalidArgument, "the client is NULL"};
    return body(client->broker);
  });
}

/// Asks with `query`, a function from a ControlClient to a Result of a message, and gives its JSON.
template <class Query>
int ask(amem_client* client, char** json, amem_error* error, Query query) {
  return with(client, error, [&](ControlClient& broker) -> Status {
    const auto answer = query(broker);
    if (!answer.ok()) return answer.status();
    return give(amem::client::to_json(answer.value()), json);
  });
}

amem::client::OnProgress wrap(amem_progress_callback callback, void* user) {
  if (callback == nullptr) return {};
  return [callback, user](const v1::Progress& progress) {
    const std::string json = amem::client::to_json(progress);
    const amem_progress view{.group = progress.group().c_str(),
                             .phase = progress.phase().c_str(),
                             .ranks_done = progress.ranks_done(),
                             .ranks_total = progress.ranks_total(),
                             .bytes = progress.bytes(),
                             .elapsed_us = progress.elapsed_us(),
                             .done = progress.done() ? 1 : 0,
                             .json = json.c_str()};
    return callback(&view, user) == 0;
  };
}

/// `operation`: ControlClient::pause or resume.
int operate(decltype(&ControlClient::pause) operation, amem_client* client,
            const char* const* groups, size_t count, const amem_selection* selection,
            uint32_t timeout_ms, amem_progress_callback callback, void* user, amem_error* error) {
  return with(client, error, [&](ControlClient& broker) -> Status {
    const auto what = read_selection(selection);
    if (!what.ok()) return what.status();
    if (Status status = check_list(groups, count, "groups"); !status.ok()) return status;
    return (broker.*operation)(names(groups, count), choice(what.value()), timeout_ms,
                               wrap(callback, user));
  });
}

}  // namespace

const char* amem_code_name(int code) { return amem::client::code_name(code); }

const char* amem_version(void) { return amem::kVersion; }

void amem_free(char* string) { std::free(string); }

int amem_open(const amem_options* options, amem_client** client, amem_error* error) {
  return guarded(error, [&]() -> Status {
    if (client == nullptr) return {Code::kInvalidArgument, "the output argument is NULL"};
    const auto read = read_sized(options, "amem_options");
    if (!read.ok()) return read.status();
    const amem_options& given = read.value();
    auto socket =
        amem::client::control_socket(text_or_empty(given.runtime_dir), text_or_empty(given.socket));
    if (!socket.ok()) return socket.status();
    const auto timeout = given.query_timeout_ms != 0
                             ? std::chrono::milliseconds(given.query_timeout_ms)
                             : amem::client::kDefaultQueryTimeout;
    *client = new amem_client{amem::client::ControlClient(std::move(socket).value(), timeout)};
    return {};
  });
}

void amem_close(amem_client* client) { delete client; }

void amem_cancel(amem_client* client) {
  if (client != nullptr) client->broker.cancel();
}

int amem_status(amem_client* client, char** json, amem_error* error) {
  return ask(client, json, error, [](auto& broker) { return broker.status(); });
}

int amem_groups(amem_client* client, char** json, amem_error* error) {
  return ask(client, json, error, [](auto& broker) { return broker.groups(); });
}

int amem_ranks(amem_client* client, const char* group, char** json, amem_error* error) {
  return ask(client, json, error, [&](auto& broker) { return broker.ranks(text_or_empty(group)); });
}

int amem_allocations(amem_client* client, const char* group, char** json, amem_error* error) {
  return with(client, error, [&](ControlClient& broker) -> Status {
    std::string list;
    Status status =
        broker.allocations(text_or_empty(group), [&](const v1::AllocationInfo& allocation) {
          if (!list.empty()) list += ',';
          list += amem::client::to_json(allocation);
          return true;
        });
    if (!status.ok()) return status;
    return give("{\"allocations\":[" + list + "]}", json);
  });
}

int amem_set_policy(amem_client* client, const char* group, const char* tag, amem_policy policy,
                    amem_error* error) {
  return with(client, error, [&](ControlClient& broker) -> Status {
    const bool force = policy == AMEM_POLICY_DISCARD_FORCED;
    return broker.set_policy(text_or_empty(group), text_or_empty(tag),
                             force ? v1::POLICY_DISCARD : static_cast<v1::Policy>(policy),
                             v1::FORM_UNSPECIFIED, force);
  });
}

int amem_set_save_form(amem_client* client, const char* group, const char* tag, amem_save_form form,
                       amem_error* error) {
  return with(client, error, [&](ControlClient& broker) -> Status {
    if (!amem::form_of(static_cast<std::uint32_t>(form)))
      return {Code::kInvalidArgument, "the form must be " + amem::names_of_forms()};
    return broker.set_policy(text_or_empty(group), text_or_empty(tag), v1::POLICY_UNSPECIFIED,
                             static_cast<v1::Form>(form));
  });
}

int amem_client_pause(amem_client* client, const char* group, uint32_t timeout_ms,
                      amem_progress_callback callback, void* user, amem_error* error) {
  return amem_client_pause_selected(client, group, nullptr, timeout_ms, callback, user, error);
}

int amem_client_pause_tags(amem_client* client, const char* group, const char* const* tags,
                           size_t count, uint32_t timeout_ms, amem_progress_callback callback,
                           void* user, amem_error* error) {
  const auto code = guarded(error, [&] { return check_tags(tags, count, "amem_client_pause"); });
  if (code != AMEM_OK) return code;
  const amem_selection selection = of_tags(tags, count);
  return amem_client_pause_selected(client, group, &selection, timeout_ms, callback, user, error);
}

int amem_client_pause_selected(amem_client* client, const char* group,
                               const amem_selection* selection, uint32_t timeout_ms,
                               amem_progress_callback callback, void* user, amem_error* error) {
  const char* const one = group != nullptr ? group : "";
  return amem_client_pause_groups(client, &one, 1, selection, timeout_ms, callback, user, error);
}

int amem_client_pause_groups(amem_client* client, const char* const* groups, size_t count,
                             const amem_selection* selection, uint32_t timeout_ms,
                             amem_progress_callback callback, void* user, amem_error* error) {
  return operate(&ControlClient::pause, client, groups, count, selection, timeout_ms, callback,
                 user, error);
}

int amem_client_resume(amem_client* client, const char* group, uint32_t timeout_ms,
                       amem_progress_callback callback, void* user, amem_error* error) {
  return amem_client_resume_selected(client, group, nullptr, timeout_ms, callback, user, error);
}

int amem_client_resume_tags(amem_client* client, const char* group, const char* const* tags,
                            size_t count, uint32_t timeout_ms, amem_progress_callback callback,
                            void* user, amem_error* error) {
  const auto code = guarded(error, [&] { return check_tags(tags, count, "amem_client_resume"); });
  if (code != AMEM_OK) return code;
  const amem_selection selection = of_tags(tags, count);
  return amem_client_resume_selected(client, group, &selection, timeout_ms, callback, user, error);
}

int amem_client_resume_selected(amem_client* client, const char* group,
                                const amem_selection* selection, uint32_t timeout_ms,
                                amem_progress_callback callback, void* user, amem_error* error) {
  const char* const one = group != nullptr ? group : "";
  return amem_client_resume_groups(client, &one, 1, selection, timeout_ms, callback, user, error);
}

int amem_client_resume_groups(amem_client* client, const char* const* groups, size_t count,
                              const amem_selection* selection, uint32_t timeout_ms,
                              amem_progress_callback callback, void* user, amem_error* error) {
  return operate(&ControlClient::resume, client, groups, count, selection, timeout_ms, callback,
                 user, error);
}

int amem_client_swap(amem_client* client, const char* out, const char* in, uint32_t timeout_ms,
                     amem_progress_callback callback, void* user, amem_error* error) {
  return amem_client_swap_discard(client, out, in, nullptr, 0, timeout_ms, callback, user, error);
}

int amem_client_swap_discard(amem_client* client, const char* out, const char* in,
                             const char* const* discard, size_t count, uint32_t timeout_ms,
                             amem_progress_callback callback, void* user, amem_error* error) {
  const char* const going = out != nullptr ? out : "";
  const char* const coming = in != nullptr ? in : "";
  return amem_client_swap_groups(client, &going, 1, &coming, 1, discard, count, timeout_ms,
                                 callback, user, error);
}

int amem_client_swap_groups(amem_client* client, const char* const* out, size_t out_count,
                            const char* const* in, size_t in_count, const char* const* discard,
                            size_t discard_count, uint32_t timeout_ms,
                            amem_progress_callback callback, void* user, amem_error* error) {
  amem_selection selection{};
  selection.size = sizeof selection;
  selection.discard = discard;
  selection.discard_count = discard_count;
  return amem_client_swap_selected(client, out, out_count, in, in_count, &selection, timeout_ms,
                                   callback, user, error);
}

int amem_client_swap_selected(amem_client* client, const char* const* out, size_t out_count,
                              const char* const* in, size_t in_count,
                              const amem_selection* selection, uint32_t timeout_ms,
                              amem_progress_callback callback, void* user, amem_error* error) {
  return with(client, error, [&](ControlClient& broker) -> Status {
    const auto read = read_selection(selection);
    if (!read.ok()) return read.status();
    for (const Status& status : {check_list(out, out_count, "out"), check_list(in, in_count, "in")})
      if (!status.ok()) return status;
    const amem::client::Choice what = choice(read.value());
    return broker.swap(names(out, out_count), names(in, in_count), what, timeout_ms,
                       wrap(callback, user));
  });
}

int amem_watch(amem_client* client, const char* group, amem_event_callback callback, void* user,
               amem_error* error) {
  return with(client, error, [&](ControlClient& broker) -> Status {
    if (callback == nullptr) return {Code::kInvalidArgument, "the callback is NULL"};
    return broker.watch(text_or_empty(group), [&](const v1::Event& event) {
      const std::string json = amem::client::to_json(event);
      const amem_event view{.time_ms = event.time_ms(),
                            .group = event.group().c_str(),
                            .kind = event.kind().c_str(),
                            .text = event.text().c_str(),
                            .state = static_cast<int32_t>(event.state()),
                            .lost = event.lost() ? 1 : 0,
                            .json = json.c_str()};
      return callback(&view, user) == 0;
    });
  });
}
