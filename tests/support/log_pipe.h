// A small pipe as the output of a log, which a test fills and reads.
//
// Threading:  One thread writes, one reads.
#ifndef ROPE_TESTS_SUPPORT_LOG_PIPE_H_
#define ROPE_TESTS_SUPPORT_LOG_PIPE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "proto/ipc/file_descriptor.h"

namespace rope::testing {

class LogPipe {
 public:
  // A pipe of `bytes`: it has room for at least as many lines as that has pages.
  explicit LogPipe(int bytes = 1 << 14) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_ = proto::FileDescriptor(ends[0]);
    write_ = proto::FileDescriptor(ends[1]);
    EXPECT_GE(fcntl(write_.get(), F_SETPIPE_SZ, bytes), bytes);
  }

  int fd() const { return write_.get(); }

  // Writes until the pipe is full.
  void Fill() const {
    const std::string page(4096, '-');
    pollfd room = {write_.get(), POLLOUT, 0};
    while (poll(&room, 1, 0) == 1) {
      ASSERT_EQ(write(write_.get(), page.data(), page.size()), ssize_t{4096});
    }
  }
  // Returns the pipe's contents.
  std::string Read() const {
    std::string text;
    char buffer[4096];
    pollfd some = {read_.get(), POLLIN, 0};
    while (poll(&some, 1, 0) == 1) {
      const ssize_t count = read(read_.get(), buffer, sizeof(buffer));
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  void CloseReader() { read_ = proto::FileDescriptor(); }

 private:
  proto::FileDescriptor read_;
  proto::FileDescriptor write_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_LOG_PIPE_H_
