"""The Common Expression Language, as far as Kubernetes uses it: compile once, ask often.

wants_a100 = compile_expression("device.attributes['gpu.example.com'].model == 'a100'", ("device",))
wants_a100({"device": {...}})
"""

from koordinator.cel.compiler import Program as Program
from koordinator.cel.compiler import compile_expression as compile_expression
from koordinator.cel.loops import Budget as Budget
from koordinator.cel.values import CompileError as CompileError
from koordinator.cel.values import EvaluationError as EvaluationError
from koordinator.cel.values import OutOfBudget as OutOfBudget
