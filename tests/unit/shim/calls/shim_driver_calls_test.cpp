// shim/calls/driver_calls.inc against the CUDA headers: every entry point that they declare has its
// place there, and nothing else has.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "shim/calls/driver_calls.h"

namespace amem::shim {
namespace {

/// Symbols of a list "cuA, cuB".
std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> symbols;
  std::istringstream in(list);
  for (std::string symbol; std::getline(in >> std::ws, symbol, ',');) symbols.push_back(symbol);
  return symbols;
}

/// How often the table names each symbol.
std::map<std::string, int> table() {
  std::map<std::string, int> named;
#define WRAPPED(api, version, type, symbol) ++named[#symbol];
#define PASSED(reason, ...) \
  for (const std::string& symbol : split(#__VA_ARGS__)) ++named[symbol];
#define UNSUPPORTED PASSED
#include "shim/calls/driver_calls.inc"
  return named;
}

/// What a header declares, as the driver exports it: names that it redefines in their place, and
/// the variants for per-thread default streams.
std::set<std::string> declared(const std::string& header) {
  static const std::regex kRedefined(
      R"(\s*#\s*define\s+(cu[A-Z]\w*)\s+(?:(cu\w+)|__CUDA_API_PT([DS][SZ])\((\w+)\))\s*)");
  static const std::regex kForgotten(R"(\s*#\s*undef\s+(\w+)\s*)");
  static const std::regex kFunction(R"(.*\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(.*)");
  std::ifstream in(std::string(AMEM_CUDA_INCLUDE) + "/" + header);
  std::map<std::string, std::vector<std::string>> exported_as;
  std::set<std::string> symbols;
  std::smatch found;
  for (std::string line; std::getline(in, line);) {
    if (line.find("cu") == std::string::npos) continue;
    if (std::regex_match(line, found, kRedefined)) {
      std::vector<std::string>& names = exported_as[found[1]];
      names = {found[2].matched ? found[2] : found[4]};
      if (found[3] == "DS") names.push_back(names[0] + "_ptds");
      if (found[3] == "SZ") names.push_back(names[0] + "_ptsz");
    } else if (std::regex_match(line, found, kForgotten)) {
      exported_as.erase(found[1]);
    } else if (std::regex_match(line, found, kFunction)) {
      const auto names = exported_as.find(found[1]);
      if (names == exported_as.end())
        symbols.insert(found[1]);
      else
        symbols.insert(names->second.begin(), names->second.end());
    }
  }
  return symbols;
}

std::string cuda_version() {
  std::ifstream in(std::string(AMEM_CUDA_INCLUDE) + "/cuda.h");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("#define CUDA_VERSION ")) return line.substr(line.rfind(' ') + 1);
  return "";
}

TEST(ShimDriverCalls, EveryEntryPointOfTheHeadersHasItsPlace) {
  // Of a newer toolkit amem uses what it knows: its new calls go to the driver untouched.
  if (const std::string version = cuda_version(); version != "13000")
    GTEST_SKIP() << "the table is of CUDA 13.0, these headers are of " << version;
  std::map<std::string, int> named = table();
  for (const char* header : {"cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h"}) {
    const std::set<std::string> symbols = declared(header);
    EXPECT_FALSE(symbols.empty()) << header;
    for (const std::string& symbol : symbols) {
      EXPECT_EQ(named[symbol], 1) << symbol << " of " << header
                                  << " must be in driver_calls.inc once";
      named.erase(symbol);
    }
  }
  for (const auto& [symbol, count] : named)
    ADD_FAILURE() << "no header declares " << symbol << " of driver_calls.inc";
}

TEST(ShimDriverCalls, TheRowIsTheOneThatTheDriverWouldChoose) {
  EXPECT_EQ(find_call("cuMemcpyBatchAsync", 12080, false)->version, 12080);
  EXPECT_EQ(find_call("cuMemcpyBatchAsync", 12090, false)->version, 12080);
  EXPECT_EQ(find_call("cuMemcpyBatchAsync", 13000, false)->version, 13000);
  EXPECT_STREQ(find_call("cuMemcpyHtoD", 13000, true)->symbol, "cuMemcpyHtoD_v2_ptds");
  EXPECT_STREQ(find_call("cuMemcpyHtoD", 13000, false)->symbol, "cuMemcpyHtoD_v2");
  EXPECT_STREQ(find_call("cuMemCreate", 13000, true)->symbol, "cuMemCreate");
  EXPECT_EQ(find_call("cuMemCreate", 10000, false), nullptr);
  EXPECT_STREQ(find_call("cuMemAlloc", 13000, true)->symbol, "cuMemAlloc_v2");
  EXPECT_STREQ(find_call("cuGraphInstantiate", 11080, false)->symbol, "cuGraphInstantiate_v2");
  EXPECT_STREQ(find_call("cuGraphInstantiate", 12000, false)->symbol,
               "cuGraphInstantiateWithFlags");
  EXPECT_EQ(find_call("cuMemAlloc", 2000, false), nullptr);
  EXPECT_EQ(find_call("cuEventQuery", 13000, false), nullptr);
}

}  // namespace
}  // namespace amem::shim
