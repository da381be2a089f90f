#include "server/models/model.h"

#include <gtest/gtest.h>

#include "proto/wire/rope_config.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

// A width in the message is the same in the config that is read from it.
TEST(WidthTest, IsTheMostThatAFieldSays) {
  v1::RopeConfig config;
  const auto expect_width = [&config](int64_t width) {
    EXPECT_EQ(WidthOf(config), width);
    ASSERT_OK(read, proto::ReadRopeConfig(config));
    EXPECT_EQ(WidthOf(*read), width);
  };
  expect_width(0);
  config.mutable_inv_freq()->add_numbers(1);
  expect_width(1);
  for (int i = 0; i < 2; ++i) config.add_short_factor(1);
  expect_width(2);
  for (int i = 0; i < 3; ++i) config.add_long_factor(1);
  expect_width(3);
  for (int i = 0; i < 4; ++i) config.add_mrope_axes(0);
  expect_width(4);
  config.set_rotary_dim(8);
  expect_width(8);
  config.set_head_dim(65536);
  expect_width(65536);
}

}  // namespace
}  // namespace rope::server
