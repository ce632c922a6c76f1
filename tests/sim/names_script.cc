#include "names_script.h"

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/format.h"
#include "random_calls.h"

namespace farandole::sim {
namespace {

constexpr int kNames = 4;  // few names, so programs often submit a name that is in use

class NamesWriter {
 public:
  NamesWriter(Random& random, Script& script) : random_(random), script_(script) {}

  void write() {
    for (int left = random_.between(20, 80); left > 0; --left) {
      if (random_.chance(40) && !open_calls_.empty())
        wait(random_.below(static_cast<int>(open_calls_.size())));
      else
        submit();
    }
    while (!open_calls_.empty()) wait(0);
    for (int worker = 0; worker < script_.workers; ++worker)
      script_.programs.push_back(program(worker));
  }

 private:
  using Name = std::pair<int, std::string>;       // (group, name)
  using UnnamedKind = std::pair<int, Operation>;  // (group, operation)

  // Adds a call to all programs. The call follows the documented rules of names. A name is in use
  // from the submission of a call until the program has waited for the call. The numbers in
  // automatic names begin again at 0 when the program has waited for all unnamed calls of the
  // operation.
  void submit() {
    const int group = random_.below(static_cast<int>(script_.groups.size()));
    const bool unnamed = random_.chance(60);
    Call call{group, random_signature(random_, format_text("n{}", random_.below(kNames)))};
    call.makers = script_.members(group);
    call.unnamed = unnamed;
    if (unnamed) {
      auto& [next_index, open] = unnamed_calls_[{group, call.common.operation}];
      if (open++ == 0) next_index = 0;
      call.common.name =
          format_text("{}.noname.{}", row_of(call.common.operation).name, next_index++);
    } else if (const auto [used, is_free] =
                   names_in_use_.emplace(Name(group, call.common.name), call.common.operation);
               !is_free) {
      common_actions_.emplace_back(SubmitRejected{group, call.common.name, used->second});
      return;
    }
    const auto number = static_cast<int>(script_.calls.size());
    common_actions_.emplace_back(Submit{number, false});
    if (random_.chance(85))
      open_calls_.push_back({number, unnamed});
    else
      never_waited_for_.insert(number);
    script_.calls.push_back(std::move(call));
  }

  void wait(int index) {
    const auto [number, unnamed] = open_calls_[static_cast<std::size_t>(index)];
    open_calls_.erase(open_calls_.begin() + index);
    common_actions_.emplace_back(Wait{number});
    const Call& call = script_.call(number);
    if (unnamed) {
      --unnamed_calls_[{call.group, call.common.operation}].open_count;
    } else {
      names_in_use_.erase({call.group, call.common.name});
    }
  }

  int group_of(const Action& action) const {
    if (const auto* submit = std::get_if<Submit>(&action)) return script_.call(submit->call).group;
    if (const auto* wait = std::get_if<Wait>(&action)) return script_.call(wait->call).group;
    return std::get<SubmitRejected>(action).group;
  }

  // Returns a worker's program: the common actions, and between these actions polls, drops and
  // pauses of this worker.
  std::vector<Action> program(int worker) {
    std::vector<Action> actions;
    std::vector<int> pollable;   // calls submitted, not yet waited for, and not dropped
    std::vector<int> waitable;   // calls that the program will wait for
    std::vector<int> droppable;  // calls in pollable that the program never waits for
    const int pauses_percent = random_.below(15);
    for (Action action : common_actions_) {
      if (!script_.member_of(group_of(action), worker)) continue;
      if (auto* wait = std::get_if<Wait>(&action))
        wait->call = interchangeable_call(wait->call, waitable);
      actions.push_back(action);
      if (const auto* submit = std::get_if<Submit>(&action)) {
        pollable.push_back(submit->call);
        if (!never_waited_for_.contains(submit->call)) waitable.push_back(submit->call);
        if (never_waited_for_.contains(submit->call)) droppable.push_back(submit->call);
      }
      if (const auto* wait = std::get_if<Wait>(&action)) {
        std::erase(pollable, wait->call);
        std::erase(waitable, wait->call);
      }
      while (!pollable.empty() && random_.chance(40))
        actions.emplace_back(Poll{random_.pick(pollable)});
      if (!droppable.empty() && random_.chance(30)) {
        actions.emplace_back(Drop{droppable.back()});
        std::erase(pollable, droppable.back());
        droppable.pop_back();
      }
      if (random_.chance(pauses_percent)) {
        const Time time = random_.between(1, 5) * script_.delay_max;
        script_.pauses += time;
        actions.emplace_back(Pause{time, random_.chance(30)});
      }
    }
    return actions;
  }

  // If this call is unnamed, returns a random unnamed call among `calls` with the same group and
  // operation. Otherwise, or if there is none, returns this call itself.
  int interchangeable_call(int number, const std::vector<int>& calls) {
    const Call& call = script_.call(number);
    std::vector<int> alternatives;
    for (const int other : calls) {
      const Call& its_call = script_.call(other);
      if (call.unnamed && its_call.unnamed && its_call.group == call.group &&
          its_call.common.operation == call.common.operation)
        alternatives.push_back(other);
    }
    return alternatives.empty() ? number : random_.pick(alternatives);
  }

  struct OpenCall {
    int number;
    bool unnamed;
  };
  struct UnnamedCalls {
    int next_index = 0;
    int open_count = 0;  // the calls that the program has not waited for
  };

  Random& random_;
  Script& script_;
  std::vector<Action> common_actions_;
  std::vector<OpenCall> open_calls_;
  std::set<int> never_waited_for_;          // calls
  std::map<Name, Operation> names_in_use_;  // for each name: the operation that uses it
  std::map<UnnamedKind, UnnamedCalls> unnamed_calls_;
};

}  // namespace

void write_names_script(Random& random, Script& script) { NamesWriter(random, script).write(); }

}  // namespace farandole::sim
