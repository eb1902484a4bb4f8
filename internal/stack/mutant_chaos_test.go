//go:build chaos

package stack

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/waybill-go/waybill/internal/mutant"
)

// A check that stays silent over a planted bug proves nothing.
func TestChecksFindPlantedBugs(t *testing.T) {
	for _, check := range []struct{ mutant, test, says string }{
		{mutant.ReturnsNotDrained, "TestNoUnroutableMessageCountsAsDelivered/^postgres$", "count as delivered, want"},
		{mutant.DeleteBeforeConfirm, "TestCutBetweenRelayAndBrokerDeliversAgainTheSame/^postgres$", "messages within"},
		{mutant.DeleteBeforeConfirm, "TestCutBetweenRelayAndBrokerDeliversAgainTheSame/^mariadb$", "messages within"},
		{mutant.NoDispatchLock, "TestMessagesFromSQLClientsKeepTheirOrderBesideThoseFromGo/^postgres$", "out of order"},
		{mutant.NoDispatchLock, "TestCommitsThatComeLateArriveInOrder/^postgres$", "out of order"},
		{mutant.NoDispatchLock, "TestCommitsThatComeLateArriveInOrder/^mariadb$", "out of order"},
	} {
		t.Run(check.mutant+" "+check.test, func(t *testing.T) {
			t.Parallel()
			// Transactions have to meet in a window of microseconds: that takes luck.
			for try := 1; ; try++ {
				cmd := exec.Command(os.Args[0], "-test.run=^"+check.test)
				cmd.Env = append(os.Environ(), "WAYBILL_MUTANT="+check.mutant)
				out, err := cmd.CombinedOutput()
				switch {
				case err != nil && strings.Contains(string(out), check.says):
					return
				case try == 8 || err != nil:
					t.Fatalf("%s: %v after %d tries, want that it fails with %q\n%s", check.test, err, try, check.says, out)
				}
			}
		})
	}
}
