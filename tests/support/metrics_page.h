// The metrics page of a test server, read over a plain socket as Prometheus does.
#ifndef ROPE_TESTS_SUPPORT_METRICS_PAGE_H_
#define ROPE_TESTS_SUPPORT_METRICS_PAGE_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

#include "proto/ipc/file_descriptor.h"
#include "tests/support/exposition.h"
#include "tests/support/test_server.h"

namespace rope::testing {

// A connection to `port`. Reads fail when the server sends nothing for long.
inline proto::FileDescriptor ConnectLoopback(int port) {
  proto::FileDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience = {.tv_sec = 60, .tv_usec = 0};
  setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return client;
}

// The response to GET `path`, HTTP header included.
inline std::string Get(const std::string& path, int port) {
  const proto::FileDescriptor client = ConnectLoopback(port);
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(client.get(), request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(client.get(), buffer, sizeof(buffer))) > 0) {
    answer.append(buffer, static_cast<size_t>(count));
  }
  return answer;
}

// The metrics port of a server started with --metrics_listen; 0 without the flag.
inline int MetricsPort(const TestServer& server) {
  for (const std::string& line : server.lines()) {
    if (line.rfind("metrics on", 0) == 0) return std::stoi(line.substr(line.rfind(':') + 1));
  }
  return 0;
}

// The page without its HTTP header.
inline Exposition Scrape(int port) {
  const std::string answer = Get("/metrics", port);
  return Exposition(answer.substr(answer.find("\r\n\r\n") + 4));
}

// The sample that counts the calls of a method of RopeService that ended with `status`.
inline std::string CallsOf(const std::string& method, const std::string& status = "OK") {
  return "grpc_server_call_duration_seconds_count{grpc_method=\"rope.v1.RopeService/" + method +
         "\",grpc_status=\"" + status + "\"}";
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_METRICS_PAGE_H_
