package trial

import (
	"fmt"
	"strings"

	"sluice/test/cluster/peers/figures"
)

// firstLine is an error without the details that follow in further lines.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// summary is a stage's figures in a few words, to show progress.
func summary(r *figures.Result, s figures.Stage) string {
	switch s {
	case figures.StageColdStart:
		c := r.ColdStart
		return fmt.Sprintf("first %v, every %v, CPU %v", c.FirstAnswered(), c.EveryAnswered(), c.CPU)
	case figures.StageIdle:
		return fmt.Sprintf("%.1f %% of a processor", r.Idle.Percent())
	case figures.StageMemory:
		return fmt.Sprintf("steady %v, peak %v", r.Memory.Steady, r.Memory.Peak)
	case figures.StageDataPath:
		d := r.DataPath
		return fmt.Sprintf("TCP %.0f/s of %.0f/s, UDP %.0f/s of %.0f/s", d.TCP.PerSecond.Service, d.TCP.PerSecond.Direct,
			d.UDP.PerSecond.Service, d.UDP.PerSecond.Direct)
	case figures.StageRestart:
		return fmt.Sprintf("followed after %v, CPU %v, %d of %d connections failed", r.Restart.Followed, r.Restart.CPU, r.Restart.Failed, r.Restart.Asked)
	}
	for i := range r.Changes {
		if c := &r.Changes[i]; s == figures.StageChange(c.Rate) {
			return fmt.Sprintf("p50 %v, p90 %v, max %v of %d, CPU %v per update at %.0f/s", c.Percentile(50), c.Percentile(90),
				c.Percentile(100), len(c.Samples), c.PerUpdate(), c.Achieved)
		}
	}
	return "no figures"
}
