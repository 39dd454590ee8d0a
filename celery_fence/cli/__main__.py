"""The same commands without `celery -A`: for a project that can't be imported."""

from celery.bin.base import CLIContext

from celery_fence.cli import fence

if __name__ == "__main__":
    fence(prog_name="python -m celery_fence.cli", obj=CLIContext(app=None, no_color=False, workdir=None))
