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
#define AMEM_DIRECT(symbol) asm("amem_direct " symbol)

asm(R"(
    .macro amem_direct symbol
    .pushsection .rodata.str1.1, "aMS", @progbits, 1
.Lname_\symbol:
    .string "\symbol"
    .popsection
    .pushsection .data.amem_direct, "aw", @progbits
    .balign 8
.Lslot_\symbol:
    .quad .Lfirst_\symbol
    .quad .Lname_\symbol
    .popsection
    .pushsection amem_direct, "ax", @progbits
    .balign 16
    .globl \symbol
    .type \symbol, @function
\symbol:
    .cfi_startproc
    endbr64
    jmp *.Lslot_\symbol(%rip)
.Lfirst_\symbol:
    endbr64
    leaq .Lslot_\symbol(%rip), %r11
    jmp amem_direct_first
    .cfi_endproc
    .size \symbol, .-\symbol
    .popsection
    .endm
)");
