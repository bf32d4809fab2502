"""What a tool result says about the call that asked for it. Structure first (JSON fields, exit codes), then text.

Text written by a machine is never praise: success needs an explicit mark (exit code 0, success: true, HTTP 2xx, tests
passed) and counts only for a reply that was a tool call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from libs.contracts import Message
from libs.feedback.rules.text import ends

State = Literal["failure", "success", "unknown"]

_EXIT = re.compile(
    r"\b(?:exit(?:ed)?(?: with)?(?: code| status)?|return ?code|exit_code|exit code|code)\s*[:=]?\s*(-?\d{1,3})\b",
    re.IGNORECASE,
)
_HTTP = re.compile(r"\b(?:HTTP(?:/[\d.]+)?|status(?:[ _]?code)?)\s*[:=]?\s*([1-5]\d\d)\b", re.IGNORECASE)
_PYTEST = re.compile(r"\b(\d+) (failed|errors?|passed)\b")
_FAILURE = re.compile(
    r"""(?mix)
    ^\s*traceback\ \(most\ recent\ call\ last\)
    | ^(?:E\s+|>\s+.*\n?E\s+)?(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Warning:\ Fatal)\b\s*(?::|$)
    | ^\s*(?:uncaught\ )?(?:\w+\.)*\w*(?:Error|Exception):\s
    | ^(?:fatal|error|panic|npm\ err!|err!|e:)(?:\[\w+\])?[:\s]
    | ^.{0,120}(?:command\ not\ found|no\ such\ file\ or\ directory|permission\ denied)\s*$
    | ^.{0,120}(?:segmentation\ fault|connection\ refused|timed\ out)\s*$
    | ^.{0,60}\bis\ not\ recognized\ as\ an\ internal\ or\ external\ command
    | <tool_use_error>|^\s*unhandled\ exception\b
    | ^\s*unknown\ (?:option|command|tool|argument)\b|^\s*invalid\ (?:arguments?|parameters?|input|tool)\b
    | ^(?:string\ to\ replace\ )?not\ found\b|^\S+:\d+(?::\d+)?:\s*(?:fatal\ )?(?:error|E\d{3}|F\d{3})\b
    | ^.{0,40}\b(?:failed|failure)\s*(?:$|[:!])|^(?:=+\ )?(?:FAILED|FAILURES|ERRORS)\b
    | \bfailed\ to\ (?:match|apply|parse|compile|build|load|start)\b
    | ^\#\ fix\ any\ errors\b|\bdid\ not\ conform\ to\b
    """
)
_NONE_FAILED = re.compile(r"\b0 (?:failed|failures|errors?)\b", re.IGNORECASE)
_READS = re.compile(
    r"^(?:\w+[._-])*(?:read|cat|grep|rg|view|search|find|fetch|open|get|list|ls|head|tail|browse|web|show|log)\w*\s*\(",
    re.IGNORECASE,
)
_CALL = re.compile(r"^[A-Za-z_][\w.-]*\(", re.MULTILINE)
_END = 2_000  # characters of a long text that are looked at, at either end
_ERROR_KEYS = ("error", "errors", "exception", "error_message", "stderr_error")


@dataclass(frozen=True, slots=True)
class ToolReading:
    """What the results say. `ground` names the mark that decided."""

    state: State
    ground: str = ""


def is_call(reply: str) -> bool:
    """The reply is (or ends in) a tool call, rendered as name(arguments)."""
    return bool(_CALL.search(reply.strip()))


def read_results(reply: str, results: Sequence[Message]) -> ToolReading:
    """Judge all results together: a failure outweighs a success, whatever else the text says."""
    reads = bool(_READS.match(reply.strip()))
    readings = [read_result(m.text, reads=reads) for m in results]
    for state in ("failure", "success"):
        for reading in readings:
            if reading.state == state:
                return reading
    return ToolReading("unknown")


def read_result(text: str, *, reads: bool = False) -> ToolReading:
    """One result. `reads`: the call only looked something up, so error words in the content prove nothing."""
    data = _json(text)
    if data is not None:
        return _structured(data)
    codes = [int(c) for c in _EXIT.findall(text[:400] + "\n" + text[-400:])]
    if any(codes):
        return ToolReading("failure", f"exit code {next(c for c in codes if c)}")
    if not reads:
        failure = _failure(text)
        if failure:
            return ToolReading("failure", failure)
    elif re.match(r"\s*(?:error|fatal|<tool_use_error>)\b", text, re.IGNORECASE):
        return ToolReading("failure", "starts with an error")
    status = _HTTP.search(text[:200])
    if status:
        code = int(status[1])
        return ToolReading("failure" if code >= 400 else "success" if 200 <= code < 300 else "unknown", f"HTTP {code}")
    if codes:
        return ToolReading("success", "exit code 0")
    return ToolReading("success", "tests passed") if _counts(text).get("passed") else ToolReading("unknown")


def looks_like_failure(text: str) -> bool:
    """A pasted traceback, compiler or lint output, rather than a person's sentence."""
    return bool(_failure(ends(text, 2 * _END)))  # a pasted report shows at its ends


def _failure(text: str) -> str:
    counts = _counts(text)
    if any(counts.get(word) for word in ("failed", "error", "errors")):
        return "tests failed"
    text = _NONE_FAILED.sub("", text)
    match = _FAILURE.search(text)
    return match[0].strip()[:60] if match else ""


def _counts(text: str) -> dict[str, int]:
    return {word: int(n) for n, word in _PYTEST.findall(text)}


def _json(text: str) -> Any:
    text = text.strip()
    if not text.startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _structured(data: Any) -> ToolReading:
    if isinstance(data, list):
        return ToolReading("unknown")
    for key in _ERROR_KEYS:
        if data.get(key):
            return ToolReading("failure", f"field {key}")
    for key in ("exit_code", "exitCode", "returncode", "code", "status", "status_code", "statusCode"):
        value = data.get(key)
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int):
            wrong = value >= 400 if "tatus" in key or value >= 100 else value != 0
            right = 200 <= value < 300 if "tatus" in key or value >= 100 else value == 0
            if wrong or right:
                return ToolReading("failure" if wrong else "success", f"{key} {value}")
        elif str(value).lower() in {"error", "failed", "failure", "timeout", "cancelled", "denied"}:
            return ToolReading("failure", f"{key} {value}")
        elif str(value).lower() in {"ok", "success", "succeeded", "completed", "done"}:
            return ToolReading("success", f"{key} {value}")
    for key in ("success", "ok", "succeeded"):
        if isinstance(data.get(key), bool):
            return ToolReading("success" if data[key] else "failure", f"{key} {data[key]}")
    if data.get("is_error") is True or data.get("isError") is True:
        return ToolReading("failure", "is_error")
    return ToolReading("unknown")
