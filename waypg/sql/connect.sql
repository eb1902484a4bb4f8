-- Statements that name no table of waybill.

-- name: where
SELECT current_database(), current_schema();

-- name: database
SELECT current_database();

-- name: backend
SELECT pg_backend_pid();

-- name: check_deferred
-- Deferred constraints fail here and not after the rows have taken their locks.
SET CONSTRAINTS ALL IMMEDIATE;
