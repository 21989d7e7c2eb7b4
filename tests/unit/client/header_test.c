/* amem/amem.h is a C header: this is compiled as C99 with every warning on. */
#include <amem/amem.h>

int client_header_compiles_as_c(void);

static int on_progress(const amem_progress* progress, void* user) {
  (void)user;
  return progress->done;
}

int client_header_compiles_as_c(void) {
  amem_options options = {sizeof options, "/nowhere", NULL, 0};
  amem_client* client = NULL;
  amem_error error;
  int code;
  if (amem_open(&options, &client, &error) != AMEM_OK) return 1;
  code = amem_client_pause(client, "train", 0, on_progress, NULL, &error);
  amem_close(client);
  return code == AMEM_ERROR_UNAVAILABLE ? 0 : 2;
}
