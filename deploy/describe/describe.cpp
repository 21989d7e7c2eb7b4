// amem_describe: writes as JSON what amemd, amem-holder, amem-checkpoint and amemctl take on their
// command lines. Manual pages and completions are made of that.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "client/ctl/command_line.h"
#include "daemon/holder/arguments.h"
#include "daemon/settings/arguments.h"
#if __has_include("addons/checkpoint/arguments.h")
#include "addons/checkpoint/arguments.h"
#endif

namespace amem {
namespace {

using Json = nlohmann::ordered_json;

/// Of "one,two".
Json list(const std::string& text) {
  Json all = Json::array();
  std::istringstream in(text);
  for (std::string each; std::getline(in, each, ',');) all.push_back(each);
  return all;
}

Json names(const std::set<CLI::Option*>& options) {
  Json all = Json::array();
  for (const CLI::Option* each : options) all.push_back(each->get_name());
  return all;
}

/// CLI11 has what CLI::IsMember allows only as its description: "{one,two}".
Json choices(CLI::Option& option) {
  try {
    for (int i = 0;; ++i) {
      const std::string text = option.get_validator(i)->get_description();
      if (text.starts_with('{')) return list(text.substr(1, text.size() - 2));
    }
  } catch (const CLI::OptionNotFound&) {  // there are no more validators
    return Json::array();
  }
}

Json described(CLI::Option& option) {
  return {{"names", list(option.get_name(false, true))},
          {"description", option.get_description()},
          {"positional", option.get_positional()},
          {"flag", option.get_items_expected_max() == 0},
          {"several", option.get_expected_max() > 1},
          {"type", option.get_type_name()},
          {"choices", choices(option)},
          {"default", option.get_default_str()},
          {"required", option.get_required()},
          {"environment", option.get_envname()},
          {"needs", names(option.get_needs())},
          {"excludes", names(option.get_excludes())}};
}

/// What is in no group is hidden.
Json described(CLI::App& app) {
  Json options = Json::array();
  for (CLI::Option* each : app.get_options())
    if (!each->get_group().empty()) options.push_back(described(*each));
  Json commands = Json::array();
  for (CLI::App* each :
       app.get_subcommands([](CLI::App* command) { return !command->get_group().empty(); }))
    commands.push_back(described(*each));
  return {
      {"name", app.get_name()}, {"group", app.get_group()}, {"description", app.get_description()},
      {"options", options},     {"commands", commands},     {"footer", app.get_footer()}};
}

template <typename Target>
Json described(void (*add)(CLI::App&, Target&)) {
  CLI::App app;
  Target target;
  add(app, target);
  return described(app);
}

}  // namespace
}  // namespace amem

int main() {
  using namespace amem;
  Json programs = {{"amemd", described<Arguments>(add_arguments)},
                   {"amem-holder", described<HolderArguments>(add_arguments)},
                   {"amemctl", described<ctl::CommandLine>(ctl::add_commands)}};
#if __has_include("addons/checkpoint/arguments.h")
  programs["amem-checkpoint"] = described<CheckpointArguments>(add_arguments);
#endif
  std::cout << programs;
}
