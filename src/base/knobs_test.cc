#include "base/knobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace farandole {
namespace {

using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Environment environment_of(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto variable = variables.find(name);
    return variable == variables.end() ? nullptr : variable->second.c_str();
  };
}

Result<Knobs> read(const Variables& variables) {
  Knobs knobs;
  const Status status = read_knobs(knobs, environment_of(variables));
  if (!status.ok()) return status;
  return knobs;
}

bool is_set(std::string_view name, const Variables& variables) {
  return is_set(knob_named(name), environment_of(variables));
}

TEST(KnobRows, have_unique_names_flags_and_fields) {
  std::set<std::string_view> names;
  std::set<std::string_view> flags;
  std::set<KnobField> fields;
  Knobs knobs;
  for (const KnobRow& row : kKnobs) {
    EXPECT_EQ(&knob_named(row.name), &row);
    EXPECT_TRUE(fields.insert(row.field(knobs)).second) << row.name;
    EXPECT_TRUE(row.name.starts_with("FARANDOLE_")) << row.name;
    EXPECT_TRUE(row.horovod_name.empty() || row.horovod_name.starts_with("HOROVOD_"))
        << row.horovod_name;
    EXPECT_TRUE(row.flag.empty() || row.flag.starts_with("--")) << row.flag;
    EXPECT_TRUE(row.help.ends_with('.')) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.horovod_name.empty() || names.insert(row.horovod_name).second)
        << row.horovod_name;
    EXPECT_TRUE(row.flag.empty() || flags.insert(row.flag).second) << row.flag;
  }
}

TEST(KnobRows, allow_their_defaults_and_read_what_they_write) {
  for (const KnobRow& row : kKnobs) {
    Knobs knobs;
    const std::string text = value_text(row, knobs);
    EXPECT_TRUE(set_knob(knobs, row, row.name, text).ok()) << row.name;
    EXPECT_EQ(value_text(row, knobs), text) << row.name;
  }
}

TEST(Knobs, have_their_defaults_in_an_empty_environment) {
  const auto knobs = read({});
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->topology.rank, 0);
  EXPECT_EQ(knobs->topology.size, 1);
  EXPECT_EQ(knobs->rendezvous_descriptor, -1);
  EXPECT_EQ(knobs->start_timeout, std::chrono::minutes(2));
  EXPECT_EQ(knobs->bucket_bytes, 16U << 20);
  EXPECT_EQ(knobs->log_level, "warning");
  EXPECT_FALSE(knobs->log_hide_time);
  for (const KnobRow& row : kKnobs) EXPECT_FALSE(is_set(row.name, {})) << row.name;
}

TEST(Knobs, the_new_name_overrides_the_old_name) {
  const Variables variables = {{"FARANDOLE_SIZE", "4"},
                               {"HOROVOD_SIZE", "8"},
                               {"HOROVOD_RANK", "3"},
                               {"HOROVOD_START_TIMEOUT", "7"},
                               {"HOROVOD_FUSION_THRESHOLD", "0"}};
  const auto knobs = read(variables);
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->topology.size, 4);
  EXPECT_EQ(knobs->topology.rank, 3);
  EXPECT_EQ(knobs->start_timeout, std::chrono::seconds(7));
  EXPECT_EQ(knobs->bucket_bytes, 0U);
  EXPECT_TRUE(is_set("FARANDOLE_RANK", variables));
  EXPECT_FALSE(is_set("FARANDOLE_LOCAL_RANK", variables));
}

TEST(Knobs, the_new_name_overrides_an_old_off_switch) {
  const Variables off = {{"HOROVOD_STALL_CHECK_DISABLE", "1"},
                         {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60"}};
  EXPECT_EQ(read(off)->stall_warning, std::chrono::seconds(0));
  EXPECT_EQ(read(off)->stall_limit, std::chrono::seconds(0));
  EXPECT_TRUE(is_set("FARANDOLE_STALL_LIMIT", off));
  const auto both = read({{"HOROVOD_STALL_CHECK_DISABLE", "1"}, {"FARANDOLE_STALL_WARNING", "5"}});
  EXPECT_EQ(both->stall_warning, std::chrono::seconds(5));
  const Variables on = {{"HOROVOD_STALL_CHECK_DISABLE", "0"}};
  EXPECT_EQ(read(on)->stall_warning, std::chrono::seconds(10));
  EXPECT_FALSE(is_set("FARANDOLE_STALL_WARNING", on));
}

TEST(Knobs, a_stall_is_reported_before_the_ranks_reach_the_limit) {
  const auto warning = [](int given, int limit) {
    Knobs knobs;
    knobs.stall_warning = std::chrono::seconds(given);
    knobs.stall_limit = std::chrono::seconds(limit);
    return stall_warning_time(knobs).count();
  };
  EXPECT_EQ(warning(10, 0), 10);
  EXPECT_EQ(warning(0, 0), 0);
  EXPECT_EQ(warning(10, 60), 10);
  EXPECT_EQ(warning(10, 8), 4);
  EXPECT_EQ(warning(0, 60), 30);
  EXPECT_EQ(warning(0, 1), 1);
}

TEST(Knobs, an_empty_value_counts_as_not_set) {
  const Variables variables = {
      {"FARANDOLE_RANK", ""}, {"HOROVOD_RANK", "2"}, {"FARANDOLE_SIZE", ""}};
  const auto knobs = read(variables);
  ASSERT_TRUE(knobs.ok());
  EXPECT_EQ(knobs->topology.rank, 2);
  EXPECT_EQ(knobs->topology.size, 1);
  EXPECT_FALSE(is_set("FARANDOLE_SIZE", variables));
}

TEST(Knobs, words_and_switches_are_read_in_any_case) {
  const auto knobs = read({{"HOROVOD_LOG_LEVEL", "DEBUG"}, {"FARANDOLE_LOG_HIDE_TIME", "True"}});
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->log_level, "debug");
  EXPECT_TRUE(knobs->log_hide_time);
  EXPECT_FALSE(read({{"FARANDOLE_LOG_HIDE_TIME", "off"}})->log_hide_time);
}

TEST(Knobs, texts_stay_as_they_are) {
  EXPECT_EQ(read({})->timeline_path, "");
  const auto knobs = read({{"HOROVOD_TIMELINE", "/Tmp/a b.json"}});
  ASSERT_TRUE(knobs.ok()) << knobs.status().message();
  EXPECT_EQ(knobs->timeline_path, "/Tmp/a b.json");
  EXPECT_EQ(timeline_path_of(*knobs), "/Tmp/a b.json");
  EXPECT_EQ(timeline_path_of(*read({{"HOROVOD_TIMELINE", "DYNAMIC"}})), "");
}

TEST(Knobs, list_the_values_that_must_be_equal_on_all_ranks) {
  Knobs knobs;
  knobs.bucket_bytes = 7;
  knobs.stall_limit = std::chrono::seconds(9);  // may differ
  auto values = knobs.same_on_all_ranks();
  EXPECT_EQ(values["FARANDOLE_BUCKET_BYTES"], "7");
  EXPECT_EQ(values["FARANDOLE_CHECK_PARAMETERS"], "5000");
  EXPECT_FALSE(values.contains("FARANDOLE_STALL_LIMIT"));
}

struct InvalidValue {
  const char* variable;
  const char* value;
  const char* allowed;
};

class InvalidKnobTest : public ::testing::TestWithParam<InvalidValue> {};

TEST_P(InvalidKnobTest, is_rejected_with_the_variable_the_value_and_the_allowed_values) {
  const InvalidValue& invalid = GetParam();
  const auto knobs = read({{invalid.variable, invalid.value}});
  ASSERT_FALSE(knobs.ok());
  EXPECT_EQ(knobs.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(knobs.status().message(), HasSubstr(invalid.variable));
  EXPECT_THAT(knobs.status().message(), HasSubstr(std::string("\"") + invalid.value + "\""));
  EXPECT_THAT(knobs.status().message(), HasSubstr(invalid.allowed));
}

INSTANTIATE_TEST_SUITE_P(
    Values, InvalidKnobTest,
    ::testing::Values(InvalidValue{"FARANDOLE_RANK", "-1", "from 0 to 1048575"},
                      InvalidValue{"FARANDOLE_RANK", "1x", "a whole number"},
                      InvalidValue{"FARANDOLE_RANK", " 1", "a whole number"},
                      InvalidValue{"FARANDOLE_SIZE", "0", "from 1 to"},
                      InvalidValue{"HOROVOD_SIZE", "many", "a whole number"},
                      InvalidValue{"FARANDOLE_BUCKET_BYTES", "99999999999999999999", "from 0 to"},
                      InvalidValue{"FARANDOLE_START_TIMEOUT", "0.5", "from 1 to 604800"},
                      InvalidValue{"FARANDOLE_START_TIMEOUT", "9223372036854775807", "from 1 to"},
                      InvalidValue{"FARANDOLE_LOG_LEVEL", "loud", "one of trace|debug|info"},
                      InvalidValue{"FARANDOLE_LOG_LEVEL", "trace|debug", "one of trace|debug|info"},
                      InvalidValue{"FARANDOLE_LOG_HIDE_TIME", "2", "0 or 1"}));

TEST(Knobs, an_error_quotes_the_name_and_the_value_that_the_user_wrote) {
  Knobs knobs;
  const KnobRow& row = knob_named("FARANDOLE_LOG_LEVEL");
  EXPECT_TRUE(set_knob(knobs, row, "--log-level", "info").ok());
  EXPECT_EQ(set_knob(knobs, row, "--log-level", "loud").message(),
            "--log-level is \"loud\"; it must be one of trace|debug|info|warning|error|fatal");
  EXPECT_FALSE(set_knob(knobs, row, "--log-level", "").ok());
}

}  // namespace
}  // namespace farandole
