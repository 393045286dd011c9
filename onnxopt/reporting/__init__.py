"""Views of plain records: in a terminal, as plain lines, as Markdown. Knows nothing of graphs and passes."""
