"""Tasks in files: JSON, `{"tasks": [{"name": ..., "batch_size": ..., "device_memory": [...], "tables": [...]}]}`.

Tables are records as in `problem.table_records`. Plan files hold their task in the same form.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardgym.problem.errors import InputError
from shardgym.problem.files import read_json, write_json
from shardgym.problem.table_records import table_from_record, table_to_record
from shardgym.problem.tasks import Task
from shardgym.problem.topology import topology_from_record, topology_to_record


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks to a JSON file, atomically."""
    write_json(path, {"tasks": [task_to_record(task) for task in tasks]})


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read the tasks of a JSON file.

    Raises:
        InputError: names the file, the task and the field that does not fit.
    """
    content = read_json(path, "give a task file that `write_tasks` wrote")
    records = content.get("tasks") if isinstance(content, Mapping) else None
    if not isinstance(records, list) or not records:
        raise InputError(f"{path}: field 'tasks' is missing or empty; give {{\"tasks\": [{{...}}]}}")
    try:
        return tuple(task_from_record(record, f"task {k}") for k, record in enumerate(records))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def task_to_record(task: Task) -> dict[str, Any]:
    """The task as a JSON object; `task_from_record` reads it back."""
    return {
        "name": task.name,
        "batch_size": task.batch_size,
        "device_memory": list(task.device_memory),
        "topology": topology_to_record(task.topology),
        "tables": [table_to_record(table) for table in task.tables],
    }


def task_from_record(record: Any, where: str = "task") -> Task:
    """Make a task of a JSON object.

    Args:
        record: as `task_to_record` writes it.
        where: what to call it in errors.

    Raises:
        InputError: names a missing or ill-typed field, or what `Task` and `TableSpec` refuse.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"{where} is not an object; give fields tables, device_memory and batch_size")
    for needed, kind, wanted in (
        ("tables", list, "a list of tables"),
        ("device_memory", list, "the bytes of each device"),
        ("batch_size", int, "a whole number"),
    ):
        if needed not in record:
            raise InputError(f"{where}: field {needed!r} is missing; give {wanted}")
        if not isinstance(record[needed], kind) or isinstance(record[needed], bool):
            raise InputError(f"{where}: field {needed!r} is {record[needed]!r}; give {wanted}")
    memory = record["device_memory"]
    if not all(type(size) is int for size in memory):
        raise InputError(f"{where}: field 'device_memory' is {memory!r}; give whole bytes for each device")
    if not all(isinstance(table, Mapping) for table in record["tables"]):
        raise InputError(f"{where}: field 'tables' holds something else than objects; give a list of tables")
    tables = tuple(table_from_record(table) for table in record["tables"])
    topology = topology_from_record(record.get("topology"), where)
    return Task(tables, tuple(memory), record["batch_size"], str(record.get("name", where)), topology)
