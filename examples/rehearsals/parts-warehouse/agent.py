"""A scripted counter clerk who keeps to the policy of the warehouse. `python agent.py --port 8787`."""

import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripted import call, main

SKU = r"[A-Z]{2}-\d{3}"


def clerk(message: str) -> Generator[Any, Any, None]:
    if "restocked" in message:
        yield (yield from restock(message))
        return
    known = re.search(r"W-\d+", message)
    if known is None:
        yield "Which workshop are you?"
        return
    workshop = known[0]
    while True:
        if number := re.search(r"order (\d+)", message):
            reply = yield from cancel(workshop, int(number[1]))
        elif wanted := re.search(rf"(\d+) of ({SKU})", message):
            reply = yield from order(workshop, wanted[2], int(wanted[1]))
        else:
            reply = "I am sorry, that I can't do. Is there anything else?"
        message = yield reply


def order(workshop: str, sku: str, quantity: int) -> Generator[Any, Any, str]:
    one, other = yield [call("get_part", sku=sku), call("get_workshop", workshop=workshop)]
    if not (one["ok"] and other["ok"]):
        return "I can't find that."
    part, customer = one["result"], other["result"]
    if part["stock"] < quantity and part["successor"]:
        answer = yield f"{sku} is out of stock. Its successor is {part['successor']}; would you take it?"
        if not answer.startswith("Yes"):
            return "As you wish."
        return (yield from order(workshop, part["successor"], quantity))
    if customer["on_hold"] or customer["owes"] + quantity * part["price"] > customer["credit_limit"]:
        return "That would go over your credit limit. Would fewer do?"
    if part["hazardous"] and not customer["licence"]:
        return "I am sorry, that part goes only to workshops with a licence."
    (placed,) = yield [call("place_order", workshop=workshop, sku=sku, quantity=quantity)]
    return "It is ordered." if placed["ok"] else f"That did not work: {placed['error']}"


def cancel(workshop: str, number: int) -> Generator[Any, Any, str]:
    (found,) = yield [call("get_orders", workshop=workshop)]
    if all(each["number"] != number for each in found["result"]):
        return f"You have no order {number}."
    (cancelled,) = yield [call("cancel_order", number=number, workshop=workshop)]
    return "It is cancelled." if cancelled["ok"] else f"I can't cancel it: {cancelled['error']}"


def restock(message: str) -> Generator[Any, Any, str]:
    parts = yield [call("get_part", sku=sku) for sku in re.findall(SKU, message)]
    low = [each["result"]["sku"] for each in parts if each["result"]["stock"] < each["result"]["minimum"]]
    if low:
        yield [call("restock", sku=sku, quantity=20) for sku in low]
    return f"Restocked: {', '.join(low) or 'nothing, all is well'}."


if __name__ == "__main__":
    main(clerk)
