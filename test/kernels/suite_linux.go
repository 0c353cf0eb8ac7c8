package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"sluice/internal/conformance"
	"sluice/test/vm/guest"
)

// suite is a package's tests, or those of them with a name.
type suite struct {
	name  string
	pkg   string
	run   string // pattern of the tests; "": all
	table string // the mode whose packet table it plays
	part  part

	tooOld []string // the kernels that cannot play it
}

// part is what is played of a suite when a share is asked for.
type part uint8

const (
	nothing part = iota // this machine's own kernel plays it, or it takes many minutes where the processor is computed
	share               // of the table
	whole               // this machine's own kernel may be unable to
)

var suites = []suite{
	{"lab", "./internal/conformance/lab", "", "", whole, nil},
	{"traffic", "./internal/conformance/traffic", "", "", whole, nil},
	{"kernel/nft", "./internal/kernel/nft", "", "", nothing, nil},
	{"kernel/ipt", "./internal/kernel/ipt", "", "", nothing, nil},
	{"kernel/ct", "./internal/kernel/ct", "", "", nothing, nil},
	{"kernel/link", "./internal/kernel/link", "", "", whole, nil},
	{"kernel/ipvs", "./internal/kernel/ipvs", "", "", whole, nil},
	{"ipvs", "./internal/dataplane/ipvs", "", "ipvs", whole, nil},
	{"daemon ipvs", "./test/daemon", "^Test(Explain(IsWhatPacketsDo|Refused|NotSynced|NotSyncedAnyMore|Differs)|SystemCallsFail)$/^ipvs$", "", whole, nil},
	{"daemon faults", "./test/daemon", "^Test(ClockJumps|MemoryLimit)$", "", nothing, nil},
	{"daemon faults ipvs", "./test/daemon", "^Test(Kills|RestartsWriteNothing|Stopped|TwoDaemons|ForeignChanges|FlushDuringWrites|SecondWriter)$/^ipvs", "", nothing, nil},
	{"daemon changes ipvs", "./test/daemon", "^TestTrafficUnderChange$/^ipvs$", "", nothing, nil},
	{"daemon changes", "./test/daemon", "^TestTrafficUnderChange$/^nftables$", "", nothing, nil}, // with SCTP sockets, which few machines' own kernels have
	{"service traffic", "./internal/traffic", "^TestLab", "", whole, nil},
	{"nftables", "./internal/dataplane/nftables", "^(TestConformance|TestRandom)$", "nftables", share, nil},
	{"iptables", "./internal/dataplane/iptables", "^(TestConformance|TestRandom)$", "iptables", share, nil},
	{"iptables-legacy", "./internal/dataplane/iptables", "^(TestConformance|TestRandom)Legacy$", "iptables", share, nil},
	{"userspace", "./internal/dataplane/userspace", "^(TestConformance|TestRandom)$", "nftables", share, nil},
	{"ebpf/probe", "./internal/dataplane/ebpf", "^TestProbe$", "", whole, nil},
	{"ebpf", "./internal/dataplane/ebpf", "^(TestConformance|TestRandom)$", "nftables", share, []string{"5.10", "6.1"}},
}

func suiteNames() (names []string) {
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// compile returns the program of a suite's tests.
func (p *player) compile(s suite) (string, error) {
	program := filepath.Join(p.programs, strings.ReplaceAll(s.pkg[2:], "/", "-"))
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	return program, guest.Compile(p.ctx, s.pkg, program)
}

// timeout is how long a suite may take on a kernel: everything of mode iptables
// takes 17 minutes.
const timeout = 45 * time.Minute

// playOne plays a suite on a kernel. An error means that it could not be tried.
func (p *player) playOne(s suite, kernel, program string) (cell, error) {
	args, err := p.arguments(s)
	if err != nil {
		return cell{}, err
	}
	var out bytes.Buffer
	begin := time.Now()
	status := 0
	if kernel == host {
		status, err = p.here(s, program, args, &out)
	} else {
		j := guest.Job{Kernel: kernel, Command: args, Output: &out, Timeout: timeout}
		if err = j.RunTests(s.pkg, program); err == nil {
			status, err = p.cache.Run(p.ctx, j)
		}
	}
	c := read(out.String())
	log := filepath.Join(p.cache.Dir, "logs", kernel+"-"+strings.ReplaceAll(s.name, "/", "-"))
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.WriteFile(log, out.Bytes(), 0o644)); err != nil {
		return c, err
	}
	c.Suite, c.Kernel, c.Commit, c.Took = s.name, kernel, p.commit, time.Since(begin).Round(time.Second)
	if p.share > 1 && s.part == share {
		c.Part = fmt.Sprintf(", a part in %d: seed %d", p.share, p.seed)
	}
	if err != nil {
		c.Error = err.Error()
	} else if status != 0 && len(c.Failed) == 0 {
		c.Error = fmt.Sprintf("exit status %d:\n%s", status, tail(out.String()))
	}
	return c, p.ctx.Err()
}

// arguments are those of the test program.
func (p *player) arguments(s suite) ([]string, error) {
	pattern := s.run
	if p.share > 1 && s.part == share {
		parts, err := p.choose(s)
		if err != nil {
			return nil, err
		}
		test := "TestConformance"
		if strings.HasSuffix(s.run, "Legacy$") {
			test += "Legacy"
		}
		pattern = fmt.Sprintf("^%s$/^(%s)$", test, strings.Join(parts, "|"))
	}
	return []string{"-test.v", "-test.timeout", timeout.String(), "-test.run", pattern}, nil
}

// choose returns groups and stories of a table, at random, until they have one case
// in p.share, and all that is about SCTP: few machines' own kernels have its sockets.
// Mode userspace has no SCTP.
func (p *player) choose(s suite) ([]string, error) {
	all, err := conformance.Parts(s.table)
	if err != nil {
		return nil, err
	}
	var ids []string
	rest := 0
	for _, c := range all {
		rest += c.Cases
		if strings.Contains(strings.ToLower(c.ID), "sctp") && s.name != "userspace" {
			ids = append(ids, regexp.QuoteMeta(c.ID))
		}
	}
	rest /= p.share
	p.rng(s).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for ; rest > 0; all = all[1:] {
		ids = append(ids, regexp.QuoteMeta(all[0].ID))
		rest -= all[0].Cases
		if all[0].Story {
			rest -= storyWeight
		}
	}
	return ids, nil
}

// storyWeight is how many cases take as long as a story.
const storyWeight = 50

// here runs tests on this machine.
func (p *player) here(s suite, program string, args []string, out io.Writer) (int, error) {
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.pkg, out, out
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}
