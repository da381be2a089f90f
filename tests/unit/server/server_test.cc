#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "server/error.h"
#include "server/housekeeper.h"
#include "server/limits.h"
#include "server/options.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

ServerOptions Parse(const std::vector<std::string>& arguments) {
  const auto options = ParseOptions(arguments);
  EXPECT_THAT(options, IsOk());
  return options.value_or(ServerOptions());
}

void ExpectInvalid(const std::vector<std::string>& arguments, const std::string& text) {
  EXPECT_THAT(ParseOptions(arguments), IsInvalid(text));
}

TEST(OptionsTest, DefaultsWithoutArguments) {
  const ServerOptions options = Parse({});
  EXPECT_THAT(options.listen, ElementsAre("127.0.0.1:50051"));
  EXPECT_EQ(options.device, "auto");
  EXPECT_THAT(options.models, IsEmpty());
  EXPECT_EQ(options.metrics_listen, "");
  EXPECT_FALSE(options.shared_memory.enabled);
  EXPECT_FALSE(options.tls.enabled());
  EXPECT_EQ(options.access_file, "");
  EXPECT_TRUE(options.reflection);
  EXPECT_EQ(options.poll_spin, absl::Microseconds(200));
  EXPECT_EQ(options.drain_lead, absl::ZeroDuration());
  EXPECT_EQ(options.drain_timeout, absl::Seconds(10));
  EXPECT_EQ(options.receive_timeout, absl::Minutes(1));
  EXPECT_EQ(options.handshake_timeout, absl::Seconds(10));
  EXPECT_EQ(options.idle_timeout, absl::Minutes(30));
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  EXPECT_EQ(options.max_connections, static_cast<int64_t>(files.rlim_cur / 4));
  EXPECT_EQ(options.memory_bytes, DefaultMemoryBytes(AvailableMemory()));
}

TEST(OptionsTest, EveryFlagIsTaken) {
  const ServerOptions options = Parse(
      absl::StrSplit("--device=cpu --metrics_listen=0.0.0.0:9464 --enable_shared_memory "
                     "--poll_spin_us=0 --drain_lead=5s --max_message_bytes=1048576 "
                     "--table_cache_bytes=77 --threads=3 --log_level=warn --drain_timeout=3s "
                     "--receive_timeout=200ms --memory_bytes=768MiB --max_connections=12 "
                     "--handshake_timeout=1s --idle_timeout=2s --trusted_proxy=uid:7 "
                     "--trusted_proxy=ip:2001:db8::7 --access_file=/a --enable_reflection=false "
                     "--log_format=json",
                     ' '));
  EXPECT_EQ(options.log_format, LogFormat::kJson);
  EXPECT_EQ(options.access_file, "/a");
  EXPECT_FALSE(options.reflection);
  EXPECT_THAT(options.trusted_proxies, ElementsAre("uid:7", "ip:2001:db8::7"));
  EXPECT_EQ(options.device, "cpu");
  EXPECT_EQ(options.metrics_listen, "0.0.0.0:9464");
  EXPECT_TRUE(options.shared_memory.enabled);
  EXPECT_EQ(options.poll_spin, absl::ZeroDuration());
  EXPECT_EQ(options.drain_lead, absl::Seconds(5));
  EXPECT_EQ(options.max_message_bytes, limits::kMiB);
  EXPECT_EQ(options.table_cache_bytes, 77);
  EXPECT_EQ(options.drain_timeout, absl::Seconds(3));
  EXPECT_EQ(options.receive_timeout, absl::Milliseconds(200));
  EXPECT_EQ(options.handshake_timeout, absl::Seconds(1));
  EXPECT_EQ(options.idle_timeout, absl::Seconds(2));
  EXPECT_EQ(options.max_connections, 12);
  EXPECT_EQ(options.memory_bytes, 768 * limits::kMiB);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.log_level, "warn");
}

TEST(OptionsTest, SizesTakeUnits) {
  EXPECT_EQ(Parse({"--max_message_bytes=2MiB"}).max_message_bytes, 2 * limits::kMiB);
  EXPECT_EQ(Parse({"--shared_memory_bytes=3GiB"}).shared_memory.bytes_max, 3 * limits::kGiB);
  EXPECT_EQ(Parse({"--table_cache_bytes=5KiB"}).table_cache_bytes, 5 * limits::kKiB);
  ExpectInvalid({"--memory_bytes=1MB"}, "--memory_bytes: got \"1MB\"");
  ExpectInvalid({"--memory_bytes=63MiB"}, "--memory_bytes: got \"63MiB\"");
  ExpectInvalid({"--memory_bytes=99999999999GiB"}, "--memory_bytes: got");
}

TEST(OptionsTest, LargestMessageIsAtMostAnEighthOfTheMemory) {
  EXPECT_EQ(Parse({"--memory_bytes=80MiB"}).memory_shares().message, 10 * limits::kMiB);
  EXPECT_EQ(Parse({"--memory_bytes=80GiB"}).memory_shares().message, limits::kMessageBytesMax);
  ExpectInvalid({"--max_message_bytes=11MiB", "--memory_bytes=80MiB"},
                "--max_message_bytes: got 11534336, want at most 10485760");
  ExpectInvalid({"--table_cache_bytes=21MiB", "--memory_bytes=80MiB"}, "--table_cache_bytes: got");
}

TEST(OptionsTest, SharedMemoryIsWhatTheOtherFlagsSayAndElseItsDefault) {
  const ServerOptions by_default = Parse({"--memory_bytes=64MiB"});
  EXPECT_EQ(by_default.shared_memory.bytes_max,
            DefaultSharedMemoryBytes(AvailableMemory(), 64 * limits::kMiB));
  const ServerOptions given = Parse({"--shared_memory_bytes=1GiB"});
  EXPECT_EQ(given.shared_memory.bytes_max, limits::kGiB);
  EXPECT_EQ(given.shared_memory.session_bytes_max, limits::kGiB / 2);
  EXPECT_EQ(Parse({"--session_memory_bytes=5GiB"}).shared_memory.session_bytes_max,
            5 * limits::kGiB);
}

TEST(OptionsTest, SharedMemoryThatDoesNotFitIsAWarning) {
  ServerOptions options = Parse({"--enable_shared_memory", "--memory_bytes=768MiB"});
  options.available_bytes = limits::kGiB;
  options.shared_memory.bytes_max = 256 * limits::kMiB;
  EXPECT_EQ(SharedMemoryWarning(options), "");
  options.shared_memory.bytes_max += 1;
  EXPECT_THAT(SharedMemoryWarning(options),
              HasSubstr("--shared_memory_bytes: got 268435457, want 1 to "
                        "268435456, what --memory_bytes (805306368) leaves of "
                        "1073741824"));
  options.shared_memory.enabled = false;
  EXPECT_EQ(SharedMemoryWarning(options), "");
}

TEST(OptionsTest, TrustedProxyIsAnOwner) {
  EXPECT_THAT(Parse({"--trusted_proxy=ip:loopback"}).trusted_proxies, ElementsAre("ip:loopback"));
  for (const char* const value : {"7", "uid:", "uid:ip:loopback", "uid:07", "uid:x", "192.0.2.7",
                                  "ip:", "ip:127.0.0.1", "ip:2001:DB8::7", "ip:proxy.example"}) {
    ExpectInvalid({absl::StrCat("--trusted_proxy=", value)}, "--trusted_proxy: got");
  }
}

TEST(OptionsTest, ListenReplacesTheDefaultAndRepeats) {
  EXPECT_THAT(Parse({"--listen=127.0.0.2:1", "--listen", "unix:/tmp/s", "--listen=[::1]:0"}).listen,
              ElementsAre("127.0.0.2:1", "unix:/tmp/s", "[::1]:0"));
  EXPECT_THAT(Parse({"--listen=localhost:2"}).listen, ElementsAre("localhost:2"));
}

TEST(OptionsTest, AddressBeyondLoopbackNeedsTlsOrIsSaidToBeOpen) {
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host:1", "127.0.0.1.x:1"}) {
    const std::string listen = absl::StrCat("--listen=", address);
    ExpectInvalid({listen}, absl::StrCat("--listen: got ", address, " without TLS"));
    EXPECT_THAT(Parse({listen, "--insecure_listen"}).listen, ElementsAre(address));
    const TlsFiles tls = Parse({listen, "--tls_cert=a", "--tls_key=b", "--tls_client_ca=c"}).tls;
    EXPECT_EQ(tls.cert + tls.key + tls.client_ca, "abc");
  }
  ExpectInvalid({"--tls_cert=a"}, "--tls_cert: got it alone");
  ExpectInvalid({"--tls_key=a"}, "--tls_key: got it alone");
  ExpectInvalid({"--tls_client_ca=a"}, "--tls_client_ca: got it alone");
}

TEST(OptionsTest, AddressThatIsGivenTwiceCountsOnce) {
  EXPECT_THAT(Parse({"--listen=[::1]:1", "--listen=unix:/s", "--listen=[::1]:1"}).listen,
              ElementsAre("[::1]:1", "unix:/s"));
  EXPECT_THAT(Parse({"--listen=localhost:0", "--listen=localhost:0"}).listen,
              ElementsAre("localhost:0", "localhost:0"))
      << "two free ports";
}

TEST(OptionsTest, LastOfWhatDoesNotRepeatCounts) {
  const ServerOptions options =
      Parse({"--metrics_listen=a:1", "--device=cuda", "--metrics_listen=a:2", "--device=cpu"});
  EXPECT_EQ(options.metrics_listen, "a:2");
  EXPECT_EQ(options.device, "cpu");
}

TEST(OptionsTest, SocketModeIsOctal) {
  EXPECT_EQ(Parse({}).socket_mode, std::nullopt);
  EXPECT_EQ(Parse({"--socket_mode=660"}).socket_mode, 0660U);
  EXPECT_EQ(Parse({"--socket_mode=0600"}).socket_mode, 0600U);
  for (const std::string mode : {"66", "668", "1777", "00660", "rw-", "-66"}) {
    ExpectInvalid({"--socket_mode=" + mode}, "--socket_mode: got \"" + mode + "\", want three");
  }
}

TEST(OptionsTest, SwitchTakesTrueAndFalse) {
  EXPECT_TRUE(Parse({"--enable_shared_memory=true"}).shared_memory.enabled);
  EXPECT_FALSE(Parse({"--enable_shared_memory=false"}).shared_memory.enabled);
  ExpectInvalid({"--enable_shared_memory=maybe"}, "enable_shared_memory");
}

TEST(OptionsTest, EnvironmentSetsWhatTheCommandLineDoesNot) {
  setenv("ROPE_DRAIN_LEAD", "7s", 1);
  setenv("ROPE_LISTEN", "127.0.0.1:1", 1);
  setenv("ROPE_THREADS", "5", 1);
  const ServerOptions options = Parse({"--listen=127.0.0.1:2", "--threads=3"});
  unsetenv("ROPE_DRAIN_LEAD");
  unsetenv("ROPE_LISTEN");
  unsetenv("ROPE_THREADS");
  EXPECT_EQ(options.drain_lead, absl::Seconds(7));
  EXPECT_THAT(options.listen, ElementsAre("127.0.0.1:2"));
  EXPECT_EQ(options.threads, 3);
}

TEST(OptionsTest, BadValueOfTheEnvironmentNamesItsFlag) {
  setenv("ROPE_DRAIN_LEAD", "soon", 1);
  ExpectInvalid({}, "--drain_lead: got \"soon\"");
  unsetenv("ROPE_DRAIN_LEAD");
}

TEST(OptionsTest, ConfigFileSetsWhatTheCommandLineDoesNot) {
  const std::string path = rope::testing::TemporaryFolder() + "/rope.conf";
  std::ofstream(path) << "# a comment\nlisten=[\"127.0.0.1:1\", \"unix:/s\"]\nmemory_bytes=768MiB\n"
                         "enable_shared_memory=true\nthreads=5\n";
  const ServerOptions options = Parse({"--config_file=" + path, "--threads=3"});
  EXPECT_THAT(options.listen, ElementsAre("127.0.0.1:1", "unix:/s"));
  EXPECT_EQ(options.memory_bytes, 768 * limits::kMiB);
  EXPECT_TRUE(options.shared_memory.enabled);
  EXPECT_EQ(options.threads, 3);
}

TEST(OptionsTest, ConfigFileThatIsMissingOrHasAnUnknownNameIsInvalid) {
  ExpectInvalid({"--config_file=/nonexistent/rope.conf"}, "/nonexistent/rope.conf");
  const std::string path = rope::testing::TemporaryFolder() + "/typo.conf";
  std::ofstream(path) << "thread=5\n";
  ExpectInvalid({"--config_file=" + path}, "thread");
}

TEST(OptionsTest, BadValuesNameTheirFlag) {
  for (const std::string address :
       {"host", "host:", ":1", "host:x", "host:65536", "host:-1", "unix:"}) {
    ExpectInvalid({"--listen=" + address}, "--listen: got \"" + address + "\", want HOST:PORT");
  }
  ExpectInvalid({"--metrics_listen=unix:/tmp/m"}, "--metrics_listen: got");
  ExpectInvalid({"--device=tpu"}, "--device: got \"tpu\", want auto, cpu, cuda");
  ExpectInvalid({"--poll_spin_us=-1"}, "--poll_spin_us: got \"-1\"");
  ExpectInvalid({"--poll_spin_us=1000001"}, "--poll_spin_us: got");
  ExpectInvalid({"--poll_spin_us="}, "--poll_spin_us: ");
  ExpectInvalid({"--drain_lead=5"}, "--drain_lead: got \"5\"");
  ExpectInvalid({"--drain_lead=-1s"}, "--drain_lead: got \"-1s\"");
  ExpectInvalid({"--drain_lead=inf"}, "--drain_lead: got \"inf\"");
  ExpectInvalid({"--max_message_bytes=1048575"}, "--max_message_bytes: got \"1048575\"");
  ExpectInvalid({"--max_message_bytes=99999999999"}, "--max_message_bytes: got");
  ExpectInvalid({"--table_cache_bytes=x"}, "--table_cache_bytes: got \"x\"");
  ExpectInvalid({"--threads=1.5"}, "--threads: got \"1.5\"");
  ExpectInvalid({"--log_level=loud"}, "--log_level: got \"loud\"");
}

TEST(OptionsTest, UnknownArgumentsAndMissingValuesAreInvalid) {
  for (const char* argument : {"--nonsense=1", "listen=a:1", "-listen=a:1", "", "--listen2"}) {
    ExpectInvalid({argument}, "command line: got \"" + std::string(argument) + "\"");
  }
  ExpectInvalid({"--listen"}, "--listen: 1 required HOST:PORT|unix:PATH");
}

TEST(OptionsTest, ReflectionIsOffBesideAnAccessFileUnlessItIsAskedFor) {
  EXPECT_FALSE(Parse({"--access_file=/a"}).reflection);
  EXPECT_TRUE(Parse({"--access_file=/a", "--enable_reflection"}).reflection);
}

TEST(OptionsTest, UnknownFlagNamesTheNearest) {
  ExpectInvalid({"--lisen=a:1"}, "did you mean --listen?");
  ExpectInvalid({"--drain-lead=1s"}, "did you mean --drain_lead?");
}

TEST(OptionsTest, FlagsWithoutEffectAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--socket_mode=660"}, "--socket_mode has no effect: no --listen is unix:PATH"},
      {{"--shared_memory_bytes=1GiB"},
       "--shared_memory_bytes has no effect without --enable_shared_memory"},
      {{"--session_memory_bytes=1GiB"},
       "--session_memory_bytes has no effect without --enable_shared_memory"},
      {{"--enable_shared_memory", "--shared_memory_bytes=1GiB", "--session_memory_bytes=2GiB"},
       "--session_memory_bytes has no effect above --shared_memory_bytes, which is 1073741824"},
      {{"--threads=1024"}, "--threads is 1024, more than the processors: "},
      {{"--threads=1", "--poll_spin_us=9"}, "--poll_spin_us has no effect with one processor"},
      {{"--table_cache_bytes=0"},
       "--table_cache_bytes is 0: every request computes its rows again"},
  };
  for (const auto& [flags, text] : cases) {
    EXPECT_THAT(Parse(flags).warnings, ElementsAre(HasSubstr(text))) << flags.back();
  }
  EXPECT_THAT(Parse({}).warnings, IsEmpty());
  EXPECT_THAT(Parse({"--listen=unix:/a", "--socket_mode=660", "--enable_shared_memory",
                     "--shared_memory_bytes=2GiB", "--session_memory_bytes=1GiB", "--threads=1",
                     "--table_cache_bytes=1"})
                  .warnings,
              IsEmpty());
}

TEST(ModelOptionTest, FileIsRead) {
  const std::string path = rope::testing::TemporaryFolder() + "/model.json";
  std::ofstream(path) << "{\"head_dim\": 64}";
  const ServerOptions options = Parse({"--model=a/b=" + path, "--model", "c=" + path});
  ASSERT_EQ(options.models.size(), 2U);
  EXPECT_EQ(options.models[0].name, "a/b");
  EXPECT_EQ(options.models[0].config_json, "{\"head_dim\": 64}");
  EXPECT_EQ(options.models[1].name, "c");
}

TEST(ModelOptionTest, BadValuesAndFilesNameTheFlag) {
  for (const std::string value : {"x", "=x", "x="}) {
    ExpectInvalid({"--model=" + value}, "--model: got \"" + value + "\", want NAME=CONFIG.json");
  }
  for (const std::string& path :
       {std::string("/nonexistent.json"), rope::testing::TemporaryFolder()}) {
    EXPECT_THAT(ParseOptions({"--model=a=" + path}), IsNotFound("--model: got " + path));
  }
}

// As Kubernetes mounts a ConfigMap.
TEST(OptionsTest, FolderOfModelsIsReadByName) {
  const std::string folder = rope::testing::TemporaryFolder();
  std::filesystem::create_directory(folder + "/..data");
  std::ofstream(folder + "/..data/mine.json") << "{\"head_dim\": 64}";
  std::filesystem::create_symlink("..data/mine.json", folder + "/mine.json");
  std::ofstream(folder + "/a-model.json") << "{}";
  std::ofstream(folder + "/README.md") << "no model";
  std::filesystem::create_directory(folder + "/folder.json");
  const ServerOptions options =
      Parse({"--model_dir=" + folder, "--model=first=" + folder + "/mine.json"});
  ASSERT_EQ(options.models.size(), 3U);
  EXPECT_EQ(options.models[0].name, "first");
  EXPECT_EQ(options.models[1].name, "a-model");
  EXPECT_EQ(options.models[2].name, "mine");
  EXPECT_EQ(options.models[2].config_json, "{\"head_dim\": 64}");
  EXPECT_THAT(ParseOptions({"--model_dir=" + folder + "x"}),
              IsNotFound("--model_dir: got " + folder + "x, want a folder"));
}

TEST(HelpTest, DefaultsAreTheRealOnes) {
  const std::string help = Help();
  const ServerOptions options;
  EXPECT_THAT(help, HasSubstr("(default " + options.listen[0] + ")"));
  EXPECT_THAT(help,
              HasSubstr("cancel it (default " + absl::FormatDuration(options.drain_timeout) + ")"));
  const MemoryShares most = DivideMemory(int64_t{1} << 40, std::nullopt, std::nullopt);
  const auto in_mib = [](int64_t bytes) { return std::to_string(bytes / limits::kMiB) + "MiB"; };
  EXPECT_THAT(help, HasSubstr("Largest request (default " + in_mib(most.message)));
  EXPECT_THAT(help, HasSubstr("tables (default " + in_mib(most.tables)));
}

TEST(WithoutExceptionsTest, ADefectFailsItsCallAlone) {
  EXPECT_THAT(
      WithoutExceptions([]() -> absl::Status { return std::map<int, absl::Status>().at(1); }),
      StatusIs(absl::StatusCode::kInternal, HasSubstr("map::at")));
}

TEST(WithoutExceptionsTest, FailedAllocationIsAStatus) {
  const auto fail = [] { std::rethrow_exception(std::make_exception_ptr(std::bad_alloc())); };
  const auto status = WithoutExceptions([&] {
    fail();
    return absl::OkStatus();
  });
  EXPECT_EQ(status, OutOfMemory());
  const auto result = WithoutExceptions([&]() -> absl::StatusOr<int> {
    fail();
    return 7;
  });
  EXPECT_EQ(result.status(), OutOfMemory());
  EXPECT_EQ(WithoutExceptions([]() -> absl::StatusOr<int> { return 7; }).value(), 7);
}

TEST(ShortTextTest, LeavesShortOnesAndCutsLongOnes) {
  const auto max = static_cast<size_t>(limits::kErrorBytesMax);
  const std::string fits(max, 'x');
  EXPECT_EQ(ShortText(fits), fits);
  const std::string cut = ShortText(fits + "y");
  EXPECT_EQ(cut.size(), max);
  EXPECT_THAT(cut, EndsWith("x..."));
  EXPECT_EQ(ShortText("0123456789", 8), "01234...");
}

TEST(ShortTextTest, CutsBetweenCharacters) {
  const auto max = static_cast<size_t>(limits::kErrorBytesMax);
  for (size_t before = 0; before < 4; ++before) {
    std::string message(before, 'x');
    while (message.size() <= max) message += "\xE2\x82\xAC";  // a euro sign, three bytes
    const std::string cut = ShortText(message);
    EXPECT_LE(cut.size(), max);
    EXPECT_EQ((cut.size() - before) % 3, 0U) << before;
    EXPECT_THAT(cut, EndsWith("\xE2\x82\xAC..."));
  }
}

TEST(HousekeeperTest, WakeHurriesTheFirstLookWhateverTheOthersDo) {
  std::atomic<int> looks = 0;
  proto::Notification second;
  Housekeeper housekeeper({[&] {
                             if (++looks == 2) second.Notify();
                             return absl::Hours(1);
                           },
                           [] { return absl::Milliseconds(1); }});
  while (looks == 0) std::this_thread::yield();
  housekeeper.Wake();
  EXPECT_TRUE(second.WaitForNotificationWithTimeout(std::chrono::seconds(30)));
}

}  // namespace
}  // namespace rope::server
