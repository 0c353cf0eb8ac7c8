package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice/internal/statusapi"
)

const (
	columns      = 80
	indent       = 11 // of the text beside a heading
	maxTableRows = 20
)

// ExplainFormats are the values of --output.
var ExplainFormats = []string{"text", "json", "yaml"}

// Explain writes an explanation in one of ExplainFormats. The text has times relative
// to now.
func Explain(w io.Writer, format string, e *statusapi.Explanation, now time.Time) error {
	if format != "text" {
		return encode(w, format, e)
	}
	p := &page{now: now}
	p.packet(e)
	p.service(e)
	p.line("Verdict", strings.ToUpper(e.Verdict)+"  "+string(e.Reason))
	p.text("", e.Message)
	p.candidates(e)
	p.notUsed(e)
	p.client(e)
	p.kernel(&e.Kernel)
	p.handshake(e.Handshake)
	p.trace(e.Trace)
	for _, d := range e.Doubts[:min(len(e.Doubts), maxDoubts)] {
		p.text("Doubt", doubtLine(&d, now))
	}
	for _, n := range e.Notes {
		p.text("Note", n)
	}
	for _, t := range e.Try {
		if strings.HasPrefix(t, "kubectl ") || strings.HasPrefix(t, "sluice ") {
			p.line("Try", t) // not wrapped, so that it can be copied
		} else {
			p.text("Try", t)
		}
	}
	_, err := io.WriteString(w, p.out.String())
	return err
}

// page is text with headings at the left.
type page struct {
	out  strings.Builder
	now  time.Time
	last string // heading
}

// line adds a line beside a heading. A heading is written only if it differs from the
// last one.
func (p *page) line(heading, text string) {
	if heading == p.last {
		heading = ""
	}
	if heading != "" {
		p.last = heading
	}
	fmt.Fprintln(&p.out, strings.TrimRight(fmt.Sprintf("%-*s%s", indent, heading, Clean(text)), " "))
}

// text adds text beside a heading, wrapped.
func (p *page) text(heading, text string) {
	for _, l := range wrap(Clean(text), columns-indent) {
		p.line(heading, l)
	}
}

func (p *page) packet(e *statusapi.Explanation) {
	k := e.Packet
	if k.To == "" {
		return
	}
	from := cmp.Or(k.From, "this node")
	if k.Interface != "" {
		from += " on " + k.Interface
	}
	p.text("Packet", fmt.Sprintf("%s from %s to %s", k.Protocol, from, k.To))
	p.text("Origin", fmt.Sprintf("%s: %s", k.Origin, k.Why))
}

func (p *page) service(e *statusapi.Explanation) {
	s := e.Service
	if s == nil {
		p.line("Service", "none")
		return
	}
	text := s.Namespace + "/" + s.Name
	if s.Port != "" {
		text += ", port " + s.Port
	}
	if f := e.Frontend; f != nil {
		text += fmt.Sprintf(", %s %s", f.Kind, f.Address)
		if f.LostTo != "" {
			text += " (which " + f.LostTo + " has)"
		}
	}
	p.text("Service", text)
	if s.Status == nil {
		return
	}
	switch st := s.Status; st.State {
	case statusapi.InForce:
		p.line("", "in force"+p.since(", for ", st.Since))
	case statusapi.Pending:
		p.line("", "a newer version is pending"+p.since(", for ", st.Pending))
	case statusapi.Refused:
		p.line("", "refused by the kernel"+p.since(", for ", st.Pending)+p.since("; next attempt in ", st.NextTry))
	}
}

// since returns a prefix and the distance of a time from now, or "" for nil.
func (p *page) since(prefix string, t *time.Time) string {
	if t == nil {
		return ""
	}
	return prefix + p.now.Sub(*t).Abs().Round(time.Second).String()
}

func (p *page) candidates(e *statusapi.Explanation) {
	if e.CandidateCount == 0 {
		return
	}
	chosen := ""
	if e.Balancing != "default" {
		chosen = ", chosen by " + e.Balancing
	}
	p.line("Goes to", fmt.Sprintf("%s, by policy %s%s", plural(e.CandidateCount, "endpoint", "endpoints"), e.Scope, chosen))
	rows := [][]string{}
	masqueraded := 0
	for _, c := range e.Candidates {
		if c.Masquerade {
			masqueraded++
		}
		if len(rows) == maxTableRows {
			continue
		}
		words := []string{}
		if c.Local {
			words = append(words, "on this node")
		}
		if c.Hairpin {
			words = append(words, "the client itself")
		}
		if c.Masquerade {
			words = append(words, "masqueraded")
		}
		if c.Reason != "" {
			words = append(words, c.Reason)
		}
		rows = append(rows, []string{fmt.Sprintf("%5.1f%%", 100*c.Share), c.Address, strings.Join(words, ", ")})
	}
	p.table(rows, e.CandidateCount)
	switch masqueraded {
	case 0:
		p.text("Masquerade", "no: "+e.Masquerade)
	case len(e.Candidates):
		p.text("Masquerade", "yes: "+e.Masquerade)
	default:
		p.text("Masquerade", "only to the client itself, which must not see its own address as the client's; otherwise no: "+e.Masquerade)
	}
}

func (p *page) notUsed(e *statusapi.Explanation) {
	if e.NotUsedCount == 0 {
		return
	}
	p.line("Not used", plural(e.NotUsedCount, "endpoint", "endpoints"))
	rows := [][]string{}
	for _, n := range e.NotUsed[:min(maxTableRows, len(e.NotUsed))] {
		rows = append(rows, []string{n.Address, n.Reason})
	}
	p.table(rows, e.NotUsedCount)
}

// table adds rows with aligned columns, the last column wrapped, and a line that says
// how many of total rows are not shown.
func (p *page) table(rows [][]string, total int) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row[:len(row)-1] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], len([]rune(Clean(cell))))
		}
	}
	for _, row := range rows {
		start := ""
		for i, cell := range row[:len(row)-1] {
			start += fmt.Sprintf("%-*s  ", widths[i], Clean(cell))
		}
		lines := append(wrap(Clean(row[len(row)-1]), max(20, columns-indent-len([]rune(start)))), "")
		for i, l := range lines[:max(1, len(lines)-1)] {
			if i > 0 {
				start = strings.Repeat(" ", len([]rune(start)))
			}
			p.line("", start+l)
		}
	}
	if more := total - len(rows); more > 0 {
		p.line("", fmt.Sprintf("and %d more", more))
	}
}

func (p *page) client(e *statusapi.Explanation) {
	if a := e.Affinity; a != nil {
		text := fmt.Sprintf("clients stay with their endpoint for %v", time.Duration(a.Seconds*float64(time.Second)))
		switch {
		case a.Unknown != "":
			text += "; that of this client is not known: " + a.Unknown
		case a.Endpoint == "":
			text += "; this client has none"
		default:
			text += "; this client stays with " + a.Endpoint
		}
		p.text("Affinity", text)
	}
	f := e.Flows
	switch {
	case f == nil:
	case f.Unknown != "":
		p.text("Open flows", "not known: "+f.Unknown)
	default:
		text := fmt.Sprint(f.Total)
		if f.Except != "" {
			text += ", not counting " + f.Except
		}
		p.text("Open flows", text)
		for _, i := range f.Items {
			text := i.Client + " to " + i.Endpoint
			if i.Stale {
				text += ", which new connections do not go to"
			}
			p.text("", text)
		}
	}
}

func (p *page) kernel(k *statusapi.KernelCheck) {
	switch k.State {
	case statusapi.KernelAgrees:
		p.line("Kernel", "agrees: "+plural(k.Objects, "object", "objects")+" read back")
	case statusapi.KernelDiffers:
		p.line("Kernel", fmt.Sprintf("DIFFERS: %d of %s read back", k.Differing, plural(k.Objects, "object", "objects")))
		for _, d := range k.Differences {
			p.text("", d.Object)
			p.text("", "  should be: "+cmp.Or(d.Want, "not there"))
			p.text("", "  is: "+cmp.Or(d.Have, "not there"))
		}
		if more := k.Differing - len(k.Differences); more > 0 {
			p.text("", fmt.Sprintf("and %d more", more))
		}
	case statusapi.KernelFailed:
		p.text("Kernel", "could not be read: "+k.Why)
	default:
		p.text("Kernel", "not checked: "+k.Why)
	}
	if k.Unread != "" {
		p.text("", "not read back: "+k.Unread)
	}
}

func (p *page) handshake(h *statusapi.Handshake) {
	switch {
	case h == nil:
	case h.Error != "":
		text := fmt.Sprintf("FAILED after %s: %s", seconds(h.Seconds), h.Error)
		if h.Endpoint != "" {
			text += "; it was sent to " + h.Endpoint
		}
		p.text("Connect", text)
	case h.Endpoint != "":
		p.line("Connect", fmt.Sprintf("answered by %s after %s", h.Endpoint, seconds(h.Seconds)))
	default:
		p.line("Connect", "answered after "+seconds(h.Seconds))
	}
}

// trace shows how the packet ended, and the rules of other programs that it passed.
func (p *page) trace(t *statusapi.Trace) {
	if t == nil {
		return
	}
	switch d := t.DroppedBy; {
	case d == nil && len(t.Steps) > 0:
		p.text("Trace", fmt.Sprintf("no rule dropped the packet, %s decided about it", plural(len(t.Steps), "rule", "rules")))
	case d != nil && d.Ours:
		p.text("Trace", "stopped by a rule of the service proxy, in "+d.Chain+": "+d.Rule)
	case d != nil:
		p.text("Trace", "DROPPED by a rule of another program, in "+d.Chain+": "+d.Rule)
	}
	if t.Endpoint != "" {
		p.line("Trace", "its endpoint: "+t.Endpoint)
	}
	if t.Bypassed {
		p.text("Trace", "BYPASSED: no rule of the service proxy that chooses an endpoint saw the packet; "+
			"an earlier rule of another program translated it, accepted it in the same chain, or disabled tracking for it")
	}
	if t.Unknown != "" {
		p.text("Trace", t.Unknown)
	}
	var others [][]string
	for _, s := range t.Steps {
		if !s.Ours && (t.DroppedBy == nil || s != *t.DroppedBy) {
			others = append(others, []string{s.Chain, s.Verdict, s.Rule})
		}
	}
	if len(others) > 0 {
		p.line("", "rules of other programs that it passed:")
		p.table(others[:min(maxTableRows, len(others))], len(others))
	}
}

// wrap breaks text between words into lines of at most width characters. A longer
// word has a line of its own.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
