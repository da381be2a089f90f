// ropectl: the command-line client of RopeServe.

#include "client/cli/commands.h"

int main(int argc, char** argv) {
  const std::vector<absl::string_view> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  return rope::client::RunRopectl(arguments);
}
