package hops

import (
	"strings"
	"testing"
)

const document = `
## The life of one event

1. ¸source.Config.Set¸: filters.
2. ¸engine.Engine.OnEndpointSliceUpdate¸: reads it.
3. ¸runner.Loop¸: one at a time.
4. The mode writes it.
5. ¸engine.Engine.recordSuccess¸: records it.

| mode | hops |
|---|---|
| ¸plain¸ | ¸plain.Dataplane.Apply¸; ¸differ.Differ.Apply¸; ¸plain.Dataplane.write¸ sends it; ¸plain.Dataplane.leave¸ |

## Rows

6. ¸not.This¸
`

// event is what a real event leaves.
var event = [][]string{
	{"source/source.Config.Set", "engine/engine.Engine.OnEndpointSliceUpdate", "proxy/proxy.State.Apply"},
	{"engine/engine.Engine.SyncLoop", "runner/runner.Loop", "engine/engine.Engine.run", "dataplane/plain/plain.Dataplane.Apply", "dataplane/differ/differ.Differ.Apply", "dataplane/plain/plain.Dataplane.row"},
	{"engine/engine.Engine.SyncLoop", "runner/runner.Loop", "engine/engine.Engine.run", "dataplane/plain/plain.Dataplane.Apply", "dataplane/differ/differ.Differ.Apply", "dataplane/differ/differ.Differ.write", "dataplane/plain/plain.Dataplane.write"},
	{"engine/engine.Engine.SyncLoop", "runner/runner.Loop", "engine/engine.Engine.run", "dataplane/plain/plain.Dataplane.Apply", "dataplane/plain/plain.Dataplane.leave", "kernel/nft/nft.Conn.Commit"},
	{"engine/engine.Engine.SyncLoop", "runner/runner.Loop", "engine/engine.Engine.run", "engine/engine.Engine.recordSuccess"},
}

// TestWrongLists has every mistake found that somebody might make in the list.
func TestWrongLists(t *testing.T) {
	var stacks []stack
	for _, names := range event {
		var s stack
		for _, name := range names {
			at := strings.LastIndex(name, "/")
			s = append(s, call{name[:at], name[at+1:]})
		}
		stacks = append(stacks, s)
	}
	for _, c := range []struct{ name, from, to, want string }{
		{"right", "", "", ""},
		{"two lines swapped", "5. ¸engine.Engine.recordSuccess¸", "5. ¸source.Config.Set¸", "comes to source.Config.Set before"},
		{"two hops of the mode swapped", "¸plain.Dataplane.Apply¸; ¸differ.Differ.Apply¸", "¸differ.Differ.Apply¸; ¸plain.Dataplane.Apply¸", "comes to plain.Dataplane.Apply before"},
		{"a wrong function", "plain.Dataplane.write", "plain.Dataplane.send", "does not come to plain.Dataplane.send"},
		{"a function of another type", "plain.Dataplane.write", "plain.table.write", "does not come to plain.table.write"},
		{"no source", "1. ¸source.Config.Set¸: filters.\n", "", "the watch calls source.Config.Set"},
		{"no engine", "2. ¸engine.Engine.OnEndpointSliceUpdate¸: reads it.\n", "", "source.Config.Set calls engine.Engine.OnEndpointSliceUpdate"},
		{"no runner", "3. ¸runner.Loop¸: one at a time.\n", "", "engine.Engine.SyncLoop calls runner.Loop"},
		{"no Apply", "¸plain.Dataplane.Apply¸; ", "", "engine.Engine.run calls plain.Dataplane.Apply"},
		{"no differ", "; ¸differ.Differ.Apply¸", "", "plain.Dataplane.Apply calls differ.Differ.Apply"},
		{"no write", "; ¸plain.Dataplane.write¸", "", "differ.Differ.write calls plain.Dataplane.write"},
		{"no second write", "; ¸plain.Dataplane.leave¸", "", "what calls nft.Conn.Commit after plain.Dataplane.Apply"},
		{"nothing after the mode", "5. ¸engine.Engine.recordSuccess¸: records it.\n", "", "no line within the numbered list"},
		{"no place for the mode", "4. The mode", "4. ¸plain.Dataplane.Apply¸: the mode", "no line within the numbered list"},
		{"too many hops", " sends it", ", ¸plain.Dataplane.row¸", "9 hops"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(document, c.from) {
				t.Fatalf("the document has no %s", c.from)
			}
			text := strings.ReplaceAll(strings.Replace(document, c.from, c.to, 1), "¸", "`")
			lists, err := Lists(text)
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = compare(lists["plain"], stacks)
			}
			if !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("got %q; want %q", got, c.want)
			}
		})
	}
}
