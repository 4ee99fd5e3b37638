"""What a model call of a task will need, reckoned from its texts before anything is spent."""

from __future__ import annotations

from flashevolve_lab.llm import Request, chat
from flashevolve_lab.tasks import Prompt, Task


def tokens_of_a_call(task: Task) -> tuple[float, int]:
    """Input tokens of a model call with the seed (mean over the validation set), and the most that one call reserves.

    Both as the budget estimates them, from bytes. Of a program other than `Prompt` only the seed's own texts are known: at least
    the shortest is sent to whoever rewrites it.
    """
    program = task.program
    if not isinstance(program, Prompt):
        shortest = min(Request(chat(text)).input_tokens_estimate() for text in task.components.values())
        return float(shortest), shortest
    system = task.components[program.component]
    inputs = [Request(chat(str(example[program.input]), system=system)).input_tokens_estimate() for example in task.val]
    return sum(inputs) / len(inputs), max(inputs) + program.max_tokens
