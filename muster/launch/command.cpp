#include "muster/launch/command.h"

#include "muster/base/log.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::launch {
namespace {

using Kind = FileFacts::Kind;

bool has_slash(std::string_view name) { return name.find('/') != std::string_view::npos; }

bool can_execute(const FileFacts& file) { return file.kind == Kind::Regular && file.executable; }

// The path at which `name` is found in PATH; nothing if it is not.
std::optional<std::string> find_in_path(const Facts& facts, std::string_view name) {
  const std::string path = find_variable(facts.variables, "PATH").value_or("/bin:/usr/bin");
  std::string_view rest = path;
  while (true) {
    const std::size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    // An empty entry is the current folder.
    std::string candidate = fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    if (can_execute(facts.look_at(candidate))) return candidate;
    if (colon == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(colon + 1);
  }
}

Result<std::string> find_interpreter(const Facts& facts) {
  const std::string named = find_variable(facts.variables, "PYTHON_EXEC").value_or("");
  if (!named.empty()) {
    const bool found = has_slash(named) ? can_execute(facts.look_at(named))
                                        : find_in_path(facts, named).has_value();
    if (found) return named;
    return fail(ErrorKind::Invalid,
                fmt::format("PYTHON_EXEC is {}, which is not there or cannot be executed; set it "
                            "to a Python interpreter, or unset it",
                            log::quote(named)));
  }
  for (const std::string_view name : {"python3", "python"}) {
    if (auto path = find_in_path(facts, name)) return std::move(*path);
  }
  return fail(ErrorKind::Invalid,
              "there is neither python3 nor python in PATH; set PYTHON_EXEC to an interpreter, or "
              "use --no-python for a program that is not a Python script");
}

Result<> check_script(const Options& options, const Facts& facts) {
  const std::string& script = options.program;
  // Standard input, or a name that is another one for each worker.
  if (script == "-" || replace_macros(script, 0) != script) return {};
  if (facts.look_at(script).kind != Kind::Missing) return {};
  const bool in_path =
      options.style == Style::Torchrun && !has_slash(script) && find_in_path(facts, script);
  return fail(ErrorKind::Invalid,
              fmt::format("there is no script {}{}", log::quote(script),
                          in_path ? "; if you mean the program of that name, add --no-python"
                                  : "; check the name and the current folder"));
}

Result<> check_program(const std::string& program, const Facts& facts) {
  if (!has_slash(program)) {
    if (find_in_path(facts, program)) return {};
    const bool here = facts.look_at(program).kind == Kind::Regular;
    return fail(ErrorKind::Invalid,
                fmt::format("there is no program {} in PATH{}", log::quote(program),
                            here ? fmt::format("; the one in this folder is ./{}", program)
                                 : "; check the name, or give a path"));
  }
  const FileFacts file = facts.look_at(program);
  if (file.kind == Kind::Missing) {
    return fail(ErrorKind::Invalid,
                fmt::format("there is no program {}; check the path", log::quote(program)));
  }
  if (file.kind == Kind::Folder) {
    return fail(ErrorKind::Invalid,
                fmt::format("{} is a folder, not a program", log::quote(program)));
  }
  if (!file.executable) {
    return fail(ErrorKind::Invalid,
                fmt::format("{} is not executable; use chmod +x, or put its interpreter in front: "
                            "sh {}",
                            log::quote(program), program));
  }
  return {};
}

bool runs_python(const Options& options) {
  return options.run_path || options.python || options.module || options.style == Style::Torchrun ||
         options.program.ends_with(".py");
}

// `_` and letters, then digits too; ASCII only.
std::size_t identifier_length(std::string_view text) {
  std::size_t length = 0;
  for (const char letter : text) {
    const bool alpha =
        letter == '_' || (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    const bool digit = letter >= '0' && letter <= '9';
    if (!alpha && !(digit && length > 0)) break;
    ++length;
  }
  return length;
}

bool is_plain(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') ||
         std::string_view("_-./=:,+@%").find(letter) != std::string_view::npos;
}

}  // namespace

Result<Command> make_command(const Options& options, const Facts& facts) {
  Command command;
  if (!options.run_path && options.no_python) {
    if (options.module || options.python) {
      return fail(ErrorKind::Invalid,
                  fmt::format("--no-python and --{} exclude one another; leave one out",
                              options.module ? "module" : "python"));
    }
  } else {
    command.python = runs_python(options);
  }
  if (!command.python) {
    if (const auto checked = check_program(options.program, facts); !checked)
      return fail(checked.error());
    command.executable = options.program;
    command.arguments = options.arguments;
    command.display_name = options.program;
    return command;
  }
  const bool module = options.module && !options.run_path;
  auto interpreter = find_interpreter(facts);
  if (!interpreter) return fail(std::move(interpreter.error()));
  if (!module) {
    if (const auto checked = check_script(options, facts); !checked) return fail(checked.error());
  }
  command.executable = std::move(*interpreter);
  command.arguments.emplace_back("-u");
  if (module) command.arguments.emplace_back("-m");
  command.arguments.push_back(options.program);
  command.arguments.insert(command.arguments.end(), options.arguments.begin(),
                           options.arguments.end());
  command.display_name = options.program;
  return command;
}

std::string replace_macros(std::string_view text, int local_rank) {
  constexpr std::string_view kName = "local_rank";
  std::string result;
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    result += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar + 1);
    if (text.starts_with('$')) {
      result += '$';
      text.remove_prefix(1);
      continue;
    }
    const bool braced = text.starts_with('{');
    const std::string_view inner = braced ? text.substr(1) : text;
    const std::string_view name = inner.substr(0, identifier_length(inner));
    const bool closed = !braced || inner.substr(name.size()).starts_with('}');
    if (name == kName && closed) {
      result += fmt::to_string(local_rank);
      text.remove_prefix(name.size() + (braced ? 2 : 0));
    } else {
      result += '$';
    }
  }
  return result;
}

std::vector<std::string> arguments_of(const Command& command, int local_rank) {
  std::vector<std::string> arguments;
  arguments.reserve(command.arguments.size() + 1);
  arguments.push_back(command.executable);
  for (const std::string& argument : command.arguments)
    arguments.push_back(replace_macros(argument, local_rank));
  return arguments;
}

std::string entry_point_of(const Command& command) {
  const std::size_t slash = command.executable.rfind('/');
  return slash == std::string::npos ? command.executable : command.executable.substr(slash + 1);
}

std::string shell_line(const std::vector<std::string>& arguments) {
  std::string line;
  for (const std::string& argument : arguments) {
    if (!line.empty()) line += ' ';
    if (!argument.empty() && std::ranges::all_of(argument, is_plain)) {
      line += argument;
      continue;
    }
    line += '\'';
    for (const char letter : argument) {
      if (letter == '\'') {
        line += "'\\''";
      } else {
        line += letter;
      }
    }
    line += '\'';
  }
  return line;
}

}  // namespace muster::launch
