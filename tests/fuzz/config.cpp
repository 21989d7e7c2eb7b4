// amemd's configuration: the file, the environment and the command line, one after the other as
// amemd reads them.
// Input: the file's text; then, each after a 0 byte, words: NAME=VALUE for the environment, all
// others for the command line.
#include "daemon/settings/config.h"

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/base/units.h"
#include "daemon/settings/arguments.h"
#include "tests/world/check.h"

namespace amem::fuzz {
namespace {

using world::require;

struct Words {
  std::map<std::string, std::string> environment;
  std::vector<std::string> arguments = {"amemd"};
};

Words split(std::string_view text) {
  Words words;
  while (!text.empty()) {
    text.remove_prefix(1);  // the 0 byte
    const std::string word(text.substr(0, text.find('\0')));
    text.remove_prefix(word.size());
    const std::size_t equals = word.find('=');
    if (word.starts_with('-') || equals == std::string::npos)
      words.arguments.push_back(word);
    else
      words.environment[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return words;
}

void read_units(const std::string& text) {
  if (const auto size = parse_size(text); size.ok()) {
    (void)format_size(size.value());
    const auto again = parse_size(exact_size(size.value()));
    require(again.ok() && again.value() == size.value(), "a size reads back exactly");
  }
  if (const auto duration = parse_duration(text); duration.ok()) {
    require(duration.value() >= Duration::zero(), "no duration is negative");
    require(parse_duration(format_duration(duration.value())).ok(), "a duration reads back");
  }
}

/// What amemd prints with --check-config is what it would do, in a form that it reads.
void print_and_read_again(const Config& config) {
  require(config.segment() > 0, "a pool has segments");
  const std::string printed = to_toml(config);
  Config again = Config::defaults(false, "/run/amem");
  ConfigErrors errors;
  apply_toml(again, printed, "printed", errors);
  check(again, errors);
  require(errors.empty() && to_toml(again) == printed, "what is printed reads back");
}

void read(std::string_view input) {
  const std::string_view file = input.substr(0, input.find('\0'));
  const Words words = split(input.substr(file.size()));
  Config config = Config::defaults(false, "/run/amem");
  ConfigErrors errors;
  apply_toml(config, file, "amemd.toml", errors);
  apply_environment(
      config,
      [&](const char* name) {
        const auto it = words.environment.find(name);
        return it != words.environment.end() ? it->second.c_str() : nullptr;
      },
      errors);
  std::vector<const char*> arguments;
  for (const std::string& word : words.arguments) {
    arguments.push_back(word.c_str());
    read_units(word);
  }
  int exit_status = 0;
  if (const auto parsed =
          parse_arguments(static_cast<int>(arguments.size()), arguments.data(), exit_status))
    apply_flags(config, parsed->flags, errors);
  else
    require(exit_status == 0 || exit_status == 2, "wrong usage is 2");
  check(config, errors);
  for (const std::string& error : errors) require(!error.empty(), "an error says what is wrong");
  if (errors.empty()) print_and_read_again(config);
}

}  // namespace
}  // namespace amem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Usage and help, which nobody reads here.
  static const bool quiet = [] {
    std::cout.rdbuf(nullptr);
    std::cerr.rdbuf(nullptr);
    return true;
  }();
  (void)quiet;
  amem::fuzz::read({reinterpret_cast<const char*>(data), size});
  return 0;
}
