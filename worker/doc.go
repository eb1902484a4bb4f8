// Package worker receives messages from a transport, runs a bus on them and
// settles them: handled ones are acknowledged, failed ones wait in a Store for
// their retries, or at the transport without one. A key keeps its order and waits alone.
package worker
