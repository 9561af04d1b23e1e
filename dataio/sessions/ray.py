"""The tasks of a clustering on the machines of a Ray cluster, which share the log's and the output's folders."""

from collections.abc import Callable, Iterator

from shardgym.problem.errors import InputError

TRIES = 3


def run_on_ray(task: Callable[..., int], arguments: list[tuple]) -> Iterator[int]:
    """Run `task(plan, number)` for every entry on the cluster that is connected, or on a local one.

    Each task takes the plan's memory and threads of its machine. A task that a lost machine took with it is
    tried again; what it left unfinished has no final name.

    Raises:
        InputError: Ray is not installed, no machine has the threads or memory of a task, or a task raised it.
    """
    try:
        import ray
    except ImportError:
        raise InputError("engine ray: Ray is not installed; pip install 'shardgym[ray]'") from None
    if not arguments:
        return
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    settings = arguments[0][0].settings
    _fits_a_machine("CPU", settings.threads, "threads")
    _fits_a_machine("memory", settings.memory, "bytes of memory")
    remote = ray.remote(num_cpus=settings.threads, memory=settings.memory, max_retries=TRIES)(task)
    plan = ray.put(arguments[0][0])
    waiting = [remote.remote(plan, *rest) for _, *rest in arguments]
    try:
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1)
            yield ray.get(done[0])
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, InputError):
            raise InputError(str(error.cause)) from None
        raise
    finally:
        for task_left in waiting:
            ray.cancel(task_left)


def _fits_a_machine(resource: str, wanted: int, what: str) -> None:
    """Refuse what Ray would wait for without end."""
    import ray

    most = max((node["Resources"].get(resource, 0) for node in ray.nodes() if node["Alive"]), default=0)
    if wanted > most:
        raise InputError(
            f"engine ray: a task takes {wanted:,} {what}, but no machine of the cluster has more than {most:,.0f}; "
            f"give fewer {what}"
        )
