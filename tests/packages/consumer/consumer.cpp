// As consumer.c, by the C++ header.
#include <amem/amem.hpp>
#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    amem::Options options;
    options.runtime_dir = argv[1];
    amem::Client client(options);
    std::cerr << client.status() << "\n";
  } catch (const amem::Error& error) {
    if (error.code() == AMEM_ERROR_UNAVAILABLE) {
      std::cout << amem_version() << "\n";
      return 0;
    }
    std::cerr << error.what() << "\n";
  }
  return 1;
}
