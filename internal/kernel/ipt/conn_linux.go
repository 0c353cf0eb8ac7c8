package ipt

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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

const (
	// lockWait is how long a restore waits for the xtables lock unless told otherwise.
	lockWait = 5 * time.Second
	// drainWait is how long the output of an ended program may take, should a
	// child of it hold on to the pipe. On a starved node to read it took more than
	// a second, and what had been restored counted as refused.
	drainWait = 5 * time.Second
)

// Conn is the programs of one variant and family. They work on the network
// namespace of the calling thread.
type Conn struct {
	// LockWait bounds the wait for the xtables lock, in whole seconds. The nft
	// variant knows no lock.
	LockWait time.Duration

	family        Family
	variant       Variant
	program       string // its path, as those of the next two
	save, restore string

	sums map[string]uint32 // of legacy tables, as they were last read; zero: we have written since
}

// Open finds the programs of a variant and family in the PATH, by their full
// name or, where a host has one variant only, by the short one. The error is an
// [ErrMissing] if there are none.
func Open(ctx context.Context, f Family, v Variant) (*Conn, error) {
	reason := fmt.Errorf("find programs %s-save and %[1]s-restore: %w", Name(f, v), ErrMissing)
	for _, name := range []string{Name(f, v), program(f)} {
		c := &Conn{LockWait: lockWait, family: f, variant: v, sums: map[string]uint32{}}
		var err error
		c.program, err = exec.LookPath(name)
		if err == nil {
			c.save, err = exec.LookPath(name + "-save")
		}
		if err == nil {
			c.restore, err = exec.LookPath(name + "-restore")
		}
		if err != nil {
			continue
		}
		version, _, err := run(ctx, nil, c.program, "--version")
		if err != nil {
			return nil, err
		}
		variant, number := parseVersion(string(version))
		switch {
		case variant != v:
		case slices.Compare(number[:], []int{1, 6, 2}) < 0: // the first that can wait for the lock
			reason = fmt.Errorf("use %s: version %q is too old, 1.6.2 is the oldest that works", c.program, bytes.TrimSpace(version))
		default:
			return c, nil
		}
	}
	return nil, reason
}

// parseVersion reads "iptables v1.8.9 (nf_tables)". Releases before 1.8 name no
// variant and know the legacy one only. Zero: it is neither.
func parseVersion(s string) (v Variant, number [3]int) {
	var name, variant string
	if n, _ := fmt.Sscanf(s, "%s v%d.%d.%d (%s", &name, &number[0], &number[1], &number[2], &variant); n < 4 {
		return 0, number
	}
	return map[string]Variant{"nf_tables)": NFT, "legacy)": Legacy, "": Legacy}[variant], number
}

// Save runs iptables-save.
func (c *Conn) Save(ctx context.Context) ([]Table, error) {
	output, _, err := run(ctx, nil, c.save)
	if err != nil {
		return nil, err
	}
	tables, err := parse(output)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", filepath.Base(c.save), err)
	}
	return tables, nil
}

// Counters runs iptables-save.
func (c *Conn) Counters(ctx context.Context, table string, f func(chain, rule string, packets uint64)) error {
	output, _, err := run(ctx, nil, c.save, "-c", "-t", table)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(output) {
		counts, rest, isRule := strings.Cut(strings.TrimSuffix(string(line), "\n"), "] -A ")
		packets, _, isCount := strings.Cut(strings.TrimPrefix(counts, "["), ":")
		n, err := strconv.ParseUint(packets, 10, 64)
		if isRule && isCount && err == nil {
			chain, rule, _ := strings.Cut(rest, " ")
			f(chain, rule, n)
		}
	}
	return nil
}

// Rules lists the rules of one chain, as a saved [Chain] has them; false if there
// is no such chain.
func (c *Conn) Rules(ctx context.Context, table, chain string) (rules []string, found bool, err error) {
	wait := strconv.Itoa(max(1, int(c.LockWait/time.Second)))
	output, said, err := run(ctx, nil, c.program, "-w", wait, "-t", table, "-S", chain)
	if strings.Contains(said, "No chain/target/match by that name") || strings.Contains(said, "does not exist") || strings.Contains(said, "incompatible") {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for line := range strings.Lines(string(output)) {
		if rule, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "-A "+chain+" "); ok {
			rules = append(rules, rule)
		}
	}
	return rules, true, nil
}

// Restore runs iptables-restore. Its input is a file in memory that is complete
// before it starts, so that it comes to its end even if this process is killed.
func (c *Conn) Restore(ctx context.Context, input []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	clear(c.sums)
	var file *os.File
	fd, err := unix.MemfdCreate("iptables-restore", unix.MFD_CLOEXEC)
	if err == nil {
		file = os.NewFile(uintptr(fd), "iptables-restore")
		defer file.Close()
		_, err = file.WriteAt(input, 0)
	}
	if err != nil {
		return fmt.Errorf("hand over the input of %s: %w", filepath.Base(c.restore), err)
	}
	wait := max(1, int(c.LockWait/time.Second))
	_, said, err := run(context.WithoutCancel(ctx), file, c.restore, "--noflush", "-w", strconv.Itoa(wait))
	if err == nil {
		return nil
	}
	if strings.Contains(said, "holding the xtables lock") {
		return fmt.Errorf("%w, for more than %d s: %w", ErrLocked, wait, err)
	}
	if m := linePattern.FindStringSubmatch(said); m != nil {
		if n, _ := strconv.Atoi(m[1]); n > 0 {
			refused := &RestoreError{Line: n, Err: err}
			if lines := bytes.SplitN(input, []byte("\n"), n+1); n <= len(lines) {
				refused.Text = string(bytes.TrimSpace(lines[n-1]))
			}
			return refused
		}
	}
	return err
}

var linePattern = regexp.MustCompile(`\bline:? (\d+)`)

// run runs a program to its end and returns its output, and on one line what it
// said on the way, which is part of the error too. The program has a process
// group of its own: a signal to ours, such as Ctrl-C, is for us to act on.
func run(ctx context.Context, input io.Reader, path string, args ...string) (output []byte, said string, err error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = drainWait
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin = input
	output, err = cmd.Output()
	if err == nil {
		return output, "", nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		said = strings.Join(strings.Fields(string(exit.Stderr)), " ")
	}
	err = fmt.Errorf("run %s: %w", strings.Join(append([]string{filepath.Base(path)}, args...), " "), cmp.Or(ctx.Err(), err))
	if said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return nil, said, err
}

// askNFTables returns the answers to a question about these names: a table, and a
// chain in it.
func askNFTables(question, flags uint16, f Family, names ...string) ([]netlink.Attrs, error) {
	return netlink.Once(context.Background(), unix.NETLINK_NETFILTER, func(c *netlink.Conn) {
		c.Request(unix.NFNL_SUBSYS_NFTABLES<<8|question, flags, netlink.Netfilter(f, 0), names...)
	})
}

func (c *Conn) Stamp(_ context.Context, thorough bool) (Stamp, error) {
	if c.variant == Legacy {
		return c.legacyStamp(thorough)
	}
	answers, err := askNFTables(unix.NFT_MSG_GETGEN, unix.NLM_F_ACK, 0)
	if err != nil || len(answers) == 0 {
		return Stamp{}, fmt.Errorf("ask for the generation of nf_tables: %w", cmp.Or(err, errors.New("no answer")))
	}
	return Stamp{Generation: uint32(answers[0].Number(unix.NFTA_GEN_ID))}, nil
}

func (c *Conn) Uses(context.Context) (Uses, error) { return CountUses(c.family, c.variant) }

// CountUses is Uses where there are no programs. It needs no other capability than
// CAP_NET_ADMIN.
func CountUses(f Family, v Variant) (Uses, error) {
	if v == Legacy {
		return legacyUses(f)
	}
	chains, err := askNFTables(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, f)
	if err != nil {
		return nil, fmt.Errorf("list chains of nf_tables: %w", err)
	}
	uses := Uses{}
	for _, c := range chains { // the kernel itself counts the uses of each
		uses.add(c.Text(unix.NFTA_CHAIN_TABLE), c.Text(unix.NFTA_CHAIN_NAME), int(c.Number(unix.NFTA_CHAIN_USE)))
	}
	return uses, nil
}

// Packets finds the comment in the bytes of a rule, where it is as it was given.
func (c *Conn) Packets(_ context.Context, table, chain, comment string) (n uint64, err error) {
	if c.variant == Legacy {
		return legacyPackets(c.family, table, chain, comment)
	}
	rules, err := askNFTables(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, c.family, table, chain)
	if err != nil {
		return 0, fmt.Errorf("list the rules of chain %s in table %s: %w", chain, table, err)
	}
	for _, r := range rules {
		for _, x := range r.Get(unix.NFTA_RULE_EXPRESSIONS).All() {
			if x.Text(unix.NFTA_EXPR_NAME) == "counter" && bytes.Contains(r, []byte(comment)) {
				n += x.Number(unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS)
			}
		}
	}
	return n, nil
}
