package render

import (
	"strings"
	"testing"

	"sluice/test/cluster/peers/figures"
)

func TestHeadline(t *testing.T) {
	const page = "before\n" + headlineBegin + "stale\n" + headlineEnd + "after\n"
	got, err := withHeadline(page, &figures.Report{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got, "before\n"+headlineBegin+"| what |") || !strings.HasSuffix(got, "|\n"+headlineEnd+"after\n") ||
		strings.Contains(got, "stale") {
		t.Errorf("the page became\n%s", got)
	}
	again, err := withHeadline(got, &figures.Report{})
	if err != nil || again != got {
		t.Errorf("a second time it became\n%s, error %v", again, err)
	}
	if _, err := withHeadline("nothing\n", &figures.Report{}); err == nil {
		t.Error("a page without a place was taken")
	}
}
