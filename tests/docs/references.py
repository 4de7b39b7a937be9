"""Finds what a page of the docs refers to, and says what of it the repository does not have.

Each check takes a page and returns one line for each problem, so that a test can also show it a planted error.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from docs import commands
from orchestrator.recipe.config import Recipe

ROOT = Path(__file__).parents[2]
PACKAGES = ("outer", "learners", "orchestrator", "chaos", "diloco")
FOLDERS = (*PACKAGES, "deploy", "docs", "tests", "benchmarks", "examples")
FENCE = re.compile(r"^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=fence)", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- (.+): written by python -m docs\.renew -->.*?<!-- end of \1 -->", re.DOTALL)
FOREIGN_OPTIONS = {  # of Ray, pip, Typer and the benchmark scripts, where a page names the option alone
    "--entrypoint-label-selector", "--num-cpus", "--no-restart", "--runtime-env-json", "--write",
    "--hypothesis-profile", "--only", "--install-completion",
}  # fmt: skip


class Page(NamedTuple):
    """A page of the docs: its path relative to the repository, and its text."""

    path: str
    text: str

    @property
    def folder(self) -> Path:
        return (ROOT / self.path).parent

    @property
    def prose(self) -> str:
        """The text without blocks of code."""
        plain = FENCE.sub("", self.text)
        return "\n".join(line for line in plain.splitlines() if not line.startswith("    "))

    @property
    def spans(self) -> list[str]:
        """What stands in backticks outside of blocks. A span may go over the end of a line."""
        return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", self.prose)]

    @property
    def blocks(self) -> list[str]:
        """The lines of blocks of code, fenced or indented, with continued lines joined."""
        fenced = [match["body"] for match in FENCE.finditer(self.text)]
        indented = [line[4:] for line in FENCE.sub("", self.text).splitlines() if line.startswith("    ")]
        lines = "\n".join([*fenced, "\n".join(indented)])
        return re.sub(r"\\\n\s*", "", lines).splitlines()

    @property
    def code(self) -> list[str]:
        return [*self.spans, *self.blocks]


def pages() -> list[Page]:
    """Every page that is checked. CHANGELOG.md names what is gone."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy/README.md", ROOT / "tests/README.md"]
    found += sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
    found += [ROOT / "benchmarks/torchft/README.md"]
    return [Page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in found]


def words(paths: Iterable[Path]) -> int:
    """As `wc -w` counts them, without what `python -m docs.renew` writes."""
    return sum(len(GENERATED.sub("", path.read_text(encoding="utf-8")).split()) for path in paths)


def section(path: str, heading: str) -> str:
    """From a heading to the next of its level or a higher one."""
    text = (ROOT / path).read_text()
    mark = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert mark is not None, f"{path} has no heading {heading}"
    rest = text[mark.end() :]
    end = re.search(rf"^#{{1,{len(mark[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


# ------------------------------------------------------------------ commands

CALL = re.compile(r"(?:^|[\s$(])(?:\.venv/bin/|\$\(BIN\)/)?(?:diloco|python -m orchestrator)(?P<rest>(?: [^\n]*)?)$")


@functools.cache
def tree() -> dict[str, Any]:
    return commands.tree()


def wrong_commands(page: Page) -> Iterator[str]:
    """Commands and options of `diloco` that the command line does not have, and recipe keys after --set."""
    for line in page.code:
        if call := CALL.search(line):
            yield from (f"{line.strip()}: {problem}" for problem in _wrong_call(call["rest"]))
    beside = "".join(path.read_text() for path in page.folder.glob("*.py"))  # scripts that a page describes
    known = {option for command in tree().values() for option in commands.options(command)} | FOREIGN_OPTIONS
    known |= set(re.findall(r'"(--[a-z-]+)"', beside))
    for span in page.spans:
        if span.startswith("--") and (option := re.match(r"--[a-z-]+", span)) and option[0] not in known:
            yield f"no command has the option {span}"


def _wrong_call(rest: str) -> Iterator[str]:
    try:
        given = shlex.split(rest, comments=True)
    except ValueError:
        given = rest.split()
    length = next((n for n in (2, 1) if " ".join(given[:n]) in tree()), 0)
    if not length:
        group = given[0] if given and re.fullmatch(r"[a-z][a-z-]*", given[0]) else None
        named = group is None or any(each.startswith(f"{group} ") for each in tree())
        second = given[1] if len(given) > 1 and re.fullmatch(r"[a-z][a-z-]*", given[1]) else None
        if not named or (group is not None and second is not None):
            yield f"no command {' '.join(given[:2])}"
        return
    command = tree()[" ".join(given[:length])]
    for word, after in zip(given[length:], [*given, ""][length + 1 :], strict=True):
        option = word.partition("=")[0]
        if option.startswith("-") and option != "-" and option not in commands.options(command) | {"--help"}:
            yield f"it has no option {option}"
        if option == "--set" and "=" in after and (key := after.partition("=")[0]).isascii() and key != "KEY":
            yield from ([] if is_recipe_key(key) else [f"no recipe key {key}"])


def wrong_scripts(page: Page) -> Iterator[str]:
    """Scripts and modules after `python` that are not there, and options that a script does not know."""
    for line in page.code:
        for script, rest in re.findall(r"python3? ((?:benchmarks|examples|docs|tests)/[\w./-]+\.py)([^#\n]*)", line):
            if not (ROOT / script).exists():
                yield f"{line.strip()}: no {script}"
                continue
            helper = (ROOT / script).parent / "script.py"
            source = (ROOT / script).read_text() + (helper.read_text() if helper.exists() else "")
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest, re.IGNORECASE):
                if f'"{option}"' not in source:
                    yield f"{line.strip()}: {script} has no option {option}"
        for module in re.findall(r"python3? -m ((?:docs|orchestrator|outer|learners|chaos)[\w.]*)", line):
            if not module_file(module):
                yield f"{line.strip()}: no module {module}"


def wrong_targets(page: Page) -> Iterator[str]:
    """Targets of make that the Makefile does not have."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in page.code:
        if (named := re.match(r"\s*make ([a-z-]+)\b", line)) and named[1] not in targets:
            yield f"{line.strip()}: the Makefile has no {named[1]}"


# ------------------------------------------------------------------ recipe keys


@functools.cache
def sections() -> frozenset[str]:
    return frozenset(Recipe.model_fields) - {"name", "seed", "task", "init_from", "init_digest"}


def is_recipe_key(key: str) -> bool:
    """Whether a recipe may have this key, written as after --set. What is in [model] is the task's to say."""
    parts = [part for part in key.split(".") if not part.isdigit() and part != "N"]
    return parts[:1] == ["model"] or _in_model(Recipe, parts)


def _in_model(kind: Any, parts: list[str]) -> bool:
    if not parts:
        return True
    if get_origin(kind) is dict:
        return True
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return any(_in_model(part, parts) for part in get_args(kind))
    for name, field in kind.model_fields.items():
        if parts[0] in (name, field.alias):
            return _in_model(field.annotation, parts[1:])
    return False


def wrong_keys(page: Page) -> Iterator[str]:
    """Keys in backticks and in TOML blocks that a recipe cannot have."""
    status = (ROOT / "orchestrator/store/status_model.py").read_text()
    for span in page.spans:
        key = span.partition(" ")[0].partition("=")[0].strip("[]")
        section, dot, rest = key.partition(".")
        if not dot or section not in sections() or not re.fullmatch(r"[\w.]+", rest) or rest.endswith((".py", ".toml")):
            continue
        shown = section == "run" and f'"{rest}"' in status
        if not (is_recipe_key(key) or shown or module_file(key) or is_code(key)):
            yield f"`{span}`: no recipe key {key}"
    for match in FENCE.finditer(page.text):
        if match["language"] == "toml":
            try:
                table = tomllib.loads(match["body"])
            except tomllib.TOMLDecodeError as error:
                yield f"a block of TOML does not load: {error}"
                continue
            yield from (f"no recipe key {key}" for key in _flat(table) if not is_recipe_key(key))


def _flat(table: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                yield from _flat(row, f"{above}{key}.")
        else:
            yield f"{above}{key}"


# ------------------------------------------------------------------ paths, links, code


def wrong_paths(page: Page) -> Iterator[str]:
    """Files and folders of the repository that are not there."""
    places = "|".join(FOLDERS)
    for code in page.code:
        for path in re.findall(rf"(?<![\w/.:-])((?:{places})/[\w./*-]*[\w*/])", code):
            if not (ROOT / path).exists() and not any(ROOT.glob(path)) and not _is_run_path(path):
                yield f"no {path}"
    for span in page.spans:
        if re.fullmatch(r"[\w-]+\.(py|toml)", span) and span not in file_names() | {"config.toml"}:
            yield f"no file called {span}"
        if re.fullmatch(r"(recipes|clusters|kuberay|tls)/[\w.*-]+", span) and not any((ROOT / "deploy").glob(span)):
            yield f"no deploy/{span}"


def _is_run_path(path: str) -> bool:
    return path.startswith("tests/simulation/catches")  # written by benchmarks/mutants.py --write


@functools.cache
def file_names() -> frozenset[str]:
    kept = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".toml")]
    outside = {"my-run.toml", "recipe.toml", "squares.py", "pyproject.toml"}
    return frozenset(path.name for path in kept) | outside


def wrong_links(page: Page) -> Iterator[str]:
    """Relative links to files that are not there, and to headings that the file does not have."""
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.folder / path).resolve() if path else ROOT / page.path
        if path and not file.exists():
            yield f"no {target}"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8") if path else page.text):
            yield f"{target}: no such heading"


def anchors(text: str) -> set[str]:
    """Of the headings of a page, as code hosts make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def module_file(path: str) -> Path | None:
    """The file of a module or package, by its import path."""
    file = ROOT / path.replace(".", "/")
    return next((each for each in (file.with_suffix(".py"), file) if each.exists()), None)


def is_code(path: str) -> bool:
    """Whether an import path names something in a module: `package.module.name`, or with a colon."""
    module, _, name = path.replace(":", ".").rpartition(".")
    while module and name:
        if (file := module_file(module)) and file.suffix == ".py":
            return name.partition(".")[0] in names_in(file)
        module, _, more = module.rpartition(".")
        name = f"{more}.{name}"
    return False


@functools.cache
def names_in(file: Path) -> frozenset[str]:
    """Every name that a module's code uses or defines, and strings that are written like names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for field in ("name", "id", "attr", "arg"):
            if isinstance(value := getattr(node, field, None), str):
                found.add(value.rpartition(".")[2])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return frozenset(found)


@functools.cache
def identifiers() -> frozenset[str]:
    files = [path for folder in (*PACKAGES, "tests") for path in (ROOT / folder).rglob("*.py")]
    return frozenset(name for file in files for name in names_in(file))


RAYS = frozenset({"WorkerId"})  # names that Ray gives


def wrong_code(page: Page) -> Iterator[str]:
    """Import paths, and names of classes and constants in backticks, that the code does not have."""
    packages = "|".join((*PACKAGES, "docs"))
    for span in page.spans:
        path = span.removesuffix("()")
        if re.fullmatch(rf"({packages})(\.\w+)+(:\w+)?", path) and path.partition(".")[0] not in ("docs",):
            section = path.partition(".")[0]
            if not (module_file(path) or is_code(path) or (section in sections() and is_recipe_key(path))):
                yield f"no {span} in the code"
        if re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)+", span) and span not in identifiers() | RAYS:
            yield f"no class {span} in the code"


CHECKS = (
    wrong_commands, wrong_scripts, wrong_targets, wrong_keys, wrong_paths, wrong_links, wrong_code,
)  # fmt: skip
