// Direct calls: entry points for programs that are linked to libcuda instead of looking its calls
// up.
//
// The shim exports each symbol that its call tables wrap. Being preloaded, its definitions are the
// ones that programs and extension modules bind to. Each is a jump: at first to a resolver that
// finds the driver's function and the row's wrapper, from then on to that wrapper. Arguments and
// return address are the caller's own throughout. A process that makes no such call pays nothing.
#pragma once

#include "shim/interpose.h"

namespace amem::shim {

/// The driver's own function of a symbol that we export, found past our definition; nullptr, with
/// dlerror set, when no libcuda is loaded or it has none.
void* driver_symbol(const char* symbol);

/// The code address is one of our exported jumps, where a lookup wanted the driver's function.
bool is_direct(const void* code);

}  // namespace amem::shim

/// Exports one symbol, given as a string literal. At file scope; its row is found by name.
#define AMEM_DIRECT(symbol)                                  \
  asm(".pushsection .rodata.str1.1, \"aMS\", @progbits, 1\n" \
      ".Lname_" symbol                                       \
      ":\n"                                                  \
      "    .string \"" symbol                                \
      "\"\n"                                                 \
      ".popsection\n"                                        \
      ".pushsection .data.amem_direct, \"aw\", @progbits\n"  \
      "    .balign 8\n"                                      \
      ".Lslot_" symbol                                       \
      ":\n"                                                  \
      "    .quad .Lfirst_" symbol                            \
      "\n"                                                   \
      "    .quad .Lname_" symbol                             \
      "\n"                                                   \
      ".popsection\n"                                        \
      ".pushsection amem_direct, \"ax\", @progbits\n"        \
      "    .balign 16\n"                                     \
      "    .globl " symbol                                   \
      "\n"                                                   \
      "    .type " symbol ", @function\n" symbol             \
      ":\n"                                                  \
      "    .cfi_startproc\n"                                 \
      "    endbr64\n"                                        \
      "    jmp *.Lslot_" symbol                              \
      "(%rip)\n"                                             \
      ".Lfirst_" symbol                                      \
      ":\n"                                                  \
      "    endbr64\n"                                        \
      "    leaq .Lslot_" symbol                              \
      "(%rip), %r11\n"                                       \
      "    jmp amem_direct_first\n"                          \
      "    .cfi_endproc\n"                                   \
      "    .size " symbol ", .-" symbol                      \
      "\n"                                                   \
      ".popsection\n");
