"""Python runs this at its start: every process with this folder in its path has the make-believe accelerator."""

from accelerator import accelerator

_here_to_stay = accelerator()
_here_to_stay.__enter__()
