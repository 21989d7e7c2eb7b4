/* Exit status 0: the library is the one of the header, and says as it should that there is no
 * broker. */
#include <amem/amem.h>
#include <stdio.h>

int main(int argc, char** argv) {
  amem_options options = {0};
  amem_client* client = NULL;
  amem_error error;
  char* json = NULL;
  if (argc != 2) return 2;
  options.size = sizeof options;
  options.runtime_dir = argv[1];
  if (amem_open(&options, &client, &error) != AMEM_OK) {
    fprintf(stderr, "amem_open: %s\n", error.text);
    return 1;
  }
  if (amem_status(client, &json, &error) != AMEM_ERROR_UNAVAILABLE) {
    fprintf(stderr, "amem_status: %d %s\n", (int)error.code, error.text);
    return 1;
  }
  amem_close(client);
  printf("%s\n", amem_version());
  return 0;
}
