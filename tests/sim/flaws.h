// Flaws: bugs of the simulated engine itself, to test that the referee notices them.
#pragma once

namespace farandole::sim {

struct Flaws {
  bool completes_before_the_last_entry = false;
  bool one_survivor_is_not_notified = false;
  bool joined_members_bring_data = false;
  bool releases_name_the_first_member = false;
  bool ignores_generations = false;
  bool identity_without_step_number = false;
  bool never_ticks = false;
  bool identity_includes_rows = false;
  bool each_member_chooses_its_algorithm = false;
  bool counts_no_waits = false;
  bool ignores_mispredictions = false;
  bool polls_release_names = false;
  bool dropped_calls_release_names = false;
  bool leaves_before_its_writes_are_seen = false;
  bool loses_steps_that_all_have_entered = false;
  bool a_leave_ends_other_groups = false;
  bool the_last_leaver_is_blamed = false;

  // The next flaws show only in groups with members on several hosts.
  bool sends_its_entry_too_early = false;
  bool does_not_compare_entries = false;
  bool entries_have_no_generation = false;
  bool drops_entries_of_a_newer_generation = false;
  bool does_not_await_the_last_host = false;
  bool local_members_do_not_wait = false;
  bool all_entered_flag_before_all_entries = false;
  bool ignores_mispredictions_between_hosts = false;
  bool does_not_tell_local_members_of_the_end = false;
  bool ends_at_once = false;
  bool sends_no_end = false;
  bool sends_no_end_when_lane_0_leaves = false;
  bool does_not_answer_an_end = false;
  bool ends_name_the_completed_step = false;
  bool enters_after_its_end = false;
  bool lane_0_leaves_in_a_step = false;
  bool leaves_in_a_step = false;
  bool drops_a_step_that_all_hosts_have_entered = false;
  bool deaths_are_not_passed_on = false;
  bool passes_a_leave_on_as_a_death = false;
  bool forgets_the_first_cause = false;
};

}  // namespace farandole::sim
