// Package middleware holds the middleware most applications want. Each passes
// a message that gives it nothing to do on without allocating.
//
// A usual order is
//
//	waybill.NewBus("main", middleware.Recover(), middleware.Log(log), middleware.Correlation(), middleware.Validate(), middleware.Timeout(time.Minute))
//
// Throttle and CircuitBreaker belong before Timeout, so that waiting is not counted
// as work. For applies either to one message or transport.
package middleware
