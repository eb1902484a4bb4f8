-- The record of migrations in the table meta.

-- name: lock
-- One process at a time changes the tables.
SELECT GET_LOCK(SHA2(?, 256), 60);

-- name: unlock
DO RELEASE_LOCK(SHA2(?, 256));

-- name: any_table
SELECT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?);

-- name: any_procedure
SELECT EXISTS (SELECT 1
               FROM   information_schema.routines
               WHERE  routine_schema = ? AND routine_name = ?);

-- name: read
SELECT value
FROM   app.waybill_meta
WHERE  name = ?;

-- name: note_step
-- Version and number of the last statement that was run.
REPLACE INTO app.waybill_meta (name, value) VALUES ('schema_step', ?);

-- name: forget_step
DELETE FROM app.waybill_meta WHERE name = 'schema_step';

-- name: note_version
REPLACE INTO app.waybill_meta (name, value) VALUES ('schema_version', ?);

-- name: buckets
-- The number of buckets and the hash function.
SELECT COALESCE((SELECT value FROM app.waybill_meta WHERE name = 'buckets'), '?'),
       COALESCE((SELECT value FROM app.waybill_meta WHERE name = 'hash'), '?');
