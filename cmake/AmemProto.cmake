# Generates proto/amem/v1/*: session.proto for nanopb, broker.proto for protobuf and gRPC.
set(AMEM_PROTO_DIR ${CMAKE_CURRENT_SOURCE_DIR}/proto)
set(AMEM_GENERATED ${CMAKE_BINARY_DIR}/generated)
