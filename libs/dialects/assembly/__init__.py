"""Streamed responses put together: one assembler per dialect, equal to what the call returns without streaming."""

from libs.dialects.assembly.anthropic_messages import MessageAssembler
from libs.dialects.assembly.base import Assembler
from libs.dialects.assembly.openai_chat import ChatAssembler
from libs.dialects.assembly.openai_completions import CompletionAssembler
from libs.dialects.assembly.openai_responses import ResponseAssembler
from libs.dialects.assembly.sse import Event, SseParser

ASSEMBLERS: dict[str, type[Assembler]] = {
    "/v1/chat/completions": ChatAssembler,
    "/v1/messages": MessageAssembler,
    "/v1/responses": ResponseAssembler,
    "/v1/completions": CompletionAssembler,
}


def assembler_for(path: str) -> Assembler | None:
    """A fresh assembler for the responses of this path, None for paths whose responses are not recorded."""
    kind = ASSEMBLERS.get(path)
    return kind() if kind else None


__all__ = ["ASSEMBLERS", "Assembler", "Event", "SseParser", "assembler_for"]
