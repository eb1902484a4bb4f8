package admin

import (
	"context"
	"maps"
)

// An Examiner is a database that reports settings and states under which waybill keeps
// less than it promises, or will soon be slow, and which opening does not refuse.
type Examiner interface {
	// Findings returns the defects found now; none on a healthy database. It changes
	// nothing.
	Findings(ctx context.Context) ([]Finding, error)
}

// A Finding is one defect.
type Finding struct {
	Code     Code     `json:"code"`
	Severity Severity `json:"severity"`
	Where    string   `json:"where,omitempty"` // a DSN without its password, or a transport
	Problem  string   `json:"problem"`         // one sentence
	Remedy   string   `json:"remedy"`          // one sentence
}

// NewFinding returns a finding with the severity of its code.
func NewFinding(code Code, problem, remedy string) Finding {
	return Finding{Code: code, Severity: severities[code], Problem: problem, Remedy: remedy}
}

// A Severity tells how bad a finding is.
type Severity string

const (
	Broken  Severity = "error"   // a promise is not kept, or messages do not move
	Warning Severity = "warning" // it works, and will be slow or fragile
	Note    Severity = "note"    // a check could not be made; no failure
)

// A Code names a kind of finding. It stays the same in later versions.
type Code string

// The codes of findings.
const (
	NotDurable         Code = "not-durable"
	BinlogNotSynced    Code = "binlog-not-synced"
	MissingIndex       Code = "missing-index"
	AutovacuumOff      Code = "autovacuum-off"
	OldTransaction     Code = "old-transaction"
	InactiveSlot       Code = "inactive-slot"
	IdleTransaction    Code = "idle-transaction"
	ClockSkew          Code = "clock-skew"
	HiddenTransactions Code = "hidden-transactions"
	NoRelay            Code = "no-relay"
	RelayProblem       Code = "relay-problem"
	UnusableSetting    Code = "unusable-setting"
	SequenceCache      Code = "sequence-cache"
	UnloggedTable      Code = "unlogged-table"
	ShortRetention     Code = "short-retention"
	ShortRetries       Code = "short-retries"
	LongHandler        Code = "long-handler"
	MissingQueue       Code = "missing-queue"
	QueueDrops         Code = "queue-drops"
	QueueUnordered     Code = "queue-unordered"
	QueueType          Code = "queue-type"
	BrokerUnchecked    Code = "broker-unchecked"
	FewConnections     Code = "few-connections"
	UnboundedWorker    Code = "unbounded-worker"
	TerminationGrace   Code = "termination-grace"
	PausedTransport    Code = "paused-transport"
)

var severities = map[Code]Severity{
	NotDurable: Broken, MissingIndex: Broken, NoRelay: Broken, RelayProblem: Broken, SequenceCache: Broken, UnloggedTable: Broken,
	ShortRetention: Broken, ShortRetries: Warning, LongHandler: Warning,
	BinlogNotSynced: Warning, AutovacuumOff: Warning, OldTransaction: Warning, InactiveSlot: Warning, IdleTransaction: Warning,
	ClockSkew: Warning, UnusableSetting: Warning,
	MissingQueue: Broken, QueueDrops: Broken, QueueUnordered: Broken, QueueType: Warning, FewConnections: Warning,
	UnboundedWorker: Warning, PausedTransport: Warning,
	HiddenTransactions: Note, BrokerUnchecked: Note, TerminationGrace: Note,
}

// Severities returns the severity of each code.
func Severities() map[Code]Severity { return maps.Clone(severities) }
