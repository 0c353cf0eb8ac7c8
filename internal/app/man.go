package app

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice/internal/statusapi"
)

// newManCommand returns the command that writes the manual page, for packagers. The
// page is made from the help texts, so it is never out of date.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man", Short: "Write the manual page", Hidden: true, Args: cobra.NoArgs, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p := &manPage{out: cmd.OutOrStdout()}
			p.write(cmd.Root(), NewOptions().groups)
			return p.err
		},
	}
}

// manPage writes troff with the macros of man, and keeps the first error.
type manPage struct {
	out io.Writer
	err error
}

func (p *manPage) write(root *cobra.Command, daemon []*pflag.FlagSet) {
	p.macro("TH", strings.ToUpper(root.Name()), "1", "", root.Name()+" "+build().GitVersion, "Sluice")
	p.macro("SH", "NAME")
	p.line(root.Name() + ` \- ` + troff(root.Short))
	p.macro("SH", "SYNOPSIS")
	p.macro("B", root.Name())
	p.line("[flags]\n.br")
	p.macro("B", root.Name())
	p.line("COMMAND [flags] [arguments]")
	p.macro("SH", "DESCRIPTION")
	p.text(description)
	p.macro("SH", "COMMANDS")
	for _, c := range root.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		p.macro("SS", root.Name()+" "+c.Use)
		p.text(c.Short + ".\n\n" + c.Long)
		p.flags(c.Flags())
		if c.Example != "" {
			p.verbatim(c.Example)
		}
	}
	p.macro("SS", root.Name()+" completion SHELL")
	p.text("Write the script that lets bash, fish, powershell or zsh complete commands, flags and names of Services.")
	p.macro("SH", "OPTIONS")
	for _, g := range daemon {
		p.macro("SS", g.Name())
		p.flags(g)
	}
	p.macro("SH", "EXAMPLES")
	_, text, _ := strings.Cut(examples, "\n")
	p.verbatim(fmt.Sprintf(text, root.Name()))
	p.macro("SH", "FILES")
	p.macro("TP")
	p.macro("B", statusapi.DefaultSocket)
	p.text("the socket of the status API, unless --status-socket sets another")
	p.macro("SH", "EXIT STATUS")
	p.text("0 if all is well, also if the daemon was told to stop. 1 if the daemon failed, or a command has a finding. " +
		"2 if a command could not answer.")
}

func (p *manPage) flags(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, help := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		p.macro("TP")
		p.macro("B", strings.TrimSpace(name+" "+value))
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "[]" {
			help += " (default " + f.DefValue + ")"
		}
		p.text(help)
	})
}

func (p *manPage) text(text string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			p.macro("PP")
		}
		p.line(troff(paragraph))
	}
}

func (p *manPage) verbatim(text string) {
	p.macro("PP")
	p.macro("nf")
	p.line(troff(strings.TrimRight(text, "\n")))
	p.macro("fi")
}

func (p *manPage) macro(name string, args ...string) {
	line := "." + name
	for _, a := range args {
		line += ` "` + strings.ReplaceAll(troff(a), `"`, `\(dq`) + `"`
	}
	p.line(line)
}

func (p *manPage) line(text string) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.out, text)
	}
}

// troff escapes text for troff.
func troff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
