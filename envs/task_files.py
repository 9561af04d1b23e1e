"""Tasks in files: JSON, `{"tasks": [{"name": ..., "batch_size": ..., "device_memory": [...], "tables": [...]}]}`.

Tables are records as in `dataio.table_files`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardgym.costmodel.placement import Task
from shardgym.dataio.atomic import write_text
from shardgym.dataio.table_files import table_from_record, table_to_record
from shardgym.embeddings.errors import InputError


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks to a JSON file, atomically."""
    records = [
        {
            "name": task.name,
            "batch_size": task.batch_size,
            "device_memory": list(task.device_memory),
            "tables": [table_to_record(table) for table in task.tables],
        }
        for task in tasks
    ]
    write_text(path, json.dumps({"tasks": records}, indent=1) + "\n")


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read the tasks of a JSON file.

    Raises:
        InputError: names the file, the task and the field that does not fit.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a task file that exists") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid JSON ({error}); mend it or write it again") from error
    records = content.get("tasks") if isinstance(content, Mapping) else None
    if not isinstance(records, list) or not records:
        raise InputError(f"{path}: field 'tasks' is missing or empty; give {{\"tasks\": [{{...}}]}}")
    try:
        return tuple(_task(record, f"task {k}") for k, record in enumerate(records))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _task(record: Any, where: str) -> Task:
    if not isinstance(record, Mapping):
        raise InputError(f"{where} is not an object; give fields tables, device_memory and batch_size")
    for needed, kind in (("tables", list), ("device_memory", list), ("batch_size", int)):
        if not isinstance(record.get(needed), kind):
            raise InputError(f"{where}: field {needed!r} is missing or no {kind.__name__}; add it")
    memory = record["device_memory"]
    if not all(isinstance(size, int) for size in memory):
        raise InputError(f"{where}: device_memory is {memory!r}; give whole bytes for each device")
    tables = tuple(table_from_record(table) for table in record["tables"])
    return Task(tables, tuple(memory), record["batch_size"], str(record.get("name", where)))
