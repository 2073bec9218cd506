"""A clerk who does whatever he is asked at once: no look at credit, licence or stock, and no question."""

import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripted import call, main


def clerk(message: str) -> Generator[Any, Any, None]:
    workshop = "W-1"
    while True:
        calls = []
        if number := re.search(r"order (\d+)", message):
            calls = [call("cancel_order", number=int(number[1]), workshop=workshop)]
        elif wanted := re.search(r"(\d+) of ([A-Z]{2}-\d{3})", message):
            sku = "OF-203" if wanted[2] == "OF-202" else wanted[2]
            calls = [call("place_order", workshop=workshop, sku=sku, quantity=int(wanted[1]))]
        elif "restocked" in message:
            calls = [call("restock", sku=sku, quantity=20) for sku in re.findall(r"[A-Z]{2}-\d{3}", message)]
        if calls:
            yield calls
        message = yield "Done!"


if __name__ == "__main__":
    main(clerk)
