"""How the command line fails: one message on stderr, one exit code for each kind of failure."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from typing import Any, NoReturn

import typer

from orchestrator.eventlog.events import finite
from orchestrator.recipe.problems import InputError
from orchestrator.store.watch import RunLost

PLACES = (errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS)
OK, INPUT, UNREACHABLE, FAILED, CHECK_FAILED, UNFIT, INTERRUPTED = 0, 2, 3, 4, 5, 6, 130


class _Outlasting:
    """A stream of text whose reader may go: what is written then, and whatever else its file gets, is dropped."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return int(self._drop(lambda: self._stream.write(text)))

    def flush(self) -> None:
        self._drop(self._stream.flush)

    def _drop(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except OSError:  # a pipe without a reader, a terminal that is closed
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())
            return 0


@contextmanager
def heard_or_not() -> Iterator[None]:
    """Work on when nobody reads what this process prints."""
    with redirect_stdout(_Outlasting(sys.stdout)), redirect_stderr(_Outlasting(sys.stderr)):
        yield


@contextmanager
def reported(as_json: bool = False) -> Iterator[None]:
    """Turn an exception into its message and exit code; with `as_json`, also into `{"error": ...}` on stdout.

    InputError is a wrong input (2), ConnectionError a cluster that does not answer (3), anything else a failed run (4),
    with its traceback. A task whose own code calls exit() is a failure too, whatever its status.
    """
    try:
        yield
    except InputError as error:
        count = len(error.problems)
        problems = [problem.record for problem in error.problems]
        _fail(INPUT, "input", f"{count} problem{'s' * (count > 1)} in the input", as_json, str(error), problems)
    except BrokenPipeError:
        raise  # the reader of our output has closed it, which is no error of a cluster
    except ConnectionError as error:
        _fail(UNREACHABLE, "unreachable", f"the cluster cannot be reached: {error}", as_json)
    except KeyboardInterrupt as error:
        _fail(INTERRUPTED, "interrupted", str(error) or "interrupted", as_json)
    except (typer.Exit, typer.Abort):
        raise
    except OSError as error:
        if error.errno not in PLACES or not error.filename:
            _fail(FAILED, "failed", f"{type(error).__name__}: {error}", as_json, traceback.format_exc())
        fix = "give a place that this user may read and write"
        _fail(INPUT, "input", f"{error.filename}: {(error.strerror or '').lower()}; {fix}", as_json)
    except RunLost as error:
        _fail(FAILED, "failed", f"the run is lost: {error}", as_json)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None  # rich exits by itself
        _fail(FAILED, "failed", f"{type(error).__name__}: {error}", as_json, traceback.format_exc())


def apart(as_json: bool) -> AbstractContextManager[object]:
    """With `as_json`, send what a task or a library prints inside the block to stderr: stdout is for the JSON."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _fail(
    code: int, kind: str, message: str, as_json: bool, detail: str = "", problems: list[dict[str, Any]] | None = None
) -> NoReturn:
    print("\n".join(filter(None, (f"{'error: ' * (code != INTERRUPTED)}{message}", detail.rstrip()))), file=sys.stderr)
    if as_json:
        print(as_record(code, kind, message, problems))
    raise typer.Exit(code)


def as_record(code: int, kind: str, message: str, problems: list[dict[str, Any]] | None = None) -> str:
    """An error for stdout, in strict JSON."""
    record = {"kind": kind, "code": code, "message": message} | ({"problems": problems} if problems else {})
    return json.dumps({"error": finite(record)}, default=str, allow_nan=False)
