"""python -m tests.transcripts: write what the scenarios' commands lead to anew. Then read the difference."""

from tests.transcripts.interpreter import FOLDER, replayed, scenarios

for file in sorted(FOLDER.glob("*.txt")):
    first, *rest = scenarios(file).values()
    file.write_text(first + "".join(map(replayed, rest)))
