// Package worker receives messages from a transport, runs a bus on them and
// settles them: handled ones are acknowledged, failed ones come again after a
// backoff, in place, so that a key keeps its order and waits alone.
package worker
