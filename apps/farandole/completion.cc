#include "completion.h"

#include <string_view>
#include <vector>

#include "base/format.h"

namespace farandole {
namespace {

std::vector<const CLI::Option*> shown_options(const CLI::App& command) {
  return command.get_options(
      [](const CLI::Option* option) { return !option->get_group().empty(); });
}

// The options of a command as words: "-n --workers -x --output-dir".
std::string option_words(const CLI::App& command) {
  std::string words;
  for (const CLI::Option* option : shown_options(command)) {
    for (const auto& name : option->get_snames()) words += " -" + name;
    for (const auto& name : option->get_lnames()) words += " --" + name;
  }
  return words.substr(words.empty() ? 0 : 1);
}

std::string command_words(const CLI::App& app) {
  std::string words;
  for (const CLI::App* command : app.get_subcommands({})) words += command->get_name() + " ";
  return words + option_words(app);
}

// Returns one branch per command for a `case` of bash or zsh. `prefix` and `suffix` enclose the
// words of a command.
std::string case_branches(const CLI::App& app, std::string_view prefix, std::string_view suffix) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands({}))
    text += format_text("      {}) {}{}{} ;;\n", command->get_name(), prefix,
                        option_words(*command), suffix);
  return text;
}

// Words that do not begin with `-` are completed as files, because the program of `farandole run`
// and its arguments are often files.
std::string bash_script(const CLI::App& app) {
  return format_text(R"(_farandole() {{
  local words= word=${{COMP_WORDS[COMP_CWORD]}}
  if [ "$COMP_CWORD" = 1 ]; then
    words='{}'
  elif [[ $word == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{}    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _farandole farandole
)",
                     command_words(app), case_branches(app, "words='", "'"));
}

std::string zsh_script(const CLI::App& app) {
  return format_text(R"(#compdef farandole
_farandole() {{
  if (( CURRENT == 2 )); then
    compadd -- {}
  elif [[ $PREFIX == -* ]]; then
    case $words[2] in
{}    esac
  else
    _files
  fi
}}
compdef _farandole farandole
)",
                     command_words(app), case_branches(app, "compadd -- ", ""));
}

std::string quoted_for_fish(std::string_view text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\'' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return quoted + "'";
}

std::string fish_script(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands({})) {
    text += format_text("complete -c farandole -f -n __fish_use_subcommand -a {} -d {}\n",
                        command->get_name(), quoted_for_fish(command->get_description()));
    for (const CLI::Option* option : shown_options(*command)) {
      text += format_text("complete -c farandole -n '__fish_seen_subcommand_from {}'",
                          command->get_name());
      for (const auto& name : option->get_snames()) text += " -s " + name;
      for (const auto& name : option->get_lnames()) text += " -l " + name;
      text += format_text("{} -d {}\n", option->get_items_expected_max() > 0 ? " -r" : "",
                          quoted_for_fish(option->get_description()));
    }
  }
  return text;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(app);
  if (shell == "zsh") return zsh_script(app);
  return shell == "fish" ? fish_script(app) : "";
}

}  // namespace farandole
