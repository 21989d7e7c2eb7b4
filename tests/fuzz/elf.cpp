// What `amemctl doctor` reads of a program that somebody names: ELF files, scripts, NCCL's library.
// Input: the file's bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "addons/tools/diagnosis/elf_file.h"
#include "addons/tools/diagnosis/nccl_library.h"
#include "addons/tools/diagnosis/program.h"
#include "tests/world/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace amem;
  const Fd file(::memfd_create("fuzz-elf", MFD_CLOEXEC));
  world::require(::write(file.get(), data, size) == static_cast<ssize_t>(size),
                 "the file is written");
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());

  const Result<ctl::ElfFacts> elf = ctl::read_elf(path);
  if (elf.ok()) {
    const ctl::ElfFacts& facts = elf.value();
    world::require(facts.interpreter.size() <= size && facts.runpath.size() <= size,
                   "no text is longer than the file");
    for (const auto* texts : {&facts.needed, &facts.exports})
      for (const std::string& text : *texts)
        world::require(text.size() <= size, "no text is longer than the file");
  }
  const ctl::Environment environment = {{"PATH", "/proc/self/fd"}, {"HOME", "/nowhere"}};
  if (const auto program = ctl::find_program({path}, environment); program.ok()) {
    world::require(program.value().through.size() <= 8, "a path to a program ends");
    (void)ctl::find_nccl(program.value().path, program.value().elf.runpath, environment);
  }
  (void)ctl::nccl_version(path);
  return 0;
}
