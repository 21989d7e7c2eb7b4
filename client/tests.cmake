# Unit tests of everything in client/. The sources lie with the other unit tests.
find_package(GTest REQUIRED)
include(GoogleTest)

set(unit ${PROJECT_SOURCE_DIR}/tests/unit)

add_executable(client_test
  ${unit}/client_format_test.cpp ${unit}/client_views_test.cpp ${unit}/client_json_test.cpp
  ${unit}/client_options_test.cpp ${unit}/client_run_test.cpp ${unit}/client_endpoint_test.cpp)
target_link_libraries(client_test PRIVATE amem_ctl amem_warnings GTest::gmock GTest::gtest_main)
amem_unity(client_test)
amem_precompile(client_test <gmock/gmock.h> <amem/v1/broker.pb.h>)
gtest_discover_tests(client_test PROPERTIES LABELS unit TIMEOUT 60)

# Against a gRPC service in the same process. ThreadSanitizer does not see how the distribution's gRPC, which is not
# built with it, orders what its threads do, and reports races at every message; so there these are shown as disabled.
if(AMEM_SANITIZE MATCHES thread)
  set(with_grpc DISABLED TRUE)
endif()
add_executable(client_broker_test ${unit}/client_api_test.cpp ${unit}/client_commands_test.cpp)
target_link_libraries(client_broker_test PRIVATE
  amem_client_objects amem_ctl amem_warnings GTest::gmock GTest::gtest_main)
amem_precompile(client_broker_test <gmock/gmock.h> <amem/v1/broker.grpc.pb.h>)
gtest_discover_tests(client_broker_test PROPERTIES LABELS unit TIMEOUT 60 ${with_grpc})

# The library as a program sees it: linked, through its own headers only, with a shim that the program supplies.
add_executable(client_rank_test ${unit}/client_rank_test.cpp ${unit}/client_header_test.c)
target_link_libraries(client_rank_test PRIVATE amem_client amem_warnings GTest::gtest_main)
set_target_properties(client_rank_test PROPERTIES ENABLE_EXPORTS ON C_STANDARD 99)
amem_unoptimised(client_test client_broker_test client_rank_test)
gtest_discover_tests(client_rank_test PROPERTIES LABELS unit TIMEOUT 60 ${with_grpc})
if(NOT AMEM_SANITIZE MATCHES thread)  # the first has no threads
  add_dependencies(unit_tests client_test client_broker_test client_rank_test)
endif()
