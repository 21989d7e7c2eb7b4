"""The table of driver calls against the headers of every version of CUDA that headers.txt names. It needs the headers: it does not skip."""
import os
import pathlib
import re
import subprocess

import declarations
import headers
import pytest

INCLUDE = pathlib.Path(os.environ["AMEM_CUDA_INCLUDE"])  # what the build uses; the only one with cudaProfiler.h
COMPILER = os.environ.get("CXX", "c++")


def folder(version):
    at = headers.FOLDER / version
    assert (at / "cuda.h").exists(), f"no headers of CUDA {version} in {at}: run tests/newest/headers.py"
    return at


def all_declared():
    symbols = declarations.declared(INCLUDE)
    for version in headers.versions():
        symbols |= declarations.declared(folder(version))
    return symbols


def test_a_declaration_may_stand_on_several_lines():
    text = """
    #define cuOne __CUDA_API_PTSZ(cuOne)
    #define cuTwo cuTwo_v2
    /* CUresult CUDAAPI cuNone(void); */
    CUresult CUDAAPI
        cuOne(int first,  /**< one */
              int second);
    CUresult CUDAAPI cuTwo(CUstream s);
    #undef cuTwo
    CUresult CUDAAPI cuTwo(int old);
    """
    assert declarations.parse(text) == {
        "cuOne": "int first, int second", "cuOne_ptsz": "int first, int second", "cuTwo_v2": "CUstream s", "cuTwo": "int old"}


def test_every_entry_point_has_its_row():
    known = [symbol for _, symbol in declarations.rows()]
    assert len(known) == len(set(known)), f"twice in the table: {sorted(s for s in set(known) if known.count(s) > 1)}"
    symbols = set(all_declared())
    assert symbols - set(known) == set(), "declared by a header, and in no row of shim/calls/driver_calls.inc"
    assert set(known) - symbols == set(), "in a row of shim/calls/driver_calls.inc, and declared by no header"


def test_the_newest_header_is_read_whole():
    text = (folder(headers.versions()[-1]) / "cuda.h").read_text(encoding="utf-8")
    entries = declarations.entry_points(text)
    symbols = declarations.parse(text)
    bases = {declarations.base(symbol) for _, symbol in declarations.rows()}
    assert len(entries) == 544, f"of CUDA 13.5; {headers.versions()[-1]} has {len(entries)}"
    assert {declarations.base(name) for name in entries} <= bases
    assert {"cuLinkComplete", "cuLinkDestroy"} <= symbols.keys(), "they stand on two lines"


def test_the_table_says_which_version_it_is_of():
    source = (declarations.ROOT / "shim" / "process" / "unknown_calls.h").read_text(encoding="utf-8")
    major, minor = headers.versions()[-1].split(".")
    assert f"kTableVersion = {int(major) * 1000 + int(minor) * 10};" in source


def test_each_row_has_a_version_that_cuda_has_given_it():
    """Of calls that take the place of others cudaTypedefs.h knows each version. What it does not show the shim declares by itself."""
    typedefs = set()
    for version in headers.versions():
        typedefs |= set(re.findall(r"\bPFN_(cu\w+)", (folder(version) / "cudaTypedefs.h").read_text(encoding="utf-8")))
    own = {"cuGraphInstantiate_v10000", "cuGraphInstantiate_v11000", "cuStreamBeginCapture_v10000", "cuStreamBeginCapture_v10000_ptsz"}
    assert {f"{row.api}_{row.type}" for row in declarations.wrapped()} - typedefs <= own


@pytest.mark.parametrize("version", [v for v in headers.versions() if v.startswith("13.")])
def test_the_shim_builds_with_the_headers_of_each_13(version, tmp_path):
    """Signatures are the same whatever the headers, and the structs that the shim declares by itself are laid out as CUDA's own."""
    source = tmp_path / "layout.cpp"
    source.write_text(LAYOUT if version == headers.versions()[-1] else '#include "shim/calls/driver_calls.h"\n', encoding="utf-8")
    done = subprocess.run(
        [COMPILER, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-isystem", folder(version), "-isystem", INCLUDE,
         "-I", declarations.ROOT, source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


LAYOUT = """
#include <type_traits>
#include "shim/calls/driver_calls.h"
using namespace amem;
#define SAME(ours, theirs) static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs))
#define AT(ours, our_member, theirs, their_member) static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member))
SAME(cuda::FabricOperand, CUfabricCpyOperand);
AT(cuda::FabricOperand, type, CUfabricCpyOperand, type);
AT(cuda::FabricOperand, address, CUfabricCpyOperand, op.ptr.ptr);
SAME(cuda::FabricCopy, CUDA_FABRIC_COPY_BATCH_OP);
AT(cuda::FabricCopy, source, CUDA_FABRIC_COPY_BATCH_OP, src);
AT(cuda::FabricCopy, destination, CUDA_FABRIC_COPY_BATCH_OP, dst);
AT(cuda::FabricCopy, size, CUDA_FABRIC_COPY_BATCH_OP, size);
AT(cuda::CopyBatchNode, count, CUDA_MEMCPY_BATCH_NODE_PARAMS, count);
AT(cuda::CopyBatchNode, destinations, CUDA_MEMCPY_BATCH_NODE_PARAMS, dsts);
AT(cuda::CopyBatchNode, sources, CUDA_MEMCPY_BATCH_NODE_PARAMS, srcs);
AT(cuda::CopyBatchNode, sizes, CUDA_MEMCPY_BATCH_NODE_PARAMS, sizes);
AT(cuda::FabricBatchNode, count, CUDA_FABRIC_CPY_BATCH_NODE_PARAMS, numOps);
AT(cuda::FabricBatchNode, copies, CUDA_FABRIC_CPY_BATCH_NODE_PARAMS, opList);
static_assert(offsetof(CUgraphNodeParams, memcpyBatch) == offsetof(CUgraphNodeParams, reserved1));
static_assert(offsetof(CUgraphNodeParams, fabricCpyBatch) == offsetof(CUgraphNodeParams, reserved1));
static_assert(sizeof(CUgraphNodeParams) == 256);
static_assert(cuda::kCopyBatch == CU_GRAPH_NODE_TYPE_MEMCPY_BATCH && cuda::kFabricCopyBatch == CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH);
static_assert(cuda::kFabricPointer == CU_FABRIC_COPY_OPERAND_TYPE_POINTER);
static_assert(cuda::kDecompressAlgorithms == CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK);
static_assert(cuda::kPoolForDecompression == CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS);
static_assert(offsetof(CUmemPoolProps, usage) == offsetof(CUmemPoolProps, maxSize) + sizeof(std::size_t));
static_assert(cuda::kLastAttribute == CU_DEVICE_ATTRIBUTE_MAX - 1);
static_assert(cuda::of_logical_endpoints(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_SUPPORTED) &&
              cuda::of_logical_endpoints(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_MULTICAST_SUPPORTED) &&
              cuda::of_logical_endpoints(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_COUNTED_OPS_SUPPORTED) &&
              cuda::of_logical_endpoints(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_UNICAST_ACCESS_ON_OWNER_DEVICE_SUPPORTED) &&
              cuda::of_logical_endpoints(CU_DEVICE_ATTRIBUTE_LOGICAL_ENDPOINT_SUPPORTED_HANDLE_TYPES) &&
              !cuda::of_logical_endpoints(CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT));
// A pointer to a struct of CUDA's is one of the shim's own to the machine; all else must be the same type.
template <class A, class B> constexpr bool kSame = std::is_same_v<A, B> || (std::is_pointer_v<A> && std::is_pointer_v<B>);
template <class A, class B> struct Agree;
template <class... A, class... B> struct Agree<CUresult (*)(A...), CUresult (*)(B...)> {
  static_assert(sizeof...(A) == sizeof...(B));
  static_assert((kSame<A, B> && ...));
};
#define SIGNATURE(name) static_assert(sizeof(Agree<shim::PFN_##name, ::PFN_##name>) > 0);
SIGNATURES
"""
OWN = re.findall(r"using PFN_(cu\w+_v13\d+\w*) =", (declarations.ROOT / "shim" / "calls" / "driver_calls.h").read_text(encoding="utf-8"))
LAYOUT = LAYOUT.replace("SIGNATURES", "\n".join(f"SIGNATURE({name})" for name in OWN))
