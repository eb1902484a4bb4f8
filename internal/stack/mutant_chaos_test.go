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
			cmd := exec.Command(os.Args[0], "-test.run=^"+check.test)
			cmd.Env = append(os.Environ(), "WAYBILL_MUTANT="+check.mutant)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), check.says) {
				t.Errorf("%s: %v, want that it fails with %q\n%s", check.test, err, check.says, out)
			}
		})
	}
}
