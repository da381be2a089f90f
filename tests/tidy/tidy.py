#!/usr/bin/env python3
"""The law of the house as a test: include arrows, sizes, names, registration, words, links.

Prints `path:line: what is wrong` and exits 1 if a rule is broken. Needs nothing but Python.

Usage: tidy.py [ROOT]
"""
import fnmatch
import pathlib
import re
import sys

COLUMNS_MAX = 100
PROSE_COLUMNS_MAX = 120
VERBATIM = ("tests/conformance/golden/README.md",)  # a definition that came with the files
FILE_LINES_MAX = (  # The first line that fits counts. A newcomer reads the first page whole.
    ("*-inl.h", 400), ("*.h", 350), ("*.cc", 800), ("*.cu", 400), ("*.cuh", 400),
    ("README.md", 150))
SKIPPED_FOLDERS = {".git", "__pycache__"}
CODE_SUFFIXES = (".cc", ".h", ".cu", ".cuh")
# {what has one number of lines: (folders, suffixes)}
TOTALS = {
    "production": (("proto", "kernels", "server", "client"),
                   (*CODE_SUFFIXES, ".py", ".js", ".html")),
    "tests": (("tests",), (*CODE_SUFFIXES, ".py", ".sh")),
}
TEXT_SUFFIXES = {*CODE_SUFFIXES, ".py", ".sh", ".md", ".proto", ".txt", ".json", ".yaml", ".yml",
                 ".cmake", ""}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL)
COMMAND = re.compile(r"(\w+)\s*\(([^()]*)\)")
BANNED_CODE = (
    (re.compile(r"\bthrow\b"), "throws", "*"),
    (re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep|SleepFor)\b|(?<![\w.>])sleep\s*\("),
     "sleeps, want a fake clock or a notification", "tests/*"),
    *((re.compile(r"\babsl::[A-Z]\w+Error\("), "an error without its parts, want MakeError", files)
      for files in ("server/grpc/*", "server/request/*", "server/engine/*", "server/control/*",
                    "server/models/*", "server/clients/*", "proto/wire/*", "kernels/config/*",
                    "kernels/frequencies/*")),
)
# Result::value of an error, for programs with exceptions.
THROWS = "client/include/rope/status.h"
# Paths of one machine and names of package hosts: none of them belongs in the tree. Spelled so that
# the rule does not find itself.
MACHINE_WORDS = re.compile(
    r"(?<![\w.}])/(?:wor[k]|roo[t])/\w|(?<![\w.}])/hom[e]/\w|pypi\.or[g]|pythonhosted\.or[g]"
    r"|registry\.npmj[s]|deb\.debian\.or[g]")
MARKDOWN_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BACKTICKED = re.compile(r"`([\w./*{},-]+)`")
GTEST = re.compile(r"\bTEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)")
TEST_NAME = re.compile(r"^[A-Z]\w*Test(?:\.\w+)?$|^[a-z]\w*_test$")
SOURCE_NAME = re.compile(r"^[\w-]+(?:\.\w+)*\.(?:cc|h|cuh?|sh|proto)$")


class Tree:
    """The files of a project, read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        ignored = set(SKIPPED_FOLDERS)
        gitignore = self.root / ".gitignore"
        if gitignore.is_file():
            ignored |= {line.strip().strip("/") for line in gitignore.read_text().splitlines()}
        self.top = sorted(p.name for p in self.root.iterdir() if p.name not in ignored)
        self.files = sorted(self._walk(self.root, ignored))
        self._texts = {}

    def _walk(self, folder, ignored):
        for path in folder.iterdir():
            if path.name in SKIPPED_FOLDERS or (folder == self.root and path.name in ignored):
                continue
            if path.is_dir():
                yield from self._walk(path, ignored)
            else:
                yield path.relative_to(self.root).as_posix()

    def text(self, name):
        if name not in self._texts:
            self._texts[name] = (self.root / name).read_text(encoding="utf-8", errors="replace")
        return self._texts[name]

    def lines(self, name):
        return enumerate(self.text(name).splitlines(), 1)

    def named(self, *suffixes):
        return [name for name in self.files if pathlib.PurePath(name).suffix in suffixes]


class Layers:
    """layers.txt: see there."""

    def __init__(self, text):
        self.top, self.allow, self.ground, self.deny, self.rooms = set(), {}, [], [], {}
        self.budgets = {}
        self.totals = {}
        for line in text.splitlines():
            line = line.split("#")[0].strip()
            verb, _, rest = line.partition(" ")
            if verb == "top":
                self.top = set(rest.split())
            elif verb == "allow":
                folder, _, targets = rest.partition(":")
                self.allow[folder.strip()] = set(targets.split())
            elif verb == "rooms":
                folder, _, floors = rest.partition(":")
                self.rooms[folder.strip()] = [floor.split("|") for floor in floors.split()]
            elif verb == "ground":
                self.ground += rest.split()
            elif verb == "deny":
                files, _, includes = rest.partition(":")
                includes, _, exceptions = includes.partition(" except ")
                self.deny.append((files.split(), includes.split(), exceptions.split()))
            elif verb == "budget":
                room, lines, units = rest.split()
                self.budgets[room] = (int(lines), int(units))
            elif verb == "total":
                what, lines = rest.split()
                self.totals[what] = int(lines)
            elif verb:
                raise ValueError(f"layers.txt: got {verb!r}, want top, allow, rooms, ground, deny,"
                                 " budget or total")

    def allowed(self, name):
        """Returns the folders that a file may include: those of its folder and of its room."""
        parents = [path.as_posix() for path in pathlib.PurePosixPath(name).parents]
        return set().union(*(self.allow.get(path, set()) for path in parents))

    def room_of(self, name):
        """Returns (floor, room) of a file in a folder that has rooms, or None: a room is a folder,
        or the files of the folder itself that a pattern names."""
        folder, _, rest = name.partition("/")
        inner = pathlib.PurePosixPath(rest).parent.as_posix()
        for floor, rooms in enumerate(self.rooms.get(folder, ())):
            for room in rooms:
                if inner == room or (inner == "." and matches(rest, room.split(","))):
                    return floor, room
        return None


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def code_lines(name, text):
    """Returns the number of lines that are neither blank nor comment."""
    if name.endswith(".py"):
        return sum(1 for line in text.splitlines() if line.strip()[:1] not in ("", "#"))

    def without_comment(found):
        text = found.group()
        return re.sub(r"[^\n]", " ", text) if text.startswith("/") else text

    code = COMMENT_OR_STRING.sub(without_comment, text)
    return sum(1 for line in code.splitlines() if line.strip())


def room_sizes(tree):
    """Returns {folder: (code lines, units)}. A unit is a header with its source, or one of them."""
    lines, units = {}, {}
    for name in tree.named(*CODE_SUFFIXES, ".py"):
        folder = pathlib.PurePosixPath(name).parent.as_posix()
        lines[folder] = lines.get(folder, 0) + code_lines(name, tree.text(name))
        units.setdefault(folder, set()).add(name.rpartition(".")[0])
    return {folder: (count, len(units[folder])) for folder, count in lines.items()}


def owner(include, folders):
    """Returns the folder of ours that an included header belongs to, or None."""
    first = include.split("/")[0]
    if first in folders:
        return first
    if include.startswith(("rope/v1/", "grpc/health/", "google/rpc/")):
        return "proto"
    return "client" if first == "rope" else None


def strip_code(text):
    """Blanks comments and literals, keeping every line where it was."""
    return COMMENT_OR_STRING.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def check_top(tree, layers):
    for name in tree.top:
        if not name.startswith(".") and name not in layers.top:
            yield f"{name}: not one of the names at the top level"
    for name in sorted(layers.top - set(tree.top)):
        yield f"{name}: missing at the top level"


def check_includes(tree, layers):
    for name in tree.named(*CODE_SUFFIXES):
        folder = name.split("/")[0]
        for number, line in tree.lines(name):
            found = INCLUDE.match(line)
            if not found:
                continue
            include = found.group(1)
            target = owner(include, layers.allow)
            allowed = layers.allowed(name)
            if matches(include, layers.ground):
                target = folder
            if target and target != folder and target not in allowed:
                yield f"{name}:{number}: {folder} may not include {target} ({include})"
            for files, includes, exceptions in layers.deny:
                if (matches(name, files) and matches(include, includes)
                        and not matches(name, exceptions)):
                    yield f"{name}:{number}: may not include {include}"


def included_file(include, files):
    """Returns the file of ours that an #include names, or None."""
    for path in (include, f"client/include/{include}"):
        if path in files:
            return path
    return None


def inclusions(tree):
    """Yields (file, line number, included file) for every #include between files of ours."""
    files = set(tree.files)
    for name in tree.named(*CODE_SUFFIXES):
        for number, line in tree.lines(name):
            found = INCLUDE.match(line)
            target = included_file(found.group(1), files) if found else None
            if target:
                yield name, number, target


def check_rooms(tree, layers):
    """Inside a folder, a file includes its own room and the rooms below it."""
    for name in tree.named(*CODE_SUFFIXES):
        folder = name.split("/")[0]
        if folder in layers.rooms and layers.room_of(name) is None:
            yield f"{name}:1: in none of the rooms of {folder}"
    for name, number, target in inclusions(tree):
        folder = name.split("/")[0]
        here, there = layers.room_of(name), layers.room_of(target)
        if folder == target.split("/")[0] and here and there and there != here \
                and there[0] >= here[0]:
            yield (f"{name}:{number}: {folder}/{here[1]} may not include "
                   f"{folder}/{there[1]} ({target})")


def check_budgets(tree, layers):
    """A room grows within its budget, or the budget grows in the same change."""
    sizes = room_sizes(tree)
    for folder in sizes:
        if folder.split("/")[0] in layers.rooms and folder not in layers.budgets:
            yield f"{folder}: without a budget (layers.txt)"
    for folder, (lines_max, units_max) in sorted(layers.budgets.items()):
        lines, units = sizes.get(folder, (0, 0))
        if lines > lines_max:
            yield f"{folder}: {lines} lines of code, want at most {lines_max} (layers.txt)"
        if units > units_max:
            yield f"{folder}: {units} units, want at most {units_max} (layers.txt)"


def total_lines(tree, what):
    """Returns the number of lines, of code or not, of "production" or "tests"."""
    folders, suffixes = TOTALS[what]
    return sum(len(tree.text(name).splitlines()) for name in tree.named(*suffixes)
               if name.split("/")[0] in folders)


def check_totals(tree, layers):
    """The whole grows only if its number grows in the same change."""
    for what in TOTALS:
        lines, lines_max = total_lines(tree, what), layers.totals.get(what, 0)
        if lines > lines_max:
            yield (f"{what}: {lines} lines, want at most {lines_max} (layers.txt): a commit that"
                   " raises the number says what it buys and what went for it")


def check_cycles(tree):
    """No two units (a header with its source) include each other, directly or by way of others."""
    graph = {}
    for name, _, target in inclusions(tree):
        unit, included = name.rpartition(".")[0], target.rpartition(".")[0]
        if included != unit:
            graph.setdefault(unit, set()).add(included)
    done, path = set(), []

    def cycle_from(unit):
        if unit in done:
            return None
        if unit in path:
            return path[path.index(unit):] + [unit]
        path.append(unit)
        for target in sorted(graph.get(unit, ())):
            found = cycle_from(target)
            if found:
                return found
        path.pop()
        done.add(unit)
        return None

    for unit in sorted(graph):
        found = cycle_from(unit)
        if found:
            yield f"{found[0]}: a cycle of includes: {' -> '.join(found)}"
            return


def prose_lines(tree, name):
    """Yields the lines of a page that are not code: neither fenced nor indented in Markdown."""
    fenced = False
    for number, line in tree.lines(name):
        fence = name.endswith(".md") and line.lstrip().startswith("```")
        fenced ^= fence
        if not fence and not fenced and not (name.endswith(".md") and line.startswith("    ")):
            yield number, line


def check_columns(tree):
    for name in tree.named(*CODE_SUFFIXES, ".py", ".sh"):
        for number, line in tree.lines(name):
            if len(line) > COLUMNS_MAX:
                yield f"{name}:{number}: {len(line)} columns, want at most {COLUMNS_MAX}"
    for name in tree.named(".md", ".proto"):
        if name in VERBATIM:
            continue
        for number, line in prose_lines(tree, name):
            if len(line) > PROSE_COLUMNS_MAX and "://" not in line:
                yield f"{name}:{number}: {len(line)} columns, want at most {PROSE_COLUMNS_MAX}"


def cmake_commands(tree, name):
    """Yields (command, arguments) of a CMakeLists.txt; comments are gone."""
    text = re.sub(r"#[^\n]*", "", tree.text(name))
    for command, arguments in COMMAND.findall(text):
        yield command, [word.strip('"') for word in arguments.split()]


def reached_lists(tree):
    """Returns the CMakeLists.txt that the top one reaches, each with its folder."""
    reached, waiting = {}, [pathlib.PurePosixPath(".")]
    while waiting:
        folder = waiting.pop()
        name = (folder / "CMakeLists.txt").as_posix()
        if name in reached or name not in tree.files:
            continue
        reached[name] = folder
        waiting += [folder / arguments[0] for command, arguments in cmake_commands(tree, name)
                    if command == "add_subdirectory" and arguments]
    return reached


def calls_in(tree, lists):
    """Yields (function, command) for every call in these lists; function is None outside of one."""
    function = None
    for command, arguments in [both for name in lists for both in cmake_commands(tree, name)]:
        if command == "function":
            function = arguments[0]
        elif command == "endfunction":
            function = None
        else:
            yield function, command


def registering_commands(tree, lists):
    """Returns rope_test, add_test and every function of these lists that calls one of them."""
    found = {"rope_test", "add_test"}
    for function, command in calls_in(tree, lists):
        if function and command in found:
            found.add(function)
    return found


def check_registration(tree):
    """Every source is compiled and every test runs, in a list that the top one reaches."""
    lists = reached_lists(tree)
    registering = registering_commands(tree, lists)
    compiled, tested = set(), set()
    for name, folder in lists.items():
        for command, arguments in cmake_commands(tree, name):
            for word in arguments:
                word = re.sub(r"^\$\{CMAKE_CURRENT_(SOURCE|LIST)_DIR\}/", "", word)
                from_top = re.match(r"^\$\{PROJECT_SOURCE_DIR\}/(.*)", word)
                path = from_top.group(1) if from_top else (folder / word).as_posix()
                compiled.add(path)
                if command in registering:
                    tested.add(path)
    for name in tree.named(".cc", ".cu", ".proto"):
        if name not in compiled:
            yield f"{name}:1: in no CMakeLists.txt that the top one reaches"
        elif name.endswith("_test.cc") and name not in tested:
            yield f"{name}:1: not registered with rope_test"
    for name in tree.named(".py"):
        if name.endswith("_test.py") and name not in tested:
            yield f"{name}:1: not registered with add_test"


def check_words(tree):
    for name in tree.named(*CODE_SUFFIXES):
        for number, line in enumerate(strip_code(tree.text(name)).splitlines(), 1):
            for pattern, what, files in BANNED_CODE:
                if pattern.search(line) and matches(name, [files]) and name != THROWS:
                    yield f"{name}:{number}: {what}"


def check_machine_words(tree):
    for name in tree.files:
        if pathlib.PurePath(name).suffix not in TEXT_SUFFIXES:
            continue
        for number, line in tree.lines(name):
            found = MACHINE_WORDS.search(line)
            if found:
                yield f"{name}:{number}: {found.group()!r} belongs to one machine or host"


def expand_braces(path):
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    return [whole for choice in found.group(1).split(",")
            for whole in expand_braces(path[:found.start()] + choice + path[found.end():])]


def exists(tree, folder, path):
    """Whether a path, which may hold * and {a,b}, exists beside the page or from the top."""
    for one in expand_braces(path.rstrip("/")):
        if not any(any(base.glob(one)) for base in (tree.root / folder, tree.root)):
            return False
    return True


def looks_like_ours(tree, folder, path):
    first = path.split("/")[0]
    return "/" in path and first and first != "build" and "{" not in first and "*" not in first \
        and ((tree.root / first).is_dir() or (tree.root / folder / first).is_dir())


def check_links(tree):
    names = {pathlib.PurePath(name).name for name in tree.files}
    for name in tree.named(".md"):
        folder = pathlib.PurePosixPath(name).parent
        for number, line in tree.lines(name):
            for link in MARKDOWN_LINK.findall(re.sub(r"`[^`]*`", "", line)):
                path = link.split("#")[0]
                if path and "://" not in path and not link.startswith("mailto:") \
                        and not (tree.root / folder / path).exists():
                    yield f"{name}:{number}: link to {path}, which does not exist"
            for path in BACKTICKED.findall(line):
                if SOURCE_NAME.match(path):
                    missing = path not in names and not path.startswith(("x.", "x_"))
                else:
                    missing = looks_like_ours(tree, folder, path) \
                        and not exists(tree, folder, path)
                if missing:
                    yield f"{name}:{number}: names {path}, which does not exist"


def check_proofs(tree):
    """Tests that a page names exist, and each row of a table "... | here |" names its proof."""
    lists = reached_lists(tree)
    registering = registering_commands(tree, lists)
    tests = {arguments[0] for name in lists
             for command, arguments in cmake_commands(tree, name) if command in registering}
    tests |= {pathlib.PurePath(name).stem for name in tree.named(".cc")}
    for name in tree.named(".cc", ".h"):
        for suite, case in GTEST.findall(tree.text(name)):
            tests |= {suite, f"{suite}.{case}"}
    for name in tree.named(".md"):
        in_table = False
        for number, line in tree.lines(name):
            in_table = line.endswith("| here |") or (in_table and line.startswith("|"))
            proven = any(word in line for word in ("golden files", "not built"))
            for word in re.findall(r"`([\w.*]+)`", line):
                if TEST_NAME.match(word):
                    if word not in tests:
                        yield f"{name}:{number}: names the test {word}, which does not exist"
                    proven = True
            if in_table and not proven and not line.endswith(("| here |", "|---|---|")):
                yield f"{name}:{number}: a row without a test, golden files or \"not built\""


def check_files(tree):
    for name in tree.named(*CODE_SUFFIXES, ".md"):
        count = len(tree.text(name).splitlines())
        for pattern, lines_max in FILE_LINES_MAX:
            if fnmatch.fnmatchcase(name, pattern):
                if count > lines_max:
                    yield f"{name}:1: {count} lines, want at most {lines_max}"
                break


def check_all(root):
    """Returns the problems, sorted."""
    tree = Tree(root)
    layers = Layers(tree.text("tests/tidy/layers.txt"))
    problems = [*check_top(tree, layers), *check_includes(tree, layers),
                *check_rooms(tree, layers), *check_budgets(tree, layers),
                *check_totals(tree, layers)]
    for rule in (check_cycles, check_columns, check_registration, check_words, check_machine_words,
                 check_links, check_proofs, check_files):
        problems += rule(tree)
    return sorted(problems)


def main(arguments):
    root = arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2]
    problems = check_all(root)
    for problem in problems:
        print(problem)
    print(f"tidy: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
