#include "base/knobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace farandole {
namespace {

using ::testing::HasSubstr;

Result<Knobs> read(const std::map<std::string, std::string>& environment) {
  return Knobs::read([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(KnobRows, are_indexed_by_the_enum_and_name_each_thing_once) {
  std::set<std::string_view> names;
  std::set<std::string_view> flags;
  std::size_t index = 0;
  for (const KnobRow& row : knob_rows()) {
    EXPECT_EQ(row.knob, static_cast<Knob>(index++));
    EXPECT_EQ(&row_of(row.knob), &row);
    EXPECT_TRUE(row.name.starts_with("FARANDOLE_")) << row.name;
    EXPECT_TRUE(row.old_name.empty() || row.old_name.starts_with("HOROVOD_")) << row.old_name;
    EXPECT_TRUE(row.flag.empty() || row.flag.starts_with("--")) << row.flag;
    EXPECT_TRUE(row.help.ends_with('.')) << row.name;
    const bool is_number = row.type == KnobType::kInteger || row.type == KnobType::kSwitch;
    EXPECT_TRUE(is_number || !row.is_of_frontends) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.old_name.empty() || names.insert(row.old_name).second) << row.old_name;
    EXPECT_TRUE(row.flag.empty() || flags.insert(row.flag).second) << row.flag;
  }
  EXPECT_EQ(index, kKnobCount);
}

TEST(Knobs, have_their_defaults_in_an_empty_environment) {
  const auto knobs = read({});
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->integer(Knob::kRank), 0);
  EXPECT_EQ(knobs->integer(Knob::kSize), 1);
  EXPECT_EQ(knobs->integer(Knob::kRendezvousDescriptor), -1);
  EXPECT_EQ(knobs->integer(Knob::kStartTimeout), 120);
  EXPECT_EQ(knobs->integer(Knob::kBucketBytes), 16 << 20);
  EXPECT_EQ(knobs->text(Knob::kLogLevel), "warning");
  EXPECT_EQ(knobs->integer(Knob::kLogHideTime), 0);
  for (const KnobRow& row : knob_rows()) EXPECT_FALSE(knobs->is_set(row.knob)) << row.name;
}

TEST(Knobs, read_the_new_name_the_old_name_and_prefer_the_new) {
  const auto knobs = read({{"FARANDOLE_SIZE", "4"},
                           {"HOROVOD_SIZE", "8"},
                           {"HOROVOD_RANK", "3"},
                           {"HOROVOD_FUSION_THRESHOLD", "0"}});
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->integer(Knob::kSize), 4);
  EXPECT_EQ(knobs->integer(Knob::kRank), 3);
  EXPECT_EQ(knobs->integer(Knob::kBucketBytes), 0);
  EXPECT_TRUE(knobs->is_set(Knob::kRank));
  EXPECT_FALSE(knobs->is_set(Knob::kLocalRank));
}

TEST(Knobs, an_old_switch_turns_off_unless_the_new_name_says_otherwise) {
  const auto off =
      read({{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60"}});
  ASSERT_TRUE(off.ok()) << off.status().message();
  EXPECT_EQ(off->integer(Knob::kStallWarning), 0);
  EXPECT_EQ(off->integer(Knob::kStallLimit), 0);
  EXPECT_TRUE(off->is_set(Knob::kStallLimit));
  const auto both = read({{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"FARANDOLE_STALL_WARNING", "5"}});
  EXPECT_EQ(both->integer(Knob::kStallWarning), 5);
  const auto on = read({{"HOROVOD_STALL_CHECK_DISABLE", "0"}});
  EXPECT_EQ(on->integer(Knob::kStallWarning), 10);
  EXPECT_FALSE(on->is_set(Knob::kStallWarning));
}

TEST(Knobs, an_empty_value_counts_as_not_set) {
  const auto knobs = read({{"FARANDOLE_RANK", ""}, {"HOROVOD_RANK", "2"}, {"FARANDOLE_SIZE", ""}});
  ASSERT_TRUE(knobs.ok());
  EXPECT_EQ(knobs->integer(Knob::kRank), 2);
  EXPECT_EQ(knobs->integer(Knob::kSize), 1);
  EXPECT_FALSE(knobs->is_set(Knob::kSize));
}

TEST(Knobs, words_and_switches_are_read_in_any_case) {
  const auto knobs = read({{"HOROVOD_LOG_LEVEL", "DEBUG"}, {"FARANDOLE_LOG_HIDE_TIME", "True"}});
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->text(Knob::kLogLevel), "debug");
  EXPECT_EQ(knobs->integer(Knob::kLogHideTime), 1);
  EXPECT_EQ(read({{"FARANDOLE_LOG_HIDE_TIME", "off"}})->integer(Knob::kLogHideTime), 0);
}

TEST(Knobs, texts_stay_as_they_are) {
  EXPECT_EQ(read({})->text(Knob::kTimeline), "");
  const auto knobs = read({{"HOROVOD_TIMELINE", "/Tmp/a b.json"}});
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->text(Knob::kTimeline), "/Tmp/a b.json");
  EXPECT_TRUE(knobs->is_set(Knob::kTimeline));
}

struct BadValue {
  const char* variable;
  const char* value;
  const char* allowed;
};

class KnobsReject : public ::testing::TestWithParam<BadValue> {};

TEST_P(KnobsReject, a_bad_value_naming_variable_value_and_what_is_allowed) {
  const BadValue& bad = GetParam();
  const auto knobs = read({{bad.variable, bad.value}});
  ASSERT_FALSE(knobs.ok());
  EXPECT_EQ(knobs.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(knobs.status().message(), HasSubstr(bad.variable));
  EXPECT_THAT(knobs.status().message(), HasSubstr(std::string("\"") + bad.value + "\""));
  EXPECT_THAT(knobs.status().message(), HasSubstr(bad.allowed));
}

INSTANTIATE_TEST_SUITE_P(
    Values, KnobsReject,
    ::testing::Values(BadValue{"FARANDOLE_RANK", "-1", "from 0 to 1048575"},
                      BadValue{"FARANDOLE_RANK", "1x", "a whole number"},
                      BadValue{"FARANDOLE_RANK", " 1", "a whole number"},
                      BadValue{"FARANDOLE_SIZE", "0", "from 1 to"},
                      BadValue{"HOROVOD_SIZE", "many", "a whole number"},
                      BadValue{"FARANDOLE_BUCKET_BYTES", "99999999999999999999", "from 0 to"},
                      BadValue{"FARANDOLE_START_TIMEOUT", "0.5", "from 1 to 604800"},
                      BadValue{"FARANDOLE_LOG_LEVEL", "loud", "one of trace|debug|info"},
                      BadValue{"FARANDOLE_LOG_LEVEL", "trace|debug", "one of trace|debug|info"},
                      BadValue{"FARANDOLE_LOG_HIDE_TIME", "2", "0 or 1"}));

TEST(Knobs, check_speaks_of_what_the_user_wrote) {
  const KnobRow& row = row_of(Knob::kLogLevel);
  EXPECT_TRUE(Knobs::check(row, "--log-level", "info").ok());
  EXPECT_EQ(Knobs::check(row, "--log-level", "loud").message(),
            "--log-level is \"loud\"; it must be one of trace|debug|info|warning|error|fatal");
  EXPECT_FALSE(Knobs::check(row, "--log-level", "").ok());
}

TEST(KnobsDeathTest, asking_for_the_wrong_type_is_a_bug) {
  const auto knobs = read({});
  EXPECT_DEATH(knobs->integer(Knob::kLogLevel), "this knob is a word");
  EXPECT_DEATH(knobs->text(Knob::kRank), "this knob is a number");
}

}  // namespace
}  // namespace farandole
