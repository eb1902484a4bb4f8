// Package faultproxy is a TCP proxy that breaks connections on command, so that
// tests and demos see the reaction of their clients and servers.
//
// A [Proxy] forwards every connection to its target until it is told otherwise:
// Reset, CutAfter and OnBytes end connections with RST, the last two at an exact
// byte; HalfClose sends the client a FIN; BlackHole, SwallowReplies and
// SetLatency keep bytes back; Refuse closes the door to new connections.
// [Proxy.Counts] returns the injected faults, because a fault that never struck
// proves nothing.
//
// A [KillSwitch] ends the connections of a client between two of its statements.
package faultproxy
