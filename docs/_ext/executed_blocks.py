"""Directive `run`: commands that a build runs, shown with what they print.

The blocks of a page run one after another in a folder of the page.  ``:codes: 3`` are exit codes
besides 0, ``:first: 9`` and ``:last: 5`` show the first or the last lines alone, ``:silent:`` shows
no output, ``:prepare: KIND`` first writes the files of `prepared_files.py`, and ``:picture: PATH``
shows a picture that the commands have written, described by ``:alt:``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import warm_commands
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).parent
WORK = Path(tempfile.gettempdir()) / f"calibscale-docs-run-{os.getuid()}"


class Run(SphinxDirective):
    has_content = True
    option_spec = {  # noqa: RUF012
        "codes": directives.positive_int_list,
        "first": directives.positive_int,
        "last": directives.positive_int,
        "silent": directives.flag,
        "prepare": directives.unchanged,
        "picture": directives.unchanged_required,
        "alt": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        folder = WORK / self.env.docname.replace("/", "-")
        if self.env.temp_data.setdefault("run folder", None) is None:
            self.env.temp_data["run folder"] = folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "examples").symlink_to(HERE.parent.parent / "examples")
        if kind := self.options.get("prepare"):
            script = [sys.executable, HERE / "prepared_files.py", kind]
            subprocess.run(script, cwd=folder, check=True)
        shown = []
        for command in "\n".join(self.content).removeprefix("$ ").split("\n$ "):
            code, output = _executed(command.strip(), folder)
            if code not in (0, *self.options.get("codes", ())):
                raise self.error(f"exit code {code}: {command}\n{output}")
            shown.append(f"$ {command.strip()}")
            if "silent" not in self.options:
                lines = output.replace(f"{folder}/", "").rstrip().splitlines()
                first = self.options.get("first", len(lines))
                shown += lines[-self.options.get("last", len(lines)) :][:first]
        text = "\n".join(shown)
        block = nodes.literal_block(text, text, language="console")
        self.set_source_info(block)
        if picture := self.options.get("picture"):
            return [block, self._image(folder / picture)]
        return [block]

    def _image(self, picture: Path) -> nodes.image:
        """Picture, copied to the generated files of the site, where Sphinx finds it."""
        place = Path("generated/pictures") / f"{self.env.docname.replace('/', '-')}-{picture.name}"
        copy = Path(self.env.srcdir) / place
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, copy)
        return nodes.image(uri=f"/{place.as_posix()}", alt=self.options.get("alt", ""))


def _executed(command: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command in a folder."""
    if (words := warm_commands.words_of(command)) is not None:
        return warm_commands.run(words, folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("run", Run)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
