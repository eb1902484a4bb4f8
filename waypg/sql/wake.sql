-- How relays hear of commits in other processes. See docs/schema.md.

-- name: announce
-- Tells listeners on the channels $1 that there may be rows; $2 is the sender.
-- Transactions that notify commit one after another, so this is never part of one
-- that writes, and it does not wait for its own commit to be on disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, $2::text)
FROM   unnest($1::text[]) AS channel;

-- name: server
-- The identity of server and database: announcements on one are not heard on
-- another.
SELECT current_database(), pg_postmaster_start_time();

-- name: prepare_listener
-- Settings of a session that listens, as far as the server has them: it is not
-- ended for its silence, it is known by its name, and a peer that no longer reads
-- does not fill the server's queue of notifications.
SELECT count(set_config(name, CASE name WHEN 'tcp_user_timeout' THEN '30s'
                                        WHEN 'application_name' THEN 'waybill listener'
                                        ELSE '0' END, false))
FROM   pg_settings
WHERE  name IN ('tcp_user_timeout', 'idle_session_timeout', 'application_name');
