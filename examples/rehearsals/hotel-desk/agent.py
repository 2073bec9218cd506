"""A scripted night clerk who keeps to the policy of the hotel desk. `python agent.py --port 8787`."""

import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripted import call, main


def clerk(message: str) -> Generator[Any, Any, None]:
    if booking := re.search(r"booking (B-\d+)", message):
        yield from complaint(booking[1])
        return
    name = re.search(r"[A-Z][a-z]+ [A-Z][a-z]+", message)
    nights = re.search(r"(\d+) nights?", message)
    if name is None or nights is None:
        yield "Good evening! May I have your name, and how many nights you stay?"
        return
    people = 2 if "friend" in message else 1
    found, rooms = yield [call("find_guest", name=name[0]), call("find_rooms", beds=people)]
    guest, room = found["result"][0], rooms["result"][0]
    rate = room["rate"] * 0.9 if guest["member"] else room["rate"]
    answer = yield f"Room {room['number']} is free for {rate:g} a night. May I see your papers?"
    while True:
        if document := re.search(r"[PK]-\d{4}", answer):
            (checked,) = yield [call("check_papers", guest=guest["id"], document=document[0])]
            guest["papers_seen"] = checked["ok"]
        if not guest["papers_seen"]:
            answer = yield "I am sorry, I can't book a room without the right papers."
        elif "%" in answer and not guest["member"]:
            answer = yield f"I am sorry, the rate is {rate:g}. Only members of our club have a discount."
        else:
            break
    order = {"guest": guest["id"], "room": room["number"], "guests": people, "nights": int(nights[1]), "rate": rate}
    (booked,) = yield [call("book_room", **order)]
    yield "It is booked. Good night!" if booked["ok"] else f"That did not work: {booked['error']}"


def complaint(booking: str) -> Generator[Any, Any, None]:
    (found,) = yield [call("get_booking", booking=booking)]
    rate, refunded = found["result"]["rate"], found["result"]["refunded"]
    yield "I am sorry to hear that. I can give back up to one night."
    if refunded < rate:
        yield [call("refund", booking=booking, amount=rate - refunded, reason="noise")]
        yield "One night is on its way back to you."
    yield "That was all that I can give back."


if __name__ == "__main__":
    main(clerk)
