package waypg

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/waybill-go/waybill/internal/sqlfile"
)

// catalog holds the names of a resolved database, with the statements for it.
type catalog struct {
	database string
	schema   string
	// namespace is the first number of the advisory locks, from the names of
	// database, schema and prefix; waybill_dispatch computes the same.
	namespace int32

	outbox, settle, inbox, queue, unique, retry, schedule, admin, failed, rebucket, wake, migrate, doctor, history sqlfile.Set
	// retryQueue is queue for the table of the retry queues.
	retryQueue sqlfile.Set
}

// resolve returns the database's names and statements. It queries them once.
func (db *DB) resolve(ctx context.Context) (*catalog, error) {
	if found := db.resolved(); found != nil {
		return found, nil
	}
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return nil, translate(err)
	}
	defer conn.Release()
	pooled, err := behindPooler(ctx, conn.Conn())
	if err != nil {
		return nil, translate(err)
	}
	if mode := conn.Conn().Config().DefaultQueryExecMode; pooled && (mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeDescribeExec) {
		return nil, fmt.Errorf("waypg: the connection goes through a pooler, and the pool is set to %v: set DefaultQueryExecMode to pgx.QueryExecModeExec", mode)
	}
	return db.locate(ctx, conn.QueryRow)
}

func (db *DB) resolved() *catalog {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.catalog
}

// A queryRow asks a pool, a connection or a transaction.
type queryRow func(ctx context.Context, query string, args ...any) pgx.Row

// locate reads the database's names and prepares its statements.
func (db *DB) locate(ctx context.Context, ask queryRow) (*catalog, error) {
	p := &catalog{}
	var schema *string
	if err := ask(ctx, connecting.Query("where")).Scan(&p.database, &schema); err != nil {
		return nil, translate(err)
	}
	if p.schema = db.schema; p.schema == "" {
		if schema == nil {
			return nil, fmt.Errorf("waypg: no schema of the search path exists in %s: create one, or name it in the configuration", p.database)
		}
		p.schema = *schema
		if err := checkNames(p.schema, db.prefix); err != nil {
			return nil, err
		}
	}
	p.namespace = namespace(p.database, p.schema, db.prefix)
	for name, set := range map[string]*sqlfile.Set{"outbox": &p.outbox, "settle": &p.settle, "inbox": &p.inbox, "queue": &p.queue, "unique": &p.unique, "retry": &p.retry, "schedule": &p.schedule, "admin": &p.admin, "failed": &p.failed, "rebucket": &p.rebucket, "wake": &p.wake, "migrate": &p.migrate, "doctor": &p.doctor, "history": &p.history} {
		*set = mustNamed(name, p.schema, db.prefix)
	}
	p.retryQueue = mustNamed("queue", p.schema, db.prefix, "waybill_queue", "waybill_retry")
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.catalog == nil {
		db.catalog = p
	}
	return db.catalog, nil
}

// ensureSchema is resolve with a check of the schema. It takes a connection of the pool, so
// it must not be called inside a caller's transaction: see resolveInTx.
func (db *DB) ensureSchema(ctx context.Context) (*catalog, error) {
	p, err := db.resolve(ctx)
	if err != nil || db.upToDate() {
		return p, err
	}
	if err := db.checkSchema(ctx); err != nil {
		return nil, err
	}
	return p, db.refresh(ctx, p, db.pool.QueryRow)
}

// resolveInTx is ensureSchema for a caller's transaction, without the check of the schema. It
// queries in the transaction, because such transactions may have exhausted the
// pool.
func (db *DB) resolveInTx(ctx context.Context, ask queryRow) (p *catalog, err error) {
	if p = db.resolved(); p == nil {
		if p, err = db.locate(ctx, ask); err != nil {
			return nil, err
		}
	}
	if db.upToDate() {
		return p, nil
	}
	return p, db.refresh(ctx, p, ask)
}

func (db *DB) upToDate() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.usable
}

// refresh reads the number of buckets and the transports.
func (db *DB) refresh(ctx context.Context, p *catalog, ask queryRow) error {
	var buckets int
	var text string
	if err := ask(ctx, p.outbox.Query("known")).Scan(&buckets, &text); err != nil {
		return translate(err)
	}
	transports := map[string]int16{}
	if err := json.Unmarshal([]byte(text), &transports); err != nil {
		return err
	}
	db.setBuckets(buckets)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.transports, db.usable = transports, true
	return nil
}

func (db *DB) bucketCount() int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.buckets
}

// setBuckets takes note of the number of buckets.
func (db *DB) setBuckets(n int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.buckets != n {
		db.relaying = map[int16]*relaying{}
	}
	db.buckets = n
}

// recheckSchema has the tables read again before their next use.
func (db *DB) recheckSchema() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.usable = false
}

// transportID returns the number of a transport, or 0 when nothing was dispatched to
// it yet.
func (db *DB) transportID(ctx context.Context, p *catalog, transport string) (int16, error) {
	if id := db.knownTransport(transport); id != 0 {
		return id, nil
	}
	err := db.refresh(ctx, p, db.pool.QueryRow)
	return db.knownTransport(transport), err
}

func (db *DB) knownTransport(name string) int16 {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.transports[name]
}
