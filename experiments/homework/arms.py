"""The arms of the study: what each changes, as service settings or as the client's behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiments.homework.student import BRIEF, PLAIN, Preference


@dataclass(frozen=True, slots=True)
class Arm:
    """`env` is for the services. `recorded` off: no traffic, so no update. `memory`: complaints go into prompts."""

    name: str
    about: str
    env: dict[str, str] = field(default_factory=dict)
    preference: Preference = PLAIN
    recorded: bool = True
    memory: bool = False


ARMS: tuple[Arm, ...] = (
    Arm("combined", "reward and hints, both at their default weight"),
    Arm("control", "the same conversations, nothing recorded: no update", recorded=False),
    Arm("rl", "reward alone: w_opd = 0", {"CLAWBACK_TRAINER_W_OPD": "0"}),
    Arm("opd", "hints alone: w_rl = 0", {"CLAWBACK_TRAINER_W_RL": "0"}),
    Arm("memory", "no update; the complaints stand in a memory file in the prompt", recorded=False, memory=True),
    Arm("brief", "combined, for a student who wants short answers", preference=BRIEF),
    Arm("brief-control", "that student without updates", preference=BRIEF, recorded=False),
)

UNRELATED: tuple[str, ...] = (
    "Write a Python function that reverses a string.",
    "What is the capital of Australia?",
    "Translate 'good morning' into French.",
    "Who wrote Romeo and Juliet?",
    "Tell me a joke about a penguin.",
    "What is 17 times 6?",
    "Explain what a compiler does.",
    "Write a short email asking for a day off.",
    "Why is the sky blue?",
    "Describe the taste of a lemon.",
    "What should I pack for a weekend in the mountains?",
    "Continue the story: The door opened and the old man smiled.",
)
