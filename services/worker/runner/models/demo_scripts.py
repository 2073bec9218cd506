"""Small programs that the demo model can write, chosen by words in the text."""

from dataclasses import dataclass

RESULT_PATH = "result.txt"
_INTERPRETERS = {".py": "python3", ".sh": "sh", ".js": "node"}

_SHELL_DEFAULT = """#!/bin/sh
# Written by the demo model.
echo "Hello from the sandbox."
total=0
for number in 1 2 3 4 5 6 7 8 9 10; do total=$((total + number)); done
echo "The numbers from 1 to 10 add up to $total."
"""
_SHELL_PRIMES = """#!/bin/sh
# Written by the demo model: the first ten primes.
found=0
number=2
while [ "$found" -lt 10 ]; do
  prime=1
  divisor=2
  while [ $((divisor * divisor)) -le "$number" ]; do
    [ $((number % divisor)) -eq 0 ] && prime=0
    divisor=$((divisor + 1))
  done
  if [ "$prime" -eq 1 ]; then echo "$number"; found=$((found + 1)); fi
  number=$((number + 1))
done
"""
_SHELL_FIBONACCI = """#!/bin/sh
# Written by the demo model: ten Fibonacci numbers.
a=0
b=1
for step in 1 2 3 4 5 6 7 8 9 10; do
  echo "$a"
  next=$((a + b)); a=$b; b=$next
done
"""
_PYTHON_DEFAULT = """# Written by the demo model.
print("Hello from the sandbox.")
print("The numbers from 1 to 10 add up to", sum(range(1, 11)), end=".\\n")
"""
_PYTHON_PRIMES = """# Written by the demo model: the first ten primes.
primes = []
number = 2
while len(primes) < 10:
    if all(number % prime for prime in primes):
        primes.append(number)
    number += 1
print(*primes, sep="\\n")
"""
_PYTHON_FIBONACCI = """# Written by the demo model: ten Fibonacci numbers.
a, b = 0, 1
for _ in range(10):
    print(a)
    a, b = b, a + b
"""
_PROGRAMS = {
    "python": {"prime": _PYTHON_PRIMES, "fibonacci": _PYTHON_FIBONACCI, "": _PYTHON_DEFAULT},
    "shell": {"prime": _SHELL_PRIMES, "fibonacci": _SHELL_FIBONACCI, "": _SHELL_DEFAULT},
}


@dataclass(frozen=True, slots=True)
class Script:
    """A file to write; `command` runs it, and is empty for what is not run."""

    path: str
    content: str
    command: str


def choose(text: str, named_file: str, *, run: bool) -> Script:
    """The file that the text is about."""
    lower = text.lower()
    python = named_file.endswith(".py") or (not named_file and "python" in lower)
    if not run and not named_file.endswith((".py", ".sh")):
        subject = " ".join(text.split())[:200]
        return Script(named_file or "notes.txt", f"Notes by the demo model on: {subject}\n", "")
    programs = _PROGRAMS["python" if python else "shell"]
    content = next(content for word, content in programs.items() if word in lower)
    path = named_file or ("demo.py" if python else "demo.sh")
    return Script(path, content, command_for(path) if run else "")


def command_for(path: str) -> str:
    """How a file is run, by its suffix."""
    suffix = path[path.rfind(".") :]
    return f"{_INTERPRETERS.get(suffix, 'sh')} {path}"
