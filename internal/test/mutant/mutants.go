package main

// A mutant is a bug and the edits that plant it.
type mutant struct {
	name  string
	edits []edit
}

// An edit replaces a text that occurs once in a file of the module.
type edit struct{ file, text, by string }

var mutants = []mutant{
	// Dispatchers write without the lock on their bucket: a later commit has a lower
	// id, and the relay publishes it out of order.
	{"no-dispatch-lock", []edit{
		{"waypg/write.go", "return all, locks, nil", "return all, nil, nil"},
		{"waymysql/write.go", "return all, locks, buckets, nil", "return all, nil, buckets, nil"},
	}},

	// A claim reads rows in the statement that locks: its snapshot is older than the
	// lock, and has rows that the last owner published.
	{"lock-and-read-at-once", []edit{
		{"waypg/sql/outbox.sql", "-- name: lock_buckets\n", `
-- name: lock_and_read
WITH locked AS MATERIALIZED (
         SELECT b.bucket
         FROM   public.waybill_outbox_bucket AS b,
                LATERAL (SELECT 1 FROM public.waybill_outbox AS o
                         WHERE  o.transport = b.transport
                         AND    o.bucket = b.bucket
                         AND    o.id > ($2::bigint[])[b.bucket + 1]
                         LIMIT  1) AS any_row
         WHERE  b.transport = $1::smallint
         AND    NOT EXISTS (SELECT 1 FROM public.waybill_meta AS m
                            WHERE m.name = 'relays_paused_until' AND m.value::timestamptz > now())
         LIMIT  32
         FOR    UPDATE OF b SKIP LOCKED),
     saved AS MATERIALIZED (
         SELECT set_config('waybill.locked', coalesce(array_agg(bucket)::text, '{}'), true) FROM locked)
SELECT true, l.bucket, o.ctid, o.id, o.message_id, o.message_name, o.partition_key, o.headers, o.body, o.created_at,
       false, NULL::bigint
FROM   saved, locked AS l,
       LATERAL (SELECT e.ctid, e.* FROM public.waybill_outbox AS e
                WHERE  e.transport = $1::smallint
                AND    e.bucket = l.bucket
                AND    e.id > ($2::bigint[])[l.bucket + 1]
                ORDER  BY e.id
                LIMIT  20) AS o
ORDER  BY l.bucket, o.id;

-- name: lock_buckets
`},
		{"waypg/claim.go", "type claim struct {\n", "type claim struct {\n\tatOnce []readpos.Row\n"},
		{"waypg/keyed.go", `batch.Queue(c.at.outbox.Query("lock_buckets"), args...)`, `batch.Queue(c.at.outbox.Query("lock_and_read"), args[0], args[2])`},
		{"waypg/keyed.go", "if _, err = results.Exec(); err != nil {", `locked, err := results.Query()
	if err != nil {
		return server, state, err
	}
	for locked.Next() {
		r, current := readpos.Row{}, false
		if err := scanRow(locked, &current, &r); err != nil {
			return server, state, err
		}
		c.atOnce = append(c.atOnce, r)
	}
	if err = locked.Err(); err != nil {`},
		{"waypg/keyed.go", "n := len(reads)\n", "return c.atOnce, true, nil\n\tn := len(reads)\n"},

		// The first part of the union takes the snapshot, the second the locks.
		{"waymysql/sql/claim.sql", "-- name: due_retry\n", `
-- name: lock_ahead
(SELECT ?, id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
 FROM   app.waybill_transport
 LIMIT  1)
UNION  ALL
(SELECT ?, bucket, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
 FROM   app.waybill_outbox_bucket FORCE INDEX (PRIMARY)
 WHERE  transport = ? AND bucket IN (?)
 FOR    UPDATE SKIP LOCKED);

-- name: due_retry
`},
		{"waymysql/keyed.go", "locked, err := c.lock(ctx, found, want)\n", "locked := found[:min(want, len(found))]\n"},
		{"waymysql/keyed.go", "rows, err := c.read(ctx, c.reading(reads, perBucket, limit), limit)\n", `const ahead = -4
	lock := c.fill("lock_ahead", ahead, ahead, c.on.Transport, numbers(locked))
	rows, err := c.read(ctx, unionAll([]clause{lock, c.reading(reads, perBucket, limit)}), limit)
	var held []int64
	rows = slices.DeleteFunc(rows, func(r readpos.Row) bool {
		if r.Bucket == ahead {
			held = append(held, *r.Last)
			return true
		}
		return !slices.Contains(held, int64(r.Bucket))
	})
`},
		{"waymysql/keyed.go", "if !c.db.isMariaDB() {", "if true {"},
	}},

	// A claim reads by one snapshot for its whole transaction, which is older than its
	// locks.
	{"repeatable-read-relay", []edit{
		{"waypg/claim.go", "BEGIN ISOLATION LEVEL READ COMMITTED", "BEGIN ISOLATION LEVEL REPEATABLE READ"},
		{"waymysql/claim.go", `err := c.exec(ctx, "START TRANSACTION")`, `_ = c.exec(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	err := c.exec(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT")`},
	}},

	// The relay deletes rows before the broker confirms them: a crash or a refusal in
	// between loses messages.
	{"delete-before-confirm", []edit{
		{"outbox/relaybatch.go", "settled := false\n", `if err := claim.Settle(ctx, rows, nil); err != nil {
		return 0, err
	}
	crash.At(crash.RelayAfterSettle)
	r.publish(ctx, part, to, rows)
	crash.At(crash.RelayAfterPublish)
	return len(rows), nil
	settled := false
`},
	}},

	// A confirm is resolved before the returns that came ahead of it are read: a message
	// that no queue took counts as delivered.
	{"confirm-before-return", []edit{
		{"wayamqp/confirmchannel.go", "c.drainReturns()\n\t// A confirmation", `defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.drainReturns()
	}()
	// A confirmation`},
	}},

	// Returns are never read: an unroutable message counts as delivered.
	{"returns-not-drained", []edit{
		{"wayamqp/confirmchannel.go", "c.drainReturns()\n\t// A confirmation", "// A confirmation"},
	}},

	// At the end of a connection acks count that have arrived after the last look for returns.
	{"ack-after-last-return", []edit{
		{"wayamqp/confirmchannel.go", "acked := make([]bool, len(c.pending))", "drain()\n\tacked := make([]bool, len(c.pending))"},
		{"wayamqp/confirmchannel.go", "\tdrain()\n\tfor i, p", "\tfor i, p"},
	}},

	// The relay publishes the next message of a key before the first is confirmed: if
	// the first is refused, it comes after the next.
	{"two-in-flight", []edit{
		{"internal/keyorder/publishqueue.go", "case follows && !atomic:", "case false:"},
	}},

	// A claim of a queue takes messages of a key set aside for its next ones, although claimable
	// ones between them lie beyond its window.
	{"window-ends-in-a-key", []edit{
		{"internal/sqlcore/queueclaim.go", "case window > 0:", "default:"},
	}},

	// A worker that freezes in its turn at a queue keeps it.
	{"turn-without-end", []edit{
		{"waypg/sql/queue.sql", "'idle_in_transaction_session_timeout', $3::text", "'idle_in_transaction_session_timeout', left($3::text, 0) || '0'"},
	}},

	// Transactions that settle lock rows in the order in which they were given: two can wait for
	// each other.
	{"settling-locks-as-given", []edit{
		{"waypg/sql/queue.sql", `DELETE FROM public.waybill_queue AS q
WHERE  q.id = ANY ($2::bigint[])
AND    q.holder = $1::uuid
AND   ((q.id, q.lease) IN (SELECT * FROM unnest($2::bigint[], $3::bigint[]))) IS TRUE
`, `DELETE FROM public.waybill_queue AS q
USING  unnest($2::bigint[], $3::bigint[]) AS u (id, lease)
WHERE  q.id = u.id
AND    q.lease = u.lease
AND    q.holder = $1::uuid
`},
	}},

	// A worker receives messages of a transport that an operator has paused.
	{"pause-without-effect", []edit{
		{"worker/pause.go", "return p.paused.known, slices.Contains(p.paused.transports, transport),", "return p.paused.known, false,"},
	}},

	// Read positions move before the commit that deletes the rows: after a commit that
	// failed, claims begin behind rows that were not published.
	{"mark-before-commit", []edit{
		{"waypg/settle.go", "gone, err := s.send(ctx)\n", "if c.Batch != nil {\n\t\tc.Settled(published)\n\t}\n\tgone, err := s.send(ctx)\n"},
		{"waymysql/settle.go", "if err := c.settle(ctx, published, failed); err != nil {", "c.settled(published, failed)\n\tif err := c.settle(ctx, published, failed); err != nil {"},
	}},

	// The relay makes the id of a message: a message that is published again has a new
	// id, and is not recognized as a duplicate.
	{"id-from-relay", []edit{
		{"outbox/batch.go", "records[i] = row.Record\n", "records[i] = row.Record\n\t\trow.Record.ID, _ = waybill.NewMessageID()\n"},
	}},

	// The inbox row commits apart from the writes of the handler: a crash in between
	// loses the effect.
	{"inbox-outside-transaction", []edit{
		{"inbox/inbox.go", "for try := 1; ; try++ {", `fresh := false
	insert := func(ctx context.Context, tx TX) (err error) {
		fresh, err = store.InsertTx(ctx, tx, e)
		return err
	}
	if err := store.InTx(ctx, insert); err != nil {
		return err
	}
	if !fresh {
		return waybill.ErrDuplicate
	}
	return store.InTx(ctx, func(ctx context.Context, tx TX) error {
		err := fn(ctx, tx)
		crash.At(crash.WorkerBeforeCommit)
		return err
	})
	for try := 1; ; try++ {`},
	}},

	// A message is acknowledged before its effect is committed: a message whose handler
	// fails is lost.
	{"ack-before-commit", []edit{
		{"worker/handle.go", "err = r.bus.HandleRecord(", "_ = s.Ack(ctx, d)\n\t\terr = r.bus.HandleRecord("},
	}},

	// A failed message is acknowledged before the retry queue has it: if it cannot be
	// stored, it is lost.
	{"ack-before-store", []edit{
		{"worker/move.go", "crash.At(crash.WorkerBeforeStore)\n", "_ = r.main.Ack(ctx, ds...)\n\tcrash.At(crash.WorkerBeforeStore)\n"},
	}},

	// Dead letters of workers are replayed outside the transaction of a replay: one that
	// fails has moved them.
	{"replay-outside-transaction", []edit{
		{"waypg/failedchange.go", `return o.Exec(ctx, "replay", numbers)`, `tag, err := o.db.pool.Exec(ctx, o.at.failed.Query("replay"), numbers)
	return int(tag.RowsAffected()), err`},
	}},

	// A message becomes a dead letter in one transaction, and leaves the retry queue in the
	// next one.
	{"buried-in-two-transactions", []edit{
		{"waysqlite/retry.go", `_, err := tx.exec(ctx, s.db.retrySQL.Query("delete_buried"), id)`, `_, _ = tx.Exec("COMMIT")
	_, _ = tx.Exec("BEGIN IMMEDIATE")
	_, err := tx.exec(ctx, s.db.retrySQL.Query("delete_buried"), id)`},
	}},

	// A worker does not ask the retry queue for the keys of the messages that arrive: after a
	// takeover they overtake those that wait for a retry.
	{"diverted-keys-forgotten", []edit{
		{"worker/loops.go", "b.contained[at[i]] = in\n", "b.contained[at[i]] = in && asked[i].Record.Key == \"\"\n"},
	}},

	// The acknowledgement of a handled message covers all earlier messages, handled or
	// not.
	{"ack-over-uncommitted", []edit{
		{"wayamqp/acks.go", "tags = slices.Sorted(slices.Values(tags))\n", `tags = slices.Sorted(slices.Values(tags))
	if upto = tags[len(tags)-1]; upto <= a.done[0].to { // acknowledged before
		return 0, nil
	}
	a.done[0].to = upto
	return upto, nil
`},
	}},

	// A worker whose lease has ended moves the message that another worker has.
	{"late-holder-moves", []edit{
		{"waypg/sql/retry.sql", "    AND    q.lease = $3::bigint\n    AND    q.holder = $1::uuid\n    RETURNING q.id, q.lease, q.partition_key, q.queue, q.message_id, q.failures", "    AND    $3::bigint > 0\n    AND    $1::uuid IS NOT NULL\n    RETURNING q.id, q.lease, q.partition_key, q.queue, q.message_id, q.failures"},
	}},

	// The parked rows of a released key get new ids: rows that came since are published
	// before them.
	{"release-by-reinsertion", []edit{
		{"waypg/sql/settle.sql", "SET    bucket = bucket - 1024\n", "SET    bucket = bucket - 1024, id = DEFAULT\n"},
	}},

	// A unit of work on MySQL commits although the server has ended its transaction: an
	// effect commits without its inbox row, or messages without the writes they belong to.
	{"no-savepoint-guard", []edit{
		{"waymysql/unit.go", `statement{text: "RELEASE SAVEPOINT " + sentinel}, `, ""},
	}},
}
