-- name: turn
-- Claims of a queue take turns, so that none sees a key free that another is
-- just taking. It is a statement of its own: the next one sees what the last
-- claimer has committed.
SELECT g.bucket FROM app.waybill_outbox_gate AS g WHERE g.transport = -1 AND g.bucket = ? FOR UPDATE;

-- name: free
-- What may be lent, oldest first. A key of which anybody has a row, or whose
-- head waits for a retry, is left alone, so that it keeps its order.
SELECT c.id FROM app.waybill_queue AS c FORCE INDEX (waybill_queue_by_queue)
WHERE  c.queue = ? AND (c.held_until IS NULL OR c.held_until <= UTC_TIMESTAMP(6)) AND (c.partition_key = '' OR NOT EXISTS (
       SELECT 1 FROM app.waybill_queue AS h FORCE INDEX (waybill_queue_held)
       WHERE  h.queue = c.queue AND h.partition_key = c.partition_key AND h.held_until > UTC_TIMESTAMP(6)))
ORDER  BY c.id LIMIT ?;
