package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sluice/internal/conformance"
	"sluice/test/vm/guest"
)

// suite is all tests of packages, or those that match a pattern.
type suite struct {
	name  string
	pkgs  string // separated by spaces
	run   string // pattern of the tests; empty means all
	table string // the mode whose packet table it runs; empty means none
	part  partKind

	tooOld []string // the kernels that lack what it needs
}

// partKind is what runs of a suite when a share is requested.
type partKind uint8

const (
	partNone  partKind = iota // this machine's own kernel runs it, or it takes many minutes in an emulator
	partShare                 // of the table
	partAll                   // this machine's own kernel may not support it
)

var suites = []suite{
	{"lab", "./internal/conformance/lab", "", "", partAll, nil},
	{"traffic", "./internal/conformance/traffic", "", "", partAll, nil},
	{"kernel/nft", "./internal/kernel/nft", "", "", partNone, nil},
	{"kernel/ipt", "./internal/kernel/ipt", "", "", partNone, nil},
	{"kernel/ct", "./internal/kernel/ct", "", "", partNone, nil},
	{"kernel/link", "./internal/kernel/link", "", "", partAll, nil},
	{"kernel/ipvs", "./internal/kernel/ipvs", "", "", partAll, nil},
	{"ipvs", "./internal/dataplane/ipvs", "", "ipvs", partAll, nil},
	{"daemon ipvs", "./test/daemon/explain ./test/daemon/faults", "^Test(Explain(IsWhatPacketsDo|Refused|NotSynced|NotSyncedAnyMore|Differs)|SystemCallsFail)$/^ipvs$", "", partAll, nil},
	{"daemon faults", "./test/daemon/faults", "^Test(ClockJumps|MemoryLimit)$", "", partNone, nil},
	{"daemon faults ipvs", "./test/daemon/faults ./test/daemon/foreign", "^Test(Kills|RestartsWriteNothing|Stopped|TwoDaemons|ForeignChanges|FlushDuringWrites|SecondWriter)$/^ipvs", "", partNone, nil},
	{"daemon changes ipvs", "./test/daemon/traffic", "^TestTrafficUnderChange$/^ipvs$", "", partNone, nil},
	{"daemon changes", "./test/daemon/traffic", "^TestTrafficUnderChange$/^nftables$", "", partNone, nil}, // with SCTP sockets, which few hosts have
	{"service traffic", "./internal/traffic", "^TestLab", "", partAll, nil},
	{"nftables", "./internal/dataplane/nftables", "^(TestConformance|TestRandom)$", "nftables", partShare, nil},
	{"iptables", "./internal/dataplane/iptables", "^(TestConformance|TestRandom)$", "iptables", partShare, nil},
	{"iptables-legacy", "./internal/dataplane/iptables", "^(TestConformance|TestRandom)Legacy$", "iptables", partShare, nil},
	{"userspace", "./internal/dataplane/userspace", "^(TestConformance|TestRandom)$", "nftables", partShare, nil},
	{"ebpf/probe", "./internal/dataplane/ebpf", "^TestProbe$", "", partAll, nil},
	{"ebpf", "./internal/dataplane/ebpf", "^(TestConformance|TestRandom)$", "nftables", partShare, []string{"5.10", "6.1"}},
}

func suiteNames() (names []string) {
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// program returns the path of a package's test binary.
func (p *runner) program(pkg string) string {
	return filepath.Join(p.programs, strings.ReplaceAll(pkg[2:], "/", "-"))
}

// compile compiles the test binaries of a suite that do not exist.
func (p *runner) compile(s suite) (err error) {
	for pkg := range strings.FieldsSeq(s.pkgs) {
		if _, missing := os.Stat(p.program(pkg)); missing != nil {
			err = errors.Join(err, guest.Compile(p.ctx, pkg, p.program(pkg)))
		}
	}
	return err
}

// timeout limits a suite on a kernel: all of mode iptables takes 17 minutes.
const timeout = 45 * time.Minute

// runSuite runs a suite on a kernel. An error means that it could not be tried.
func (p *runner) runSuite(s suite, kernel string) (cell, error) {
	args, err := p.arguments(s)
	if err != nil {
		return cell{}, err
	}
	var text bytes.Buffer
	out, finish, err := p.convert(s.name+"@"+kernel, &text)
	if err != nil {
		return cell{}, err
	}
	begin := time.Now()
	status := 0
	for pkg := range strings.FieldsSeq(s.pkgs) {
		exit, failed := p.runPackage(pkg, kernel, args, p.environment(s), out)
		status, err = max(status, exit), errors.Join(err, failed)
	}
	err = errors.Join(err, finish())
	c := parseOutput(text.String())
	log := filepath.Join(p.cache.Dir, "logs", kernel+"-"+strings.ReplaceAll(s.name, "/", "-"))
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.WriteFile(log, text.Bytes(), 0o644)); err != nil {
		return c, err
	}
	c.Suite, c.Kernel, c.Commit, c.Took = s.name, kernel, p.commit, time.Since(begin).Round(time.Second)
	if p.share > 1 && s.part == partShare {
		c.Part = fmt.Sprintf(", a part in %d: seed %d", p.share, p.seed)
	}
	if err != nil {
		c.Error = err.Error()
	} else if status != 0 && len(c.Failed) == 0 {
		c.Error = fmt.Sprintf("exit status %d:\n%s", status, tail(text.String()))
	}
	return c, p.ctx.Err()
}

// convert returns a writer for the output of a suite. With --json it is also printed as events,
// with the suite as the package; finish waits for the last one.
func (p *runner) convert(name string, text *bytes.Buffer) (out io.Writer, finish func() error, err error) {
	if !p.json {
		return text, func() error { return nil }, nil
	}
	cmd := exec.CommandContext(p.ctx, "go", "tool", "test2json", "-t", "-p", strings.ReplaceAll(name, " ", "-"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	return io.MultiWriter(text, in), func() error { return errors.Join(in.Close(), cmd.Wait()) }, err
}

// inMemory is the pattern of tests for which it does not matter which kernel they run on, but that an
// emulator is slow, or has only a part of the repository: they evaluate what a mode renders, or
// compare a document.
const inMemory = "^Test((Random|Policy)?Model|Hops)$"

// arguments returns the arguments of the test binary.
func (p *runner) arguments(s suite) ([]string, error) {
	pattern := s.run
	if p.share > 1 && s.part == partShare {
		parts, err := p.chooseParts(s)
		if err != nil {
			return nil, err
		}
		test := "TestConformance"
		if strings.HasSuffix(s.run, "Legacy$") {
			test += "Legacy"
		}
		pattern = fmt.Sprintf("^%s$/^(%s)$", test, strings.Join(parts, "|"))
	}
	return []string{"-test.v", "-test.timeout", timeout.String(), "-test.run", pattern, "-test.skip", inMemory}, nil
}

// environment returns what a suite's environment says about the crossed decision tables: with a share,
// a suite that runs its whole table plays only the share that this machine's own tests play, too.
func (p *runner) environment(s suite) []string {
	crossed := ""
	if p.share > 1 && s.part == partAll {
		crossed = cmp.Or(os.Getenv(conformance.ShareVariable), fmt.Sprintf("%d/%d", p.seed%uint64(p.share)+1, p.share))
	}
	return []string{conformance.ShareVariable + "=" + crossed}
}

// chooseParts returns random groups and stories of a table with one case in p.share, and everything
// about SCTP, because few hosts have SCTP sockets. Mode userspace has no SCTP.
func (p *runner) chooseParts(s suite) ([]string, error) {
	all, err := conformance.Parts(s.table)
	if err != nil {
		return nil, err
	}
	if s.name == "userspace" { // its refusals are silence, for which each client waits until its time is up
		all = slices.DeleteFunc(all, func(c conformance.Part) bool { return c.Cases > 0 && c.SCTP == c.Cases })
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

// storyWeight is how many cases take as long as one story.
const storyWeight = 50

// runPackage runs the tests of a package on a kernel, and returns their exit status.
func (p *runner) runPackage(pkg, kernel string, args, env []string, out io.Writer) (int, error) {
	if kernel == host {
		return p.runHere(pkg, args, env, out)
	}
	j := guest.Job{Kernel: kernel, Command: args, Env: env, Timeout: timeout}
	if err := j.RunTests(pkg, p.program(pkg)); err != nil {
		return 0, err
	}
	for tries := 1; ; tries++ {
		var text bytes.Buffer
		j.Output = &text
		status, err := p.cache.Run(p.ctx, j)
		if errors.Is(err, guest.ErrStalled) && tries == 1 {
			fmt.Fprintf(os.Stderr, "%s on kernel %s is started again: %v\n", pkg, kernel, err)
			continue
		}
		_, failed := text.WriteTo(out)
		return status, errors.Join(err, failed)
	}
}

// runHere runs tests on this machine.
func (p *runner) runHere(pkg string, args, env []string, out io.Writer) (int, error) {
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.program(pkg), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = pkg, out, out, append(os.Environ(), env...)
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}
