"""The cases of the suites of Django and of django-tasks-db that do not test what every backend has in common, with the reason."""

REASONS = {
    "expects a backend without get_result": (
        "ImmediateBackendTestCase.test_cannot_get_result",
        "ImmediateBackendTestCase.test_cannot_refresh_result",
    ),
    "expects a backend without run_after": ("ImmediateBackendTestCase.test_cannot_pass_run_after",),
    "expects enqueue to raise the KeyboardInterrupt of a task that it runs in the same thread": (
        "ImmediateBackendTestCase.test_throws_keyboard_interrupt",
    ),
    "expects a task to run before the transaction that enqueues it commits": (
        "ImmediateBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default",
    ),
    "formats the column run_after of the model for its page in Django's admin": (
        "AdminTestCase.test_display_run_after_returns_db_value",
        "AdminTestCase.test_display_run_after_returns_empty_for_date_max_or_none",
    ),
    "compares the name Task in the module compat of django-tasks-db": ("CompatTestCase.test_compat_has_django_task",),
    "expects BEGIN EXCLUSIVE from the helper exclusive_transaction": (
        "ConnectionExclusiveTranscationTestCase.test_exclusive_transaction",
    ),
    "tests the option id_function of django-tasks-db": (
        "DatabaseBackendTestCase.test_custom_id_function",
        "DatabaseBackendTestCase.test_postgres_db_id_function",
        "DatabaseBackendTestCase.test_postgres_id_function_expression",
        "DatabaseBackendTestCase.test_unknown_id_function",
    ),
    "expects the model's index of that name in the query plan": ("DatabaseBackendTestCase.test_index_scan_for_ready",),
    "expects the property task of the model to import the stored path; Holdfast imports no stored path": (
        "DatabaseBackendTestCase.test_invalid_task_path",
        "DatabaseBackendTestCase.test_missing_task_path",
    ),
    "reads the property task_name of the model, also for tasks that cannot be imported": (
        "DatabaseBackendTestCase.test_task_name",
    ),
    "expects a check constraint on the model's column priority": ("DatabaseBackendTestCase.test_priority_range_check",),
    "writes the year 9999, which a migration of the model stored for no run_after": (
        "DatabaseBackendTestCase.test_run_after_null_0016_migration",
    ),
    "expects a worker to fail a task that its process does not declare; in Holdfast it waits for a process that does": (
        "DatabaseBackendWorkerTestCase.test_invalid_task_path",
        "DatabaseBackendWorkerTestCase.test_missing_task_path",
        "DatabaseBackendWorkerTestCase.test_task_import_string",
    ),
    "tests the option --backend of db_worker and prune_db_task_results": (
        "DatabaseBackendPruneTaskResultsTestCase.test_incorrect_backend",
        "DatabaseBackendPruneTaskResultsTestCase.test_unknown_backend",
        "DatabaseBackendWorkerTestCase.test_doesnt_process_different_backend",
        "DatabaseBackendWorkerTestCase.test_incorrect_backend",
        "DatabaseBackendWorkerTestCase.test_unknown_backend",
    ),
    "tests the option --worker-id of db_worker; a worker of Holdfast has a generated id": (
        "DatabaseBackendWorkerTestCase.test_empty_worker_id",
        "DatabaseBackendWorkerTestCase.test_too_long_worker_id",
    ),
    "tests the option --interval of db_worker; a worker of Holdfast is woken": (
        "DatabaseBackendWorkerTestCase.test_fractional_interval",
        "DatabaseBackendWorkerTestCase.test_infinite_interval",
        "DatabaseBackendWorkerTestCase.test_negative_interval",
        "DatabaseBackendWorkerTestCase.test_zero_interval",
    ),
    "tests the option --exclude-queues of db_worker": (
        "DatabaseBackendWorkerTestCase.test_exclude_queues_requires_processing_all_queues",
    ),
    "expects exactly two runs of --max-tasks; --max-deliveries of Holdfast replaces a process after about that many": (
        "DatabaseBackendWorkerTestCase.test_max_tasks",
    ),
    "expects the order of the model's rows that are not due, by 201 priorities; Holdfast has four levels": (
        "DatabaseBackendWorkerTestCase.test_run_after_priority",
    ),
    "expects every line that db_worker logs, word for word": ("DatabaseBackendWorkerTestCase.test_verbose_logging",),
    "locks rows by get_locked of the model's manager": (
        "DatabaseTaskResultTestCase.test_get_locked_with_locked_rows",
        "DatabaseTaskResultTestCase.test_lock_no_rows",
        "DatabaseTaskResultTestCase.test_locks_tasks",
        "DatabaseTaskResultTestCase.test_locks_tasks_filtered",
        "DatabaseTaskResultTestCase.test_locks_tasks_filtered_sqlite",
        "DatabaseTaskResultTestCase.test_locks_tasks_sqlite",
    ),
    "tests the option --queue-name of prune_db_task_results": (
        "DatabaseBackendPruneTaskResultsTestCase.test_only_prunes_specified_queue",
    ),
    "tests the option --failed-min-age-days of prune_db_task_results; Holdfast never prunes dead letters": (
        "DatabaseBackendPruneTaskResultsTestCase.test_failed_min_age",
        "DatabaseBackendPruneTaskResultsTestCase.test_failed_min_age_zero",
    ),
    "writes a finished_at days before the task was enqueued": ("DatabaseBackendPruneTaskResultsTestCase.test_min_age",),
    "expects a forced stop to fail the running task; Holdfast runs it again, and --worker-id is an option of db_worker": (
        "DatabaseWorkerProcessTestCase.test_repeat_ctrl_c",
    ),
}

SQLITE_REASONS = {
    "starts three workers; Holdfast refuses a second worker on one SQLite file": (
        "DatabaseWorkerProcessTestCase.test_multiple_workers",
    ),
}
