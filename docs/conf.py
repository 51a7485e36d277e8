"""Settings of Sphinx: `make docs` builds this folder into build/docs.

The directive `training-arguments` is the table of train/trainer/training_arguments.py as Markdown, made at each build.
"""

from docutils.nodes import Node
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tokentar.train.trainer.training_arguments import FOR_METRICS, HARMLESS, REFUSED, TESTED, TRAINERS_OWN

project = "tokentar"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "tokentar"
myst_heading_anchors = 3
autodoc_typehints = "description"  # of long signatures, which would fill the page
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"


def training_arguments(group: str) -> str:
    """The fields of TrainingArguments of one group as Markdown: `tested`, `trainer`, `harmless`, `refused` or `metrics`."""
    if group == "trainer":
        return ", ".join(f"`{name}`" for name in sorted(TRAINERS_OWN)) + "."
    if group == "metrics":
        return ", ".join(f"`{name}`" for name in FOR_METRICS)
    heads, rows = {
        "tested": (("field", "test"), [(name, f"`{test}`") for name, test in TESTED.items()]),
        "harmless": (("field", "why it makes no difference"), list(HARMLESS.items())),
        "refused": (
            ("field", "why", "what to do"),
            [(name, refused.why, refused.way_out) for name, refused in REFUSED.items()],
        ),
    }[group]
    lines = [f"| `{name}` | {' | '.join(others)} |" for name, *others in sorted(rows)]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines])


class TrainingArgumentsTable(SphinxDirective):
    """`training-arguments GROUP` in a page."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """The nodes of the table."""
        lines = training_arguments(self.arguments[0]).splitlines()
        self.content = StringList(lines, source="train/trainer/training_arguments.py")
        return self.parse_content_to_nodes()


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_directive("training-arguments", TrainingArgumentsTable)
