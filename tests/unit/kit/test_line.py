"""Messages on a line arrive whole and in order, however the bytes are cut on their way."""

import asyncio

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from kit.rpc.line import Line, line_path


class Ear:
    def __init__(self):
        self.heard = []
        self.rooms = 0

    def received(self, message):
        if message == b"bad":
            raise DecodeError("bad")
        self.heard.append(message)

    def has_room(self):
        self.rooms += 1

    def lost(self):
        pass


class Wire(asyncio.Transport):
    """Takes down what is written, and what is asked of it."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closing = False
        self.reading = True

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        self.written += data

    def is_closing(self):
        return self.closing

    def abort(self):
        self.closing = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


def line(*, hears_while_full=True):
    ear, wire = Ear(), Wire()
    made = Line(ear, hears_while_full=hears_while_full)
    made.connection_made(wire)
    return made, ear, wire


@given(st.lists(st.binary(max_size=300).filter(lambda message: message != b"bad"), max_size=20), st.data())
def test_messages_come_whole_and_in_order_however_they_are_cut(messages, data):
    sender, _, wire = line()
    for message in messages:
        sender.send(message)
    receiver, ear, _ = line()
    left = wire.written
    while left:
        cut = data.draw(st.integers(1, len(left)))
        receiver.data_received(left[:cut])
        left = left[cut:]
    assert ear.heard == messages


@pytest.mark.parametrize("before", [b"", b"\0\0\0\1a"])
def test_what_can_not_be_read_cuts_the_line_and_ends_what_follows(before):
    receiver, ear, wire = line()
    receiver.data_received(before + b"\0\0\0\3bad" + b"\0\0\0\1z")
    assert wire.closing and ear.heard == [before[4:]] * bool(before)


def test_a_length_beyond_any_message_cuts_the_line():
    receiver, ear, wire = line()
    receiver.data_received(b"\0\0\0\1a\x7f\xff\xff\xff")
    assert wire.closing and ear.heard == [b"a"]


@pytest.mark.parametrize("hears", [True, False])
def test_only_one_end_goes_on_hearing_while_the_other_is_slow(hears):
    made, ear, wire = line(hears_while_full=hears)
    made.pause_writing()
    assert made.is_full and wire.reading is hears
    made.resume_writing()
    assert not made.is_full and wire.reading and ear.rooms == 1


def test_a_line_lies_beside_the_socket_of_its_service():
    assert str(line_path("unix:/run/x/sessions.sock")) == "/run/x/sessions.line"
    assert line_path("127.0.0.1:7000") is None
