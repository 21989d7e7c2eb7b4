// Direct calls: entry points for programs that are linked to libcuda instead of looking its calls
// up.
//
// The shim exports each symbol that its call tables wrap. Being preloaded, its definitions are the
// ones that programs and extension modules bind to. Each is a jump: at first to a resolver that
// finds the driver's function and the row's wrapper, from then on to that wrapper. Arguments and
// return address are the caller's own throughout. A process that makes no such call pays nothing.
//
// Another library that wraps driver calls comes before us in LD_PRELOAD: programs then bind to it,
// and what it looks up leads to us. Behind us it would be called by nobody.
#pragma once

#include "shim/calls/interpose.h"

namespace amem::shim {

/// The driver's own function, out of libcuda.so.1 itself; nullptr when that is not loaded or has
/// none. Wrappers go on to this and to nothing else.
void* driver_symbol(const char* symbol);

/// What the libraries behind us have of this name; nullptr, with dlerror set, when they have none.
void* next_symbol(const char* symbol);

/// A library that was preloaded in front of us, or the program, has this code.
bool precedes_us(const void* code);

/// Says, once, when a library behind us has the symbol, too: it is not called.
void warn_of_bypassed(const char* symbol, const void* driver_function);

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
