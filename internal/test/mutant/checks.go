package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// A check is a test, or the demo, that must fail where a mutant is planted.
type check struct {
	mutant string
	in     string         // the package
	test   string         // a pattern, as of -test.run; empty for the demo
	on     place          // the servers that it is about
	says   *regexp.Regexp // part of its failure
	luck   bool           // transactions have to meet: one of ten runs must catch it
}

// name is the test's, without the marks of a pattern.
func (c check) name() string {
	if c.in == demo {
		return "the demo"
	}
	return strings.NewReplacer("^", "", "$", "").Replace(c.test)
}

// demo is the package of the binary that has the demo.
const demo = "./cmd/waybill"

// A place names servers.
type place string

const (
	sqlite         place = "SQLite"
	postgres       place = "PostgreSQL"
	mariadb        place = "MariaDB"
	rabbitmq       place = "RabbitMQ"
	postgresRabbit place = "PostgreSQL, RabbitMQ"
	mariadbRabbit  place = "MariaDB, RabbitMQ"
	anywhere       place = "any" // no server has a part in it
)

// servers are the options of the demo.
func (p place) servers() ([]string, error) {
	variable := map[place]string{postgresRabbit: "WAYBILL_TEST_POSTGRES", mariadbRabbit: "WAYBILL_TEST_MARIADB"}[p]
	if variable == "" {
		return nil, nil
	}
	database, broker := os.Getenv(variable), os.Getenv("WAYBILL_TEST_RABBITMQ")
	if database == "" || broker == "" {
		return nil, fmt.Errorf("no servers of %s: run it below `go run ./internal/test/testserver/run --`", p)
	}
	return []string{"--database", database, "--broker", broker}, nil
}

// The verdict of the demo.
var (
	lost       = regexp.MustCompile(`"lost": *[1-9]`)
	phantoms   = regexp.MustCompile(`"phantoms": *[1-9]`)
	outOfOrder = regexp.MustCompile(`"order_violations": *[1-9]`)
)

var checks = []check{
	{"no-dispatch-lock", demo, "", postgresRabbit, outOfOrder, true},
	{"no-dispatch-lock", demo, "", mariadbRabbit, outOfOrder, true},
	{"no-dispatch-lock", "./internal/test/e2e", "^TestMessagesFromSQLClientsKeepTheirOrderBesideThoseFromGo$/^postgres$", postgresRabbit, says("[1-9][0-9]* out of order"), true},
	{"no-dispatch-lock", "./internal/test/e2e", "^TestCommitsThatComeLateArriveInOrder$/^postgres$", postgresRabbit, says("[1-9][0-9]* out of order"), true},
	{"no-dispatch-lock", "./internal/test/e2e", "^TestCommitsThatComeLateArriveInOrder$/^mariadb$", mariadbRabbit, says("[1-9][0-9]* out of order"), true},

	{"lock-and-read-at-once", "./waypg", "^TestClaimThatBeginsBeforeASettleSeesItsRowsGone$", postgres, says("which the other relay has published"), false},
	{"lock-and-read-at-once", "./waymysql", "^TestOutbox$/^UnitsOfWorkDoNotDeadlock$", mariadb, says("out of order"), true},

	{"repeatable-read-relay", "./waypg", "^TestClaimThatBeginsBeforeASettleSeesItsRowsGone$", postgres, says("which the other relay has published"), false},
	{"repeatable-read-relay", "./waymysql", "^TestClaimThatBeginsBeforeASettleSeesItsRowsGone$", mariadb, says("which the other relay has published"), false},

	{"delete-before-confirm", demo, "", sqlite, lost, false},
	{"delete-before-confirm", "./internal/test/e2e", "^TestCutBetweenRelayAndBrokerDeliversAgainTheSame$/^postgres$", postgresRabbit, says("messages within"), false},
	{"delete-before-confirm", "./internal/test/e2e", "^TestCutBetweenRelayAndBrokerDeliversAgainTheSame$/^mariadb$", mariadbRabbit, says("messages within"), false},

	{"confirm-before-return", "./wayamqp", "^TestUnroutableIsNeverDelivered$", rabbitmq, says("unroutable messages were judged delivered"), false},
	{"confirm-before-return", "./internal/test/e2e", "^TestNoUnroutableMessageCountsAsDelivered$/^postgres$", postgresRabbit, says("count as delivered, want"), false},

	{"returns-not-drained", "./wayamqp", "^TestReturnsAreMatchedByPublishNotByID$", rabbitmq, says("not routed: <nil>"), false},

	{"ack-after-last-return", "./wayamqp", "^TestAckBehindTheLastReturnIsNoConfirmation$", rabbitmq, says("are known and"), false},

	{"two-in-flight", "./internal/keyorder", "^TestPublishQueueKeepsKeysInOrder$", anywhere, says("are unconfirmed at once|is not published|was taken after (a failure of its key|record)"), false},
	{"two-in-flight", "./outbox", "^TestRefusedKeyBacksOffAndOthersFlow$", anywhere, says("confirmed .*, want"), false},

	{"window-ends-in-a-key", "./waypg", "^TestQueue$/^direct$/^KeyOfWhichAClaimReadsAPartKeepsItsOrder$", postgres, says("order of the key"), false},
	{"window-ends-in-a-key", "./waysqlite", "^TestQueue$/^KeyOfWhichAClaimReadsAPartKeepsItsOrder$", anywhere, says("order of the key"), false},

	{"turn-without-end", "./waypg", "^TestTurnOfAFrozenWorkerEnds$/^direct$", postgres, says("deadline exceeded"), false},

	{"settling-locks-as-given", "./waypg", "^TestSettlingLocksRowsInAscendingOrder$", postgres, says("rows behind the first"), false},

	{"pause-without-effect", "./worker", "^TestPausedTransportHandlesNothing$", anywhere, says("attempts began in the pause"), false},

	{"mark-before-commit", "./waypg", "^TestMarkOfASettleThatCannotCommitIsNobodys$", postgres, says("nothing was published"), false},
	{"mark-before-commit", "./waymysql", "^TestMarkOfASettleThatCannotCommitIsNobodys$", mariadb, says("nothing was published"), false},

	{"id-from-relay", demo, "", sqlite, phantoms, false},

	{"inbox-outside-transaction", demo, "", sqlite, lost, false},

	{"ack-before-commit", demo, "", sqlite, lost, false},
	{"ack-before-commit", "./worker", "^TestFailedKeyIsRetriedInPlaceWhileOthersGoOn$", anywhere, says("handled .*, want"), false},

	{"ack-over-uncommitted", "./wayamqp", "^TestAcknowledgementCoversOnlyWhatWasHandled$", rabbitmq, says("queue orders has 0 messages, want 20"), false},
	{"ack-over-uncommitted", "./wayamqp", "^TestAcksCoverExactlyWhatWasAdded$", anywhere, says("the broker holds"), false},

	{"ack-before-store", "./worker", "^TestMessageThatTheStoreRefusesStaysAtItsTransport$", anywhere, says("0 messages left in the queue, want 1"), false},
	{"ack-before-store", "./worker", "^TestKillAtAnyStepLosesNothing$", anywhere, says("killed (before|after) .*: handled .*, want"), false},

	{"replay-outside-transaction", "./waypg", "^TestReplayThatCannotCommitMovesNothing$", postgres, says("after a replay that failed, want none"), false},
	{"replay-outside-transaction", "./waypg", "^TestRetries$/^direct$/^KillBetweenStatementsLosesAndDoublesNothing$", postgres, says("want it undone, or"), false},

	{"buried-in-two-transactions", "./waysqlite", "^TestRetries$/^KillBetweenStatementsLosesAndDoublesNothing$", sqlite, says("want it undone, or"), false},

	{"diverted-keys-forgotten", "./worker", "^TestKeyWaitsBehindItsRetry$", anywhere, says("handled .*, want"), false},
	{"diverted-keys-forgotten", "./worker", "^TestKillAtAnyStepLosesNothing$", anywhere, says("handled .*, want"), false},
	{"diverted-keys-forgotten", "./internal/test/e2e", "^TestKeysKeepTheirOrderThroughRetriesAndTakeovers$/^postgres$", postgresRabbit, says("in the wrong order"), true},

	{"release-by-reinsertion", "./waypg", "^TestOutbox$/^direct$/^ParkedKeyGoesOnInOrder$", postgres, says(" came, want "), false},

	{"late-holder-moves", "./waypg", "^TestRetries$/^direct$/^LateHolderMovesNothing$", postgres, says("want ErrLeaseLost"), false},

	{"no-savepoint-guard", "./waymysql", "^TestSwallowedDeadlockHasOneEffect$", mariadb, says("acknowledged without a row in the inbox"), false},
}

func says(what string) *regexp.Regexp { return regexp.MustCompile(what) }
