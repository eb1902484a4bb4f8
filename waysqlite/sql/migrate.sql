-- The record of migrations in the table meta.

-- name: any_table
SELECT count(*)
FROM   sqlite_schema
WHERE  type = 'table' AND name = ?;

-- name: version
SELECT value
FROM   waybill_meta
WHERE  name = 'schema_version';

-- name: note_version
-- A number in the place of VERSION.
INSERT INTO waybill_meta (name, value)
VALUES ('schema_version', 'VERSION')
ON     CONFLICT (name) DO UPDATE SET value = excluded.value;
