// Package bench measures waybill against code written by hand that does the
// same job on the same servers, in the same run, and reports ratios: on a noisy
// machine nothing else means anything. Rounds of both sides take turns, and a
// ratio is the median of its rounds'.
package bench
