// Facts of an ELF file that checks need. The file may be damaged or hostile: every offset and size
// in it is checked against the file's size before it is followed. Plain functions; any thread.
#pragma once

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace amem::ctl {

struct ElfFacts {
  bool native = false;               // 64-bit x86-64; of another one nothing else is read
  std::string interpreter;           // the dynamic loader; empty: a library or a static program
  std::vector<std::string> needed;   // DT_NEEDED
  std::string runpath;               // DT_RUNPATH, else DT_RPATH: directories between colons
  std::vector<std::string> exports;  // dynamic symbols that it defines
};

/// An open file, read by offset and never beyond its end.
class ElfBytes {
 public:
  ElfBytes(int fd, std::uint64_t size) : fd_(fd), size_(size) {}

  /// false: not all of that is in the file, or it is more than any real file has there.
  template <class T>
  bool read(std::uint64_t offset, std::uint64_t count, std::vector<T>& out) const {
    constexpr std::uint64_t kMost = 256U << 20U;  // bytes of one table
    if (count > kMost / sizeof(T) || offset > size_ || count * sizeof(T) > size_ - offset)
      return false;
    out.resize(count);
    std::size_t done = 0;
    while (done < count * sizeof(T)) {
      const ssize_t got = ::pread(fd_, reinterpret_cast<char*>(out.data()) + done,
                                  count * sizeof(T) - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<std::size_t>(got);
    }
    return true;
  }

 private:
  int fd_;
  std::uint64_t size_;
};

/// The string at an offset of a string table; it ends with the table at the latest.
inline std::string elf_string(const std::vector<char>& table, std::uint64_t offset) {
  if (offset >= table.size()) return {};
  const auto begin = table.begin() + static_cast<std::ptrdiff_t>(offset);
  return {begin, std::find(begin, table.end(), '\0')};
}

/// Reads what is in the dynamic section, and the symbols, through the section headers, which every
/// linker writes. false: a table does not lie in the file.
inline bool read_elf_sections(const ElfBytes& file, const Elf64_Ehdr& header, ElfFacts& facts) {
  std::vector<Elf64_Shdr> sections;
  if (header.e_shoff == 0) return true;
  if (header.e_shentsize != sizeof(Elf64_Shdr) ||
      !file.read(header.e_shoff, header.e_shnum, sections))
    return false;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_DYNAMIC && section.sh_type != SHT_DYNSYM) continue;
    if (section.sh_link >= sections.size()) return false;
    const Elf64_Shdr& texts = sections[section.sh_link];
    std::vector<char> names;
    if (texts.sh_type != SHT_STRTAB || !file.read(texts.sh_offset, texts.sh_size, names))
      return false;
    if (section.sh_type == SHT_DYNAMIC) {
      std::vector<Elf64_Dyn> entries;
      if (!file.read(section.sh_offset, section.sh_size / sizeof(Elf64_Dyn), entries)) return false;
      for (const Elf64_Dyn& entry : entries) {
        if (entry.d_tag == DT_NULL) break;
        if (entry.d_tag == DT_NEEDED) facts.needed.push_back(elf_string(names, entry.d_un.d_val));
        // The loader ignores the older one where both are.
        if (entry.d_tag == DT_RUNPATH || (entry.d_tag == DT_RPATH && facts.runpath.empty()))
          facts.runpath = elf_string(names, entry.d_un.d_val);
      }
    } else {
      std::vector<Elf64_Sym> symbols;
      if (!file.read(section.sh_offset, section.sh_size / sizeof(Elf64_Sym), symbols)) return false;
      for (const Elf64_Sym& symbol : symbols) {
        if (symbol.st_shndx != SHN_UNDEF && symbol.st_name != 0)
          facts.exports.push_back(elf_string(names, symbol.st_name));
      }
    }
  }
  return true;
}

/// kNotFound, kPermissionDenied: the file cannot be read. kInvalidArgument: it is not an ELF file,
/// or a damaged one.
inline Result<ElfFacts> read_elf(const std::string& path) {
  const auto damaged = [&path](const char* what) {
    return Status(Code::kInvalidArgument, path + " is a damaged ELF file: " + what);
  };
  // Not blocking, for what turns out to be a fifo.
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0)
    return errno_status(errno == EACCES ? Code::kPermissionDenied : Code::kNotFound, path, errno);
  if (!S_ISREG(st.st_mode)) return Status(Code::kInvalidArgument, path + " is not a file");
  const ElfBytes file(fd.get(), static_cast<std::uint64_t>(st.st_size));
  std::vector<unsigned char> ident;
  if (!file.read(0, EI_NIDENT, ident) || std::memcmp(ident.data(), ELFMAG, SELFMAG) != 0)
    return Status(Code::kInvalidArgument, path + " is not an ELF file");

  ElfFacts facts;
  if (ident[EI_CLASS] != ELFCLASS64 || ident[EI_DATA] != ELFDATA2LSB) return facts;
  std::vector<Elf64_Ehdr> header;
  if (!file.read(0, 1, header)) return damaged("its header is incomplete");
  if (header[0].e_machine != EM_X86_64) return facts;
  facts.native = true;
  std::vector<Elf64_Phdr> segments;
  if (header[0].e_phnum != 0 && (header[0].e_phentsize != sizeof(Elf64_Phdr) ||
                                 !file.read(header[0].e_phoff, header[0].e_phnum, segments)))
    return damaged("its program headers are beyond its end");
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_INTERP) continue;
    std::vector<char> name;
    if (segment.p_filesz > PATH_MAX || !file.read(segment.p_offset, segment.p_filesz, name))
      return damaged("the name of its loader is beyond its end");
    facts.interpreter = elf_string(name, 0);
  }
  if (!read_elf_sections(file, header[0], facts)) return damaged("a table is beyond its end");
  return facts;
}

}  // namespace amem::ctl
