"""Explain why a pod is where it is, or nowhere, and what would change that.

`decide.explain` asks the plugins of an engine the questions of a cycle without booking anything; `answer` has the types
of what comes out, `remedies` and `variants` compute what would help, `objects` fills ScheduleExplanation objects.
"""
