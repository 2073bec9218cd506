"""`managed-agents rehearse`: plays a domain against an agent, and judges it by what it did.

A domain is a folder: tools over rows of data, tasks with fixed user turns, invariants, and the wanted end state.
The agent is spoken to over HTTP only; nothing it calls reaches a real system. From the folder to the verdict:

    yaml_files → shape → (fields, expressions) → loading    a sound `Domain`, or every fault with file and line
    domain, world                                           what a call does to rows; pure
    playing, agents                                         trials, interleaved, over HTTP
    grading                                                 end state, invariants and call log; pure
    report, report_text, junit                              what came of it

Equal answers of the agent give equal reports, apart from ids and times.
"""
