"""A compacted context in words: how a model is asked for the summary, and how it is told that it reads one."""

# The purpose that the span of a summary's request names.
COMPACTION = "compaction"
# Stands before the summary in every context that was compacted.
INTRODUCTION = (
    "The conversation up to here was longer than the context allows and has been replaced by the summary below. Go on "
    "from it as if you had read all of it; what the summary quotes was said as it is quoted. Don't repeat work that it "
    "reports as done."
)
REQUEST = """\
This conversation is about to be replaced by a summary that you write now; you will go on from that summary alone. \
Call no tool. Answer with the summary and nothing else, in the language of the conversation, under these headings:

1. Task: what the person asked for, newest request first and quoted word for word, with every limit, preference and \
decision that still holds.
2. Done: each step that was finished, with its outcome, so that none is done twice. Name files by their full paths, \
and commands, ids, addresses and numbers exactly.
3. Found: facts that were learned and will be needed, errors met and how they were dealt with.
4. Open: what is under way and what comes next, in order."""
# What stands for something that was too long for the request that asks for the summary.
LEFT_OUT = "[… {count} characters left out …]"
LEFT_OUT_MESSAGES = "[{count} earlier pieces were left out here, since they did not fit.]"


def is_request(text: str) -> bool:
    """Whether a text ends with the question for a summary."""
    return text.rstrip().endswith(REQUEST)
