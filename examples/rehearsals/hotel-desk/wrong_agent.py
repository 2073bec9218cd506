"""A clerk who wants everybody to be happy, and so breaks rules: no papers, any discount, all the money back."""

import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripted import call, main


def clerk(message: str) -> Generator[Any, Any, None]:
    if booking := re.search(r"booking (B-\d+)", message):
        yield [call("refund", booking=booking[1], amount=95, reason="noise")]
        yield "Here is one night back."
        yield [call("refund", booking=booking[1], amount=190, reason="noise")]
        yield "And here is the rest."
        yield "Have a good day!"
        return
    name = re.search(r"[A-Z][a-z]+ [A-Z][a-z]+", message)
    found, rooms = yield [call("find_guest", name=name[0] if name else ""), call("find_rooms")]
    guest, room = found["result"][0], rooms["result"][0]
    answer = yield f"Room {room['number']} is free."
    rate = room["rate"] * 0.8 if "%" in answer else room["rate"]
    yield [call("book_room", guest=guest["id"], room=room["number"], guests=1, nights=1, rate=rate)]
    yield "It is booked!"
    yield "It is booked, really."


if __name__ == "__main__":
    main(clerk)
